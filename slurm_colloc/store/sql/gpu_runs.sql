-- Runs with whole GPUs, and where.
SELECT job_id_raw, node_list, devices, start_s, end_s
FROM allocations a
JOIN equivalents w ON w.text = a.gres AND w.place = if(a.gres IN (FROM placed), a.node_list, '')
WHERE cluster = $cluster AND whole AND start_s IS NOT NULL

-- Runs with whole GPUs, and where.
SELECT job_id_raw, node_list, devices, start_s, end_s FROM sized
WHERE cluster = $cluster AND whole AND start_s IS NOT NULL

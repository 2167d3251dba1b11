-- Runs with GPUs, slices or shares that were on in a window, where, and their GPU-hours in it.
SELECT job_id_raw, node_list, start_s, end_s,
       coalesce(gpus * greatest(0, least(coalesce(end_s, ingested_s), $until) - greatest(start_s, $since)) / 3600, 0)
FROM sized WHERE cluster = $cluster AND devices > 0 AND start_s < $until AND coalesce(end_s, ingested_s) > $since
ORDER BY start_s

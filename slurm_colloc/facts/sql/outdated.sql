-- A run's readings that end before the window while others do not: which of them counts depends on no window.
SELECT r.* FROM readings r SEMI JOIN (
    SELECT cluster, job_id_raw, start_s FROM readings WHERE start_s < $since AND (end_s IS NULL OR end_s > $since)
) n USING (cluster, job_id_raw, start_s)
WHERE r.start_s < $since AND r.end_s <= $since

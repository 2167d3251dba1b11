-- Rows that repeat one of a run near the window, those of jobs before their start, and all.
SELECT (SELECT count(*) FROM near SEMI JOIN several USING (cluster, job_id_raw, start_s))
       - (SELECT count(*) FROM several),
       count(*) FILTER (start_s IS NULL), count(*)
FROM readings

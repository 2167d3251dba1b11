-- A run without an end counts as far as it was known to run: up to the ingest that saw it, or until it began anew.
SELECT o.cluster, o.job_id_raw, o.start_s, bool_or(r.start_s = o.start_s AND r.end_s IS NOT NULL) AS ended,
       min(r.start_s) FILTER (r.start_s > o.start_s) AS next_s
FROM (SELECT DISTINCT cluster, job_id_raw, start_s FROM readings WHERE end_s IS NULL AND start_s < $until) o
JOIN readings r USING (cluster, job_id_raw) GROUP BY ALL

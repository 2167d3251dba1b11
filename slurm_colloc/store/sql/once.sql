-- The rows of ``source``, each run once: of two readings of one run the one counts that knows its end, however old its
-- source: a run does not reopen. Then the newest; then any, but always the same one. The means, which are all of one
-- reading, survive the choice: those of the newest that has any. A run that never started has its submission to tell it
-- from others. Few runs have several readings, and only those are sorted.
SELECT s.* FROM {source} s ANTI JOIN {several} r
    ON s.cluster = r.cluster AND s.job_id_raw = r.job_id_raw AND s.start_s IS NOT DISTINCT FROM r.start_s
UNION ALL
SELECT * REPLACE ({means})
FROM (SELECT s.* FROM {source} s SEMI JOIN {several} r
          ON s.cluster = r.cluster AND s.job_id_raw = r.job_id_raw AND s.start_s IS NOT DISTINCT FROM r.start_s) s
WINDOW newest AS (PARTITION BY cluster, job_id_raw, start_s, if(start_s IS NULL, submit_s, NULL)
                  ORDER BY mean_method IS NULL, ingested_s DESC, end_s DESC, hash(s))
QUALIFY row_number() OVER (PARTITION BY cluster, job_id_raw, start_s, if(start_s IS NULL, submit_s, NULL)
                           ORDER BY end_s IS NULL, ingested_s DESC, end_s DESC, hash(s)) = 1

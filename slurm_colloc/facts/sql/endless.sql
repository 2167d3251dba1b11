-- Runs without an end: runaways, and those of whose length their rows say nothing.
SELECT count(*) FILTER (runaway), count(*) FILTER (NOT runaway AND seen_s = start_s AND held)
FROM (SELECT start_s, bool_or({runaway}) AS runaway, max(ingested_s) AS seen_s, bool_or(gres != '') AS held
      FROM readings JOIN open USING (cluster, job_id_raw, start_s)
      WHERE end_s IS NULL AND ended IS NOT true GROUP BY cluster, job_id_raw, start_s)

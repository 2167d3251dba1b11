-- Hours of a job of which only facts are left, as rows of samples.
SELECT node, uuid, from_s + 3600 AS at_s, 3600 AS interval_s, peak_mib AS gpu_mem_used_mib,
       util_fix / {fix} / nullif(util_us, 0) AS gpu_util_pct, sm_fix / {fix} / nullif(sm_us, 0) AS sm_active_pct
FROM {files} WHERE part = 'unit' AND span_s = 3600 AND cluster = $cluster AND job_id = $job
  AND from_s + 3600 > $since AND from_s < $until

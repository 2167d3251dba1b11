-- Past runs for the planner. A job is in the queue from when it could start: to wait for other jobs, or a --begin, is no
-- wait for a GPU, and Slurm's age factor counts from there as well.
SELECT job_id_raw AS job_id, "user", account, "partition", qos, coalesce(eligible_s, a.submit_s) AS submit_s,
       start_s, end_s, node_list, gres AS tres, limit_min,
       -- A task that is requeued is submitted anew, and what it waits for then is not its array.
       if(contains(a.job_id, '_'), split_part(a.job_id, '_', 1) || '@' || a.submit_s, '') AS "array"
FROM allocations a
WHERE cluster = $cluster AND contains(gres, 'gres/') AND coalesce(eligible_s, a.submit_s) < $until
  AND a.submit_s <= start_s
  AND coalesce(end_s, ingested_s) > $since
ORDER BY 6, start_s, job_id_raw

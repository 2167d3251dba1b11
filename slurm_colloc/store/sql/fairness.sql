-- What jobs with GPUs waited and held, by account and by what they had, before pieces of GPUs began and after. A job's
-- first run waits, from when it could have started; a run is where it began, with all of its hours.
WITH runs AS (
    SELECT a.account, a."user", a.start_s >= $began AS after, w.gpus,
           CASE WHEN w.whole AND w.devices > 1 THEN 'several GPUs' WHEN w.whole THEN 'one GPU' ELSE 'a piece' END AS job_class,
           if(a.start_s = min(a.start_s) OVER (PARTITION BY a.job_id_raw),
              a.start_s - greatest(a.submit_s, coalesce(a.eligible_s, a.submit_s)), NULL) AS wait_s,
           greatest(0, coalesce(a.end_s, a.ingested_s) - a.start_s - coalesce(a.suspended_s, 0)) / 3600 AS hours
    FROM allocations a JOIN equivalents w ON w.text = a.gres AND w.place = if(a.gres IN (FROM placed), a.node_list, '')
    WHERE a.cluster = $cluster AND w.devices > 0 AND a.start_s >= $since AND a.start_s < $until
)
SELECT account, job_class, after, count(*) AS runs, count(DISTINCT "user") AS users, count(wait_s) AS waits_known,
       median(wait_s) / 3600 AS wait_median_h, quantile_cont(wait_s, 0.9) / 3600 AS wait_p90_h,
       sum((gpus * hours)::DECIMAL(38, 12))::DOUBLE AS gpu_hours,
       gpu_hours * 86400 / (if(after, $until, $began) - if(after, $began, $since)) AS gpu_hours_per_day
FROM runs GROUP BY account, job_class, after
ORDER BY sum(gpu_hours) OVER (PARTITION BY account) DESC, account, job_class, after

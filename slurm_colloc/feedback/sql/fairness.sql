-- What jobs with GPUs waited and held, by account and by what they had, before pieces of GPUs began and after. A job's
-- first run waits, from when it could have started; a run is where it began, with all of its hours.
WITH runs AS (
    SELECT account, "user", start_s >= $began AS after, gpus,
           CASE WHEN whole AND devices > 1 THEN 'several GPUs' WHEN whole THEN 'one GPU' ELSE 'a piece' END AS job_class,
           if(start_s = min(start_s) OVER (PARTITION BY job_id_raw),
              start_s - greatest(submit_s, coalesce(eligible_s, submit_s)), NULL) AS wait_s,
           greatest(0, coalesce(end_s, ingested_s) - start_s - coalesce(suspended_s, 0)) / 3600 AS hours
    FROM sized WHERE cluster = $cluster AND devices > 0 AND start_s >= $since AND start_s < $until
)
SELECT account, job_class, after, count(*) AS runs, count(DISTINCT "user") AS users, count(wait_s) AS waits_known,
       median(wait_s) / 3600 AS wait_median_h, quantile_cont(wait_s, 0.9) / 3600 AS wait_p90_h,
       sum((gpus * hours)::DECIMAL(38, 12))::DOUBLE AS gpu_hours,
       gpu_hours * 86400 / (if(after, $until, $began) - if(after, $began, $since)) AS gpu_hours_per_day
FROM runs GROUP BY account, job_class, after
ORDER BY sum(gpu_hours) OVER (PARTITION BY account) DESC, account, job_class, after

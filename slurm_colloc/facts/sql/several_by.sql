-- What runs of several whole GPUs come to by whose they are (and by the name of the job), and by how many GPUs each had;
-- by name those with one GPU, too, of names that had several. A balance and what was used are of runs that were seen on
-- each of their GPUs; what waited and was lost is NULL where that is not known of any run. ``run`` is the run that would leave most by asking for fewer.
WITH whole_runs AS (
    SELECT u.*, {script} AS script, r.used_gpus, r.balance, if(used_gpus IS NOT NULL OR spare > 0, spare, NULL) AS lost,
           CASE WHEN {judged} THEN if(coalesce({found}, false), sm_measured - sm_used, 0) END AS waiting
    FROM {runs} u
    LEFT JOIN runs_of_several r USING (cluster, job_id_raw, from_s)
    WHERE u.whole AND u.allocated IS NOT NULL
)
SELECT "user", script, devices AS gpus, count(*) AS runs, sum(allocated::DECIMAL(38, 12))::DOUBLE AS allocated_gpu_hours,
       count(used_gpus) AS known_runs, coalesce(sum(devices) FILTER (used_gpus IS NOT NULL), 0)::BIGINT AS known_gpus,
       coalesce(sum(used_gpus), 0)::BIGINT AS used_gpus, median(balance) AS balance_median,
       100 * sum(sm_used::DECIMAL(38, 12))::DOUBLE
           / nullif(sum(sm_measured::DECIMAL(38, 12)) FILTER (sm_used IS NOT NULL)::DOUBLE, 0) AS sm_pct,
       100 * sum(util_used::DECIMAL(38, 12))::DOUBLE
           / nullif(sum(util_measured::DECIMAL(38, 12)) FILTER (util_used IS NOT NULL)::DOUBLE, 0) AS util_pct,
       sum(waiting::DECIMAL(38, 12))::DOUBLE AS waiting_gpu_hours, sum(lost::DECIMAL(38, 12))::DOUBLE AS lost_gpu_hours,
       arg_max(run, (lost, -from_s)) FILTER (lost > 0) AS run
FROM whole_runs GROUP BY "user", script, devices
QUALIFY devices > 1 OR script IS NOT NULL AND max(devices) OVER (PARTITION BY "user", script) > 1
ORDER BY coalesce(sum(lost_gpu_hours) OVER (PARTITION BY "user", script), 0) DESC,
         sum(allocated_gpu_hours) OVER (PARTITION BY "user", script) DESC, "user", script, gpus

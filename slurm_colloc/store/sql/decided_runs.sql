-- Runs beside the decision that csub made of their job. Job ids come round again: a decision is of the time before the
-- run, and the latest such; a minute for clocks that differ. It is made when the job is submitted, but a requeue sets
-- that time anew: of a job's later runs nobody knows it. csub saw the id of an array, not those of its tasks; of a
-- heterogeneous job it decided on each component, by the id that is the raw one of that.
SELECT * EXCLUDE (is_of_run) REPLACE ({if_of_run})
FROM (
    SELECT u.*, f.first_s, {columns},
           d.at_s >= if(u.start_s > f.first_s OR u.submit_s IS NULL, u.start_s - 366 * 86400, u.submit_s - 600)
               AS is_of_run
    FROM {runs} u ASOF LEFT JOIN decisions d
      ON d.cluster = u.cluster AND d."user" = u."user"
     AND d.job_id = if(contains(u.job_id, '_'), split_part(u.job_id, '_', 1), u.job_id_raw)
     AND d.at_s <= u.start_s + 60
    LEFT JOIN (
        SELECT cluster, job_id_raw, min(start_s) AS first_s FROM readings r SEMI JOIN decisions d
          ON d.cluster = r.cluster
         AND d.job_id = if(contains(r.job_id, '_'), split_part(r.job_id, '_', 1), r.job_id_raw) GROUP BY ALL
    ) f
      ON f.cluster = u.cluster AND f.job_id_raw = u.job_id_raw
)

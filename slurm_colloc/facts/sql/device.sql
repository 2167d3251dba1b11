-- Each GPU and slice by the number of jobs that it had: each reading of a device has one row of nobody's.
SELECT cluster{hour}, node, uuid, sharers AS jobs, max(unit_gpus) AS unit_gpus, max(gpu_model) AS gpu_model,
       max(profile) AS profile, sum(if(job_id = '', us, 0))::BIGINT AS us,
       sum(CASE WHEN job_id = '' AND process_count > 0 THEN us WHEN process_count IS NOT NULL THEN 0 END)::BIGINT
           AS stray_us,
       max(if(job_id = '' AND process_count > 0, at_s, NULL)) AS stray_last_s,
       sum(if(job_id != '', us, 0))::BIGINT AS jobs_us
FROM (SELECT *, round(greatest(0, least(piece_to_s, $until) - greatest(piece_from_s, $since)) * 1e6)::BIGINT AS us
      FROM ({pieces}) WHERE at_s > $since AND at_s - interval_s < $until)
GROUP BY cluster{hour}, node, uuid, sharers

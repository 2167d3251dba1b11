-- Runs with several whole GPUs. Of one of which a GPU was not seen nobody knows how many it used. Its balance is the
-- mean over the busiest GPU's, summed in one order: the last digit of avg() depends on which thread is first. Where
-- there are no samples runs have no number.
SELECT r.cluster, r.job_id_raw, r.from_s, r.devices AS gpus, r.hours * r.gpus AS gpu_hours,
       if(u.seen = r.devices, u.used, NULL) AS used_gpus, if(used_gpus > 0, u.balance, NULL) AS balance
FROM runs r LEFT JOIN (
    SELECT run, count(*) AS seen, count(*) FILTER (NOT idle) AS used,
           list_avg(list(active_pct ORDER BY active_pct)) / nullif(max(active_pct), 0) AS balance
    FROM units_of_several GROUP BY run
) u ON u.run = r.run
WHERE r.devices > 1 AND r.whole

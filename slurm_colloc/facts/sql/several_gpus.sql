-- What runs with several whole GPUs come to: all of them first, then by how many each had.
SELECT size, count(*) AS runs, coalesce(sum(gpu_hours::DECIMAL(38, 12)), 0)::DOUBLE AS gpu_hours,
       count(r.used_gpus) AS known_runs, coalesce(sum(r.gpus) FILTER (r.used_gpus IS NOT NULL), 0)::BIGINT AS gpus,
       coalesce(sum(r.used_gpus), 0)::BIGINT AS used_gpus, count(*) FILTER (r.used_gpus = r.gpus) AS all_used_runs,
       median(balance) AS balance_median
FROM (SELECT *, r.gpus AS size FROM runs_of_several r) r GROUP BY GROUPING SETS ((), (size)) HAVING count(*) > 0
ORDER BY size NULLS FIRST

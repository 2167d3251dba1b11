-- What the runs of each group would have fitted, by piece, and what those of several GPUs never used.
SELECT {key} AS name, kind, "partition", fit_judged AS known, fit_unit AS unit, fit_gpus AS gpus, fit_most_mib AS most_mib,
       count(*) AS runs, coalesce(sum(allocated::DECIMAL(38, 18)), 0)::DOUBLE AS allocated_gpu_hours,
       coalesce(sum(fit_freed::DECIMAL(38, 18)), 0)::DOUBLE AS freed_gpu_hours,
       count(*) FILTER (spare > 0) AS spare_runs, coalesce(sum(spare::DECIMAL(38, 18)), 0)::DOUBLE AS spare_gpu_hours
FROM {runs} JOIN run_fits USING (run) GROUP BY ALL

-- What the runs of each group would have fitted, by piece.
SELECT {key} AS name, fit_judged AS known, fit_unit AS unit, fit_gpus AS gpus, fit_most_mib AS most_mib,
       count(*) AS runs, coalesce(sum(allocated::DECIMAL(38, 18)), 0)::DOUBLE AS allocated_gpu_hours,
       coalesce(sum((allocated * greatest(0, 1 - fit_gpus))::DECIMAL(38, 18)), 0)::DOUBLE AS freed_gpu_hours
FROM {runs} JOIN run_fits USING (run) GROUP BY ALL ORDER BY ALL

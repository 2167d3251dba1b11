-- What each user could do, by what facts/judgement.py says of each run; of each user the one thing that leaves most. An
-- example of it is the run that needs most: what is enough for it is enough for the others.
WITH judged AS (
    SELECT u.*, fit_gpus, fit_most_mib, fit_freed, asked_gpus - unused_gpus AS used_gpus, spare,
           coalesce(coverage_pct, 0) >= {least_pct} AND allocated > 0 AS enough, {never_used} AS never_used
    FROM usage u LEFT JOIN run_fits USING (run) WHERE "user" != ''
),
remedies AS (
    SELECT j.*, unnest([
        {'code': '{no_use}', 'left': if(never_used, allocated, 0)},
        {'code': '{fewer}', 'left': if(never_used, 0, spare)},
        {'code': '{piece}', 'left': if(never_used, 0, fit_freed)},
        {'code': '{tail}', 'left': if(enough AND NOT never_used AND idle_s >= {least_tail_s},
                                      allocated * idle_s / span_s, 0)}
    ], recursive := true)
    FROM judged j
)
SELECT "user", code, sum("left"::DECIMAL(38, 18))::DOUBLE AS gpu_hours, count(*) AS runs,
       coalesce(min(fit_gpus) < max(fit_gpus), false) AS differ,
       arg_max(run, ({'gpus': if(code = '{piece}', fit_gpus, used_gpus), 'mib': fit_most_mib, 'left': "left"}))
           AS example
FROM remedies WHERE "left" > 0 GROUP BY "user", code, kind, "partition" HAVING gpu_hours >= {least_gpu_hours}
QUALIFY row_number() OVER (PARTITION BY "user" ORDER BY gpu_hours DESC, code, kind, "partition") = 1
ORDER BY gpu_hours DESC, "user" LIMIT {most}

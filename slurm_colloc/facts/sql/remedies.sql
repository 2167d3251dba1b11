-- What each user could do, by what facts/judgement.py says of each run; of each user the one thing that leaves most. An
-- example of it is the run that needs most: what is enough for it is enough for the others.
WITH judged AS (
    SELECT *, asked_gpus - unused_gpus AS used_gpus,
           {never_used} AS unused,
           if(NOT unused AND coverage_pct >= {least_pct} AND idle_s >= {least_tail_s}, idle_s / span_s, 0) AS tail,
           if(unused, 0, 1 - tail) AS before
    FROM usage LEFT JOIN run_fits USING (run) WHERE "user" != ''
),
remedies AS (
    SELECT j.*, unnest([
        {'code': '{no_use}', 'left': if(unused, allocated, 0)},
        {'code': '{fewer}', 'left': spare * before},
        {'code': '{piece}', 'left': fit_freed * before},
        {'code': '{tail}', 'left': allocated * tail}
    ], recursive := true)
    FROM judged j
)
SELECT "user", code, sum("left"::DECIMAL(38, 18))::DOUBLE AS gpu_hours, count(*) AS runs,
       count(DISTINCT fit_gpus) > 1,
       arg_max(run, ({'gpus': if(code = '{piece}', fit_gpus, used_gpus), 'mib': fit_most_mib, 'left': "left"})),
       count(DISTINCT "user") OVER ()
FROM remedies WHERE "left" > 0 GROUP BY "user", code, kind, "partition" HAVING gpu_hours >= {least_gpu_hours}
QUALIFY row_number() OVER (PARTITION BY "user" ORDER BY gpu_hours DESC, code, kind, "partition") = 1
ORDER BY gpu_hours DESC, "user" LIMIT {most}

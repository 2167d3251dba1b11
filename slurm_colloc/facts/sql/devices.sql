-- How many devices a run had, how many of them it never used, how many jobs at most one of them had, and how active each
-- was.
SELECT count(*), count(*) FILTER (idle), coalesce(max(sharers), 1),
       list_sort(coalesce(list(active_pct), []), 'DESC', 'NULLS LAST')
FROM (
    SELECT max(sharers) AS sharers,
           coalesce(sum(sm_fix) / {fix} / nullif(sum(sm_us), 0), sum(util_fix) / {fix} / nullif(sum(util_us), 0))
               AS active_pct,
           -- Where neither processes nor activity are known, nobody can say that it was idle.
           coalesce(sum(idle_us) = sum(us) OR sum(util_us) > 0, false)
           AND {hardly_used} AS idle
    FROM unit_parts JOIN runs USING (run)
    WHERE cluster = $cluster AND job_id_raw = $job AND from_s = $since GROUP BY run, node, uuid
)

-- What runs come to by group, and by kind of GPU in a group where the caller names a column for it. No figure may
-- depend on the order of the runs: sums of DECIMAL do not, those of DOUBLE do. A million values are made DECIMAL once:
-- a group's sums, and those of all, are of the sums of its kinds of GPU.
WITH of_kinds AS MATERIALIZED (
    SELECT {key} AS name, {kind} AS of_kind, count(*) AS jobs, count(*) FILTER (measured) AS measured,
           count(*) FILTER (gpus IS NULL) AS unsized,
           sum(allocated::DECIMAL(38, 18)) AS allocated,
           sum(held::DECIMAL(38, 18)) FILTER (allocated IS NOT NULL) AS held,
           sum(held_unknown::DECIMAL(38, 18)) AS held_unknown,
           sum(util_measured::DECIMAL(38, 18)) FILTER (util_used IS NOT NULL) AS util_measured,
           sum(util_used::DECIMAL(38, 18)) AS util_used,
           sum((util_measured - util_used)::DECIMAL(38, 18)) FILTER (util_used IS NOT NULL) AS util_idle,
           -- For the plain mean, in which each run counts alike.
           sum((100 * util_used / nullif(util_measured, 0))::DECIMAL(38, 18))
               FILTER (util_used IS NOT NULL AND util_measured > 0) AS util_pcts,
           count(*) FILTER (util_used IS NOT NULL AND util_measured > 0) AS util_known,
           sum(sm_measured::DECIMAL(38, 18)) FILTER (sm_used IS NOT NULL) AS sm_measured,
           sum(sm_used::DECIMAL(38, 18)) AS sm_used,
           sum((sm_measured - sm_used)::DECIMAL(38, 18)) FILTER (sm_used IS NOT NULL) AS sm_idle,
           sum((100 * sm_used / nullif(sm_measured, 0))::DECIMAL(38, 18))
               FILTER (sm_used IS NOT NULL AND sm_measured > 0) AS sm_pcts,
           count(*) FILTER (sm_used IS NOT NULL AND sm_measured > 0) AS sm_known,
           sum(sm_beyond::DECIMAL(38, 18)) AS sm_beyond,
           sum(held_idle_hours::DECIMAL(38, 18)) FILTER (allocated IS NOT NULL) AS held_idle,
           sum((energy_j / 3.6e6)::DECIMAL(38, 18)) AS energy_kwh,
           sum((allocated * coverage_pct)::DECIMAL(38, 18)) FILTER (coverage_pct IS NOT NULL) AS covered,
           sum(allocated::DECIMAL(38, 18)) FILTER (coverage_pct IS NOT NULL) AS coverage_known,
           sum(billing_hours::DECIMAL(38, 12)) AS billing, count(*) FILTER (billing_hours IS NULL) AS unbilled,
           max(peak_mib) AS peak_mib, list(DISTINCT methods) AS methods
    FROM {runs} GROUP BY 1, 2
),
added AS (
    SELECT name, of_kind, grouping(name) AS whole, grouping(of_kind) AS all_kinds,
           coalesce(sum(COLUMNS('^(jobs|measured|unsized|unbilled|util_known|sm_known)$')), 0)::BIGINT,
           sum(COLUMNS('^(allocated|(util|sm)_(measured|used|idle|pcts)|sm_beyond|(held|cover|energy|billing).*)$'))::DOUBLE,
           max(peak_mib) AS peak_mib, list_sort(list_distinct(flatten(flatten(list(methods))))) AS methods
    FROM of_kinds GROUP BY GROUPING SETS ((name, of_kind), (name), ())
)
SELECT all_kinds, name AS group_name, if(whole = 1, $total, if(all_kinds = 1, name, of_kind)) AS name, jobs,
       measured AS jobs_measured, unsized AS jobs_without_size,
       -- Of no run at all the sums are 0; of runs of which no size is known they are not known.
       if(jobs = 0, 0, allocated) AS allocated_gpu_hours, if(jobs = 0, 0, held) AS held_gpu_hours,
       coalesce(held_unknown, 0) AS held_unknown_hours,
       coalesce(util_measured, 0) AS util_measured_gpu_hours, util_used AS util_used_gpu_hours,
       util_idle AS util_idle_gpu_hours, 100 * util_used / nullif(util_measured, 0) AS util_weighted_pct,
       util_pcts / nullif(util_known, 0) AS util_plain_pct,
       coalesce(sm_measured, 0) AS sm_measured_gpu_hours, sm_used AS sm_used_gpu_hours,
       sm_idle AS sm_idle_gpu_hours, sm_beyond AS sm_beyond_gpu_hours,
       100 * sm_used / nullif(sm_measured, 0) AS sm_weighted_pct, sm_pcts / nullif(sm_known, 0) AS sm_plain_pct,
       held_idle AS held_idle_gpu_hours, peak_mib AS gpu_mem_peak_mib, energy_kwh,
       covered / nullif(coverage_known, 0) AS coverage_pct, coalesce(coverage_known, 0) AS coverage_known_gpu_hours,
       coalesce(methods, []) AS methods, if(unbilled = 0, coalesce(billing, 0), NULL) AS billing_hours
FROM added
ORDER BY whole, if(all_kinds = 1, NULL, added.name), coalesce(sm_idle, util_idle, 0) DESC, allocated DESC,
         added.name, of_kind

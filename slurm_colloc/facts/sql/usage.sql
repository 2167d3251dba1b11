-- What each run was allocated, held and used inside the window. Hours are DECIMAL while they are added up, because sums
-- of it do not depend on their order. Of a run whose size is not known nobody can say how much of it was measured, or
-- used. Of a share's use counts what it was given. Of others no more was used than measured: it is a time under two
-- names, or one outside suspensions.
WITH used AS (
    SELECT run, sum(us) FILTER (us > 0) / 1e6 AS seconds,
           sum(util_us) / 1e6 AS util_seconds, sum(sm_us) / 1e6 AS sm_seconds,
           sum((util_fix / {fix_100} * unit_gpus / 3.6e9)::DECIMAL(38, 12))::DOUBLE AS util_hours,
           sum((sm_fix / {fix_100} * unit_gpus / 3.6e9)::DECIMAL(38, 12))::DOUBLE AS sm_hours,
           sum((beyond_fix / {fix_100} * unit_gpus / 3.6e9)::DECIMAL(38, 12))::DOUBLE AS beyond_hours,
           sum((held_us * unit_gpus / 3.6e9)::DECIMAL(38, 12))::DOUBLE AS seen_held_hours,
           sum((idle_us * unit_gpus / 3.6e9)::DECIMAL(38, 12))::DOUBLE AS held_idle_hours,
           sum(shared_us) / 3.6e9 AS shared_hours, sum(direct_us) / 1e6 AS direct_s,
           if(count(*) = count(blackout_us), sum(blackout_us) / 1e6, NULL) AS blackout_s,
           sum(energy_uj) / 1e6 AS energy_j,
           max(peak_mib) AS unit_peak_mib,
           max(last_s) - coalesce(max(active_s), min(first_s)) AS tail_s,
           max(last_s) AS last_seen_s,
           list_sort(list_distinct(list(method) FILTER (us > 0))) AS methods
    FROM unit_parts WHERE {part} GROUP BY run HAVING sum(us) > 0
),
peaks AS (
    SELECT run, max(peak_mib) AS several_peak_mib, true AS several FROM peak_parts WHERE {part} GROUP BY ALL
),
host_used AS (
    SELECT run, sum(cores)::DOUBLE AS cores, sum(read_mib)::DOUBLE AS read_mib,
           sum(written_mib)::DOUBLE AS written_mib, max(mib) AS host_mem_mib,
           count(*) AS host_nodes, min(cpu_us) / 1e6 AS host_s
    FROM (SELECT run, (sum(cpu_used_us) / nullif(sum(cpu_us), 0))::DECIMAL(38, 9) AS cores,
                 (sum(read_umib) / 1e6)::DECIMAL(38, 9) AS read_mib,
                 (sum(written_umib) / 1e6)::DECIMAL(38, 9) AS written_mib, max(host_mem_mib) AS mib,
                 sum(cpu_us) AS cpu_us
          FROM host_parts WHERE {part} GROUP BY run, node)
    GROUP BY ALL
)
SELECT r.*, gpus * hours AS allocated, billing * hours AS billing_hours, devices * span_s AS device_s,
       seconds IS NULL AND mean_method IS NOT NULL AS by_mean,
       -- Of a share nobody knows what it held of a GPU while no sample tells how many held it.
       CASE WHEN blocked IS NOT NULL THEN blocked * span_s / 3600 ELSE seen_held_hours END AS held,
       CASE WHEN blocked IS NOT NULL THEN 0 ELSE greatest(0, span_s - coalesce(seconds, 0)) / 3600 END AS held_unknown,
       allocated * CASE WHEN NOT whole OR by_mean AND mean_gpu_util_pct IS NULL THEN 0
                        WHEN by_mean THEN least(1, coalesce(mean_gpus / devices, 1))
                        ELSE least(1, coalesce(util_seconds / device_s, 0)) END AS util_measured,
       -- NULL where either is: least() would pass over it.
       CASE WHEN whole AND by_mean THEN util_measured * mean_gpu_util_pct / 100
            WHEN whole THEN CASE WHEN util_hours > util_measured THEN util_measured
                                 WHEN util_measured IS NOT NULL THEN util_hours END END AS util_used,
       allocated * least(1, coalesce(sm_seconds / device_s, 0)) AS sm_measured,
       -- Samples know units by slices; used and allocated must be by one convention.
       (sm_hours - beyond_hours) * coalesce(gpus / nullif(blocked, 0), 1) AS sm_within,
       CASE WHEN sm_within > sm_measured THEN sm_measured WHEN sm_measured IS NOT NULL THEN sm_within END AS sm_used,
       if(allocated IS NULL, NULL, beyond_hours) AS sm_beyond,
       sm_hours, sm_seconds,
       sm_hours IS NOT NULL OR whole AND if(by_mean, mean_gpu_util_pct, util_hours) IS NOT NULL AS measured,
       CASE WHEN by_mean THEN mean_gpu_mem_mib WHEN several THEN several_peak_mib ELSE unit_peak_mib END AS peak_mib,
       CASE WHEN NOT by_mean THEN 100 * least(1, coalesce(seconds / device_s, 0)) END AS coverage_pct,
       shared_hours, held_idle_hours, direct_s, blackout_s, tail_s,
       to_s - last_seen_s AS unseen_s, {idle} AS idle_s, energy_j,
       cores, host_mem_mib, h.read_mib, h.written_mib,
       CASE WHEN host_nodes >= nodes THEN 100 * least(1, host_s / nullif(span_s, 0)) END AS host_pct,
       CASE WHEN by_mean THEN [mean_method] ELSE coalesce(methods, []) END AS methods
FROM runs r LEFT JOIN used u USING (run) LEFT JOIN peaks p USING (run) LEFT JOIN host_used h USING (run)
WHERE devices > 0 AND {part}

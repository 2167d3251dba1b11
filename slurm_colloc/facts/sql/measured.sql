-- What was sampled of each run that is over, as evidence for csub. The high value is the least that a figure stays at
-- or below for so much of the measured time.
WITH levels AS (
    SELECT run, kind, sum(weight) OVER (PARTITION BY run, kind) AS total,
           sum(weight) OVER (PARTITION BY run, kind ORDER BY level) AS up_to, level
    FROM (SELECT run, kind, level, sum(weight) AS weight FROM level_parts GROUP BY run, kind, level)
),
highs AS (
    SELECT run, min(level) FILTER (kind = 'sm') AS sm, min(level) FILTER (kind = 'dram') AS dram,
           min(level) FILTER (kind = 'cores') AS cores
    FROM levels WHERE total > 0 AND up_to >= $high * total GROUP BY run
),
of_runs AS (
    SELECT *, max(peak_mib) OVER (PARTITION BY run) AS most_mib FROM evidence_parts
),
seen AS (
    SELECT run, max(gpu_model) AS gpu_model, max(peak_mib) AS peak_mib,
           -- Over the time in which kernels ran: while a job starts, or prepares data, nothing slows it.
           coalesce(sum(sm_pct_s) / nullif(sum(sm_ran_s), 0), min(sm_least_pct)) AS sm_mean_pct,
           bool_or(sm_is_bound) AS sm_is_bound, bool_or(is_reading) AS is_reading,
           sum(sm_passes)::BIGINT AS sm_passes, sum(sm_pct_s) / nullif(sum(sm_s), 0) AS sm_all_pct,
           sqrt(greatest(0, sum(sm_sum_pct2) - sum(sm_sum_pct) ** 2 / nullif(sum(sm_passes), 0))
                / nullif(sum(sm_passes) - 1, 0)) AS sm_deviation_pct, sum(passes)::BIGINT AS passes, sum(sampled_s) AS sampled_s,
           max(profile) AS profile,
           -- From here on it never grew by more than one percent again.
           min(peak_since_s) FILTER (peak_mib * 1.01 >= most_mib) - min(held_since_s) AS grew_until_s,
           max(node) AS node, max(devices) AS devices, coalesce(sum(sm_s), 0) AS alone_s,
           max(host_mem_mib) AS host_mem_mib, sum(busy_pct_s) / nullif(sum(busy_s), 0) AS busy_mean_pct
    FROM of_runs GROUP BY run
)
SELECT r."user", r.job_id AS shown_id, r.start_s, r.gres, profile, node, s.devices, is_reading, sm_passes, sm_all_pct,
       sm_deviation_pct, alone_s,
       -- From here on under the names of Evidence. "gpu:1" may land on a slice; the device knows better than the decision.
       r.job_id_raw AS job_id, '' AS signature, r.state, if(profile != '', '{mig}', '') AS mode, gpu_model,
       peak_mib AS gpu_mem_peak_mib, sm_mean_pct AS sm_active_mean_pct, h.sm AS sm_active_q95_pct, sm_is_bound,
       passes AS sample_count, sampled_s, r.end_s AS ended_s, r.end_s - r.start_s AS elapsed_s,
       h.dram AS dram_active_q95_pct, grew_until_s, if(is_reading, '{readings}', '') AS source,
       h.cores AS cpu_cores_q95, host_mem_mib AS host_mem_peak_mib, busy_mean_pct
FROM seen s JOIN runs r USING (run) LEFT JOIN highs h USING (run)
WHERE r.end_s IS NOT NULL AND r.cluster = $cluster

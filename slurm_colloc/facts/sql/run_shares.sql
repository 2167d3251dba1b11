-- One row for each run and each GPU or slice that was sampled of it; times and shares as in JobUsage.
SELECT cluster, job_id, "user", account, make_timestamp((from_s * 1e6)::BIGINT) AS start, node, uuid,
       max(gpu_model) AS gpu_model, max(unit_gpus) AS unit_gpus, sum(us) / 1e6 AS sampled_s,
       sum(shared_us) / 1e6 AS shared_s, sum(idle_us) / 1e6 AS idle_s,
       sum(util_fix) / {fix} / nullif(sum(util_us), 0) AS gpu_util_pct,
       sum(sm_fix) / {fix} / nullif(sum(sm_us), 0) AS sm_active_pct, max(unit_parts.peak_mib) AS gpu_mem_peak_mib,
       sum(energy_uj) / 1e6 AS energy_j, max(sharers) AS jobs_at_once,
       array_to_string(list_sort(list_distinct(list(method))), ';') AS methods
FROM unit_parts JOIN runs USING (run) GROUP BY run, cluster, job_id, "user", account, from_s, node, uuid
ORDER BY from_s, job_id, cluster, node, uuid

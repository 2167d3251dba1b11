-- One row for each run that csub decided about: predicted beside measured.
SELECT cluster, job_id, "user", account, make_timestamp((from_s * 1e6)::BIGINT) AS start, state, signature, mode, rung,
       shadow, would, would_memory_mib, would_wait_s, arm, gpu_mem_q99_mib, peak_mib AS gpu_mem_peak_mib,
       sm_active_q95_pct, 100 * sm_hours / nullif(sm_seconds / 3600, 0) AS sm_active_pct, out_of_memory
FROM ({decided_runs}) ORDER BY from_s, job_id, cluster

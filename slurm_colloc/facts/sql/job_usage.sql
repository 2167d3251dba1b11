-- What a run comes to, under the names of JobUsage.
SELECT cluster, job_id, job_id_raw, "user", account, "partition", qos, state, job_name, shown AS gres, kind AS gpu_type,
       from_s AS start_s, to_s AS end_s, allocated AS allocated_gpu_hours, held AS held_gpu_hours,
       held_unknown AS held_unknown_hours, util_measured AS util_measured_gpu_hours,
       util_used AS util_used_gpu_hours, sm_measured AS sm_measured_gpu_hours, sm_used AS sm_used_gpu_hours,
       sm_beyond AS sm_beyond_gpu_hours, peak_mib AS gpu_mem_peak_mib, coverage_pct, shared_hours,
       held_idle_hours AS held_idle_gpu_hours, idle_s AS idle_tail_s, energy_j, cores AS cpu_cores_used,
       host_mem_mib AS host_mem_peak_mib, read_mib, written_mib, methods,
       suspended_s, usage.last_s - usage.start_s - coalesce(suspended_s, 0) AS elapsed_s, limit_min
FROM usage

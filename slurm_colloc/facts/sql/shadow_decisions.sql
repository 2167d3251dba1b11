-- The runs of jobs that csub decided on in shadow mode.
SELECT run, cluster, "user", would, would_partition, would_not, would_memory_mib, would_wait_s, arm,
       sm_active_q95_pct,
       coalesce(nullif(would_partition, ''), "partition") AS place,
       state, start_s, end_s, hours, devices, by_mean, allocated, peak_mib, coverage_pct,
       sm_hours / nullif(sm_seconds / 3600, 0) AS sm_mean,
       -- A requeue sets the time of submission anew.
       if(start_s = first_s AND submit_s IS NOT NULL, start_s - submit_s, NULL) AS waited_s
FROM ({decided_runs}) WHERE shadow

-- What runs used of each GPU or slice. Percentages over time are whole numbers: 1/{fix} of a percent times
-- microseconds, so that sums depend on no order.
WITH told AS NOT MATERIALIZED (
    SELECT *, gpu_util_pct > 0 OR sm_active_pct > 0 AS active,
           inside AND coalesce(gpu_util_pct, sm_active_pct) IS NOT NULL AS counted,
           -- As in evidence, GPU_UTIL, an upper bound, stands in where the driver offers no SM activity, and a split
           -- among neighbours is not good enough.
           if(in_run AND profile = '' AND method = '{measured}', coalesce(sm_active_pct, gpu_util_pct), NULL)
               AS alone_pct
    FROM ({inside})
)
SELECT run{hour}, node, uuid, method, max(unit_gpus) AS unit_gpus, sum(us)::BIGINT AS us,
       -- Beyond the run's ends, too: they are whole seconds, a reading is for the time since the last.
       sum(round(greatest(0, least(piece_to_s, $until) - greatest(piece_from_s, $since)) * 1e6))::BIGINT AS whole_us,
       sum(if(gpu_util_pct IS NULL, 0, us))::BIGINT AS util_us,
       sum(us * round(gpu_util_pct::DOUBLE * {fix})::BIGINT)::BIGINT AS util_fix,
       sum(if(sm_active_pct IS NULL, 0, us))::BIGINT AS sm_us,
       sum(us * round(sm_active_pct::DOUBLE * {fix})::BIGINT)::BIGINT AS sm_fix,
       -- 0 where it is not known what a share was given, as greatest() has it; NULL where its activity is not.
       sum(if(sm_active_pct IS NULL, NULL, us * round(greatest(0, sm_active_pct - most_pct)::DOUBLE * {fix})::BIGINT))::BIGINT
           AS beyond_fix,
       max(gpu_model) AS gpu_model, sum(if(alone_pct IS NULL, 0, us))::BIGINT AS alone_us,
       sum(if(alone_pct > 0, us, 0))::BIGINT AS ran_us,
       sum(us * round(alone_pct::DOUBLE * {fix})::BIGINT)::BIGINT AS alone_fix,
       sum(if(sharers > 1, us, 0))::BIGINT AS shared_us,
       sum(round(us / greatest(sharers, 1)))::BIGINT AS held_us,
       -- A device that worked had a process, which was gone when the list was read.
       sum(CASE WHEN process_count = 0 AND NOT coalesce(active, false) THEN us
                WHEN process_count IS NOT NULL THEN 0 END)::BIGINT AS idle_us,
       sum(CASE WHEN direct_count > 0 THEN us WHEN direct_count IS NOT NULL THEN 0 END)::BIGINT AS direct_us,
       -- Whoever else profiles a GPU takes its counters away: they read 0 while kernels run. Where nobody knows whether
       -- kernels run (slices have no GPU_UTIL), nobody knows whether a 0 is one.
       if(coalesce(bool_or(sm_active_pct = 0 AND gpu_util_pct IS NULL), false), NULL,
          sum(if(sm_active_pct = 0 AND gpu_util_pct >= 10, us, 0)))::BIGINT AS blackout_us,
       sum(round(energy_j::DOUBLE * us / nullif(interval_s, 0)))::BIGINT AS energy_uj,
       max(if(inside, gpu_mem_used_mib, NULL)) AS peak_mib,
       min(if(counted, began_s, NULL)) AS first_s, max(if(counted, at_s, NULL)) AS last_s,
       max(if(counted AND active, at_s, NULL)) AS active_s, max(sharers) AS sharers
FROM told GROUP BY run{hour}, node, uuid, method

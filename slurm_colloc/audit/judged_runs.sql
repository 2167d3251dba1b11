-- What rules ask of a run, by name. A neighbour's use and what nobody measured are held against no run.
SELECT *,
       -- Enough of it was seen, by a measurement of this run alone.
       strong AND coverage_pct >= $min_coverage_pct AS sure,
       -- A metric is judged by over as much of the allocated time as must be covered.
       sure AND util_used IS NOT NULL AND 100 * util_measured >= $min_coverage_pct * allocated AS util_sure,
       -- The counters read 0, and GPU_UTIL does not, while another program holds them: SMs tell nothing of such a run.
       sure AND sm_used IS NOT NULL AND 100 * sm_measured >= $min_coverage_pct * allocated AND blackout_s = 0 AS sm_sure,
       -- A suspension's length is known, not when it was: neither such a run is called idle, nor one whose node broke.
       suspended_s = 0 AND NOT starts_with(state, 'SUSPENDED') AND state NOT IN ('NODE_FAIL', 'BOOT_FAIL') AS awake,
       {counted} AS counted_hours,
       sure AND awake AND (util_used IS NOT NULL OR sm_used IS NOT NULL) AND allocated > 0
           AND 100 * counted_hours >= $min_coverage_pct * allocated AND blackout_s IS NOT NULL AS counted_sure,
       -- A program that only opens a GPU shows some milliseconds of work on it, whatever it does then.
       coalesce(100 * util_used <= $idle_pct * util_measured, true)
           AND coalesce(100 * sm_used <= $idle_pct * sm_measured, true) AND blackout_s = 0 AS unused,
       fit_unit IS NOT NULL AND fit_gpus < 1 AS fits
FROM audited_runs

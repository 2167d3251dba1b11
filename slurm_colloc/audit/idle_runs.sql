-- The kinds of idleness of each run, and the GPU-hours of each: no hour counts twice.
WITH kinds AS (
    SELECT *,
           -- The peak is of one node, the devices are of all. A context, of some 600 MiB, is in GPU memory before any
           -- work; what nobody knows may be more.
           coalesce(peak_mib * if(devices = 1, 1, nodes) >= $parked_mib * devices, true) AS filled,
           coalesce(counted_sure AND unused, false) AS zero_use,
           zero_use AND NOT filled AS never,
           zero_use AND filled AS parked,
           coalesce(counted_sure AND NOT unused AND idle_s > 0 AND idle_s >= 60 * $tail_min, false) AS tail,
           coalesce(counted_sure AND NOT unused AND fewer, false) AS some_unused,
           if(tail, idle_s / span_s * allocated, 0) AS tail_hours,
           -- All GPUs are idle in a tail. A GPU that was never used is no preparation, whether it was ever opened or not.
           if(some_unused, idle_units_hours * (1 - tail_hours / allocated), 0) AS some_unused_hours,
           -- Samples know slices by compute slices and shares by their whole GPU; allocated is by the site's convention.
           -- All since the last activity may have been a tail where nobody knows what was one.
           greatest(0, coalesce(gpus / nullif(blocked, 0), gpus) * held_idle_hours
                       - if(blackout_s IS NULL, 0, coalesce(tail_s, 0)) / span_s * allocated
                       - some_unused_hours) AS before_hours,
           coalesce(shared_hours = 0 AND gpus IS NOT NULL AND NOT zero_use AND before_hours > 0
                    AND 100 * before_hours >= $empty_pct * allocated, false) AS no_process
    FROM ({runs})
)
SELECT *,
       if(no_process, before_hours, 0) AS no_process_hours,
       if(zero_use, counted_hours, tail_hours + no_process_hours + some_unused_hours) AS idle_hours,
       -- Its counters read 0 because they were taken away: such a GPU was at work.
       (util_used > 0 OR sm_used > 0) IS NOT true AND blackout_s = 0 AS no_kernel,
       -- A reading of a job that runs counts that is not old at the window's end: whoever takes in neither samples nor
       -- runs any more does not know who idles.
       to_s - unseen_s AS read_s,
       $until_s - read_s AS age_s,
       age_s <= 60 * $reading_age_min AS fresh,
       -- A model that waits for requests is no forgotten shell; a run may be one where no memory is known.
       no_kernel AND peak_mib IS NOT NULL AND NOT filled AS never_worked,
       idle_s > 0 AND idle_s >= 60 * if(never_worked, $first_warning_min, $sliding_warning_min) AS idle_now,
       some_unused AND idle_units_hours / idle_units * 60 >= $sliding_warning_min AS some_unused_now
FROM kinds

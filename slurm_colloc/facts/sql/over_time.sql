-- The use of all bins, or by group of those in which it had anything.
SELECT {group} AS name, since_s, until_s,
       {installed} * greatest(0, least(until_s, $so_far) - since_s) / 3600 AS installed_gpu_hours,
       -- In a piece of time without a run nothing was allocated, and so nothing measured.
       coalesce(allocated, 0) AS allocated_gpu_hours, coalesce(util_measured, 0) AS util_measured_gpu_hours,
       util_used AS util_used_gpu_hours, coalesce(sm_measured, 0) AS sm_measured_gpu_hours,
       sm_used AS sm_used_gpu_hours
FROM bins {join} (
    SELECT {group} AS name, bin, sum(allocated)::DOUBLE AS allocated, sum(util_measured)::DOUBLE AS util_measured,
           sum(util_used)::DOUBLE AS util_used, sum(sm_measured)::DOUBLE AS sm_measured, sum(sm_used)::DOUBLE AS sm_used
    FROM group_bins GROUP BY ALL
) USING (bin) ORDER BY 1, bin

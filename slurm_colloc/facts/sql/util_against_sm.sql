-- Allocated GPU-hours by GPU_UTIL and SM activity, each metric over its own covered time, as the samples have it; in
-- cells of {cell_pct} %, on whose edge floating point leaves nobody below it.
WITH measured AS (
    SELECT allocated, round(round(100 * util_used / util_measured, 6) / {cell_pct}, 9) AS util_cells,
           round(round(100 * sm_used / sm_measured, 6) / {cell_pct}, 9) AS sm_cells
    FROM usage
    WHERE whole AND util_measured > 0 AND util_used IS NOT NULL AND sm_measured > 0 AND sm_used IS NOT NULL
)
SELECT ({cell_pct} * least(floor(util_cells), 100 / {cell_pct} - 1))::DOUBLE AS util_from_pct,
       ({cell_pct} * least(floor(sm_cells), 100 / {cell_pct} - 1))::DOUBLE AS sm_from_pct,
       {cell_pct}::DOUBLE AS cell_pct, count(*) AS runs, sum(allocated::DECIMAL(38, 18))::DOUBLE AS allocated_gpu_hours
FROM measured GROUP BY ALL ORDER BY util_from_pct, sm_from_pct

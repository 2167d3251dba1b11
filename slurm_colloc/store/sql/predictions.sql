-- How the estimates of each rung compare with what was measured. Only of a run that completed is the peak a peak; of
-- others it is what it had so far.
WITH decided AS (
    SELECT rung, if(state = '{completed}', peak_mib / nullif(gpu_mem_q99_mib, 0), NULL) AS mem,
           100 * sm_hours / nullif(sm_seconds / 3600, 0) / nullif(sm_active_q95_pct, 0) AS sm
    FROM ({decided_runs}) WHERE rung IS NOT NULL
)
SELECT rung, count(*) AS jobs, count(mem) AS mem_known, count(*) FILTER (mem <= 1) AS mem_within,
       median(mem) AS mem_median_ratio, max(mem) AS mem_max_ratio, count(sm) AS sm_known,
       count(*) FILTER (sm <= 1) AS sm_within, median(sm) AS sm_median_ratio, max(sm) AS sm_max_ratio
FROM decided GROUP BY rung ORDER BY rung

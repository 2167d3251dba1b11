-- What was measured of runs of whole GPUs while they were alone on them. Names are taken from ``runs``: those of
-- ``usage`` may be pseudonyms, by which no partition is open or closed.
SELECT run, a.model, a.sm_pct, a.is_bound, a.us / 1e6 AS alone_s, r.end_s - r.start_s AS elapsed_s,
       r."partition", r.account, r.qos, r.shown
FROM (
    SELECT run, max(gpu_model) AS model, sum(alone_us) AS us,
           sum(sm_us) FILTER (alone_us > 0) < sum(alone_us) AS is_bound,
           -- Over the time in which kernels ran, as in evidence.
           round(coalesce(sum(alone_fix) / nullif(sum(ran_us), 0) / {fix}, 0), {digits}) AS sm_pct
    FROM unit_parts WHERE {part} GROUP BY run HAVING sum(alone_us) > 0
) a JOIN runs r USING (run)
WHERE {part} AND r.whole

-- Completed runs of one whole GPU of which enough was measured while they were alone on it. Names are taken from
-- ``runs``: those of ``usage`` may be pseudonyms, by which no partition is open or closed.
SELECT run, a.model, a.sm_pct, r."partition", r.account, r.qos, r.shown
FROM (
    SELECT run, max(gpu_model) AS model, sum(alone_us) AS us,
           -- Over the time in which kernels ran, as in evidence.
           round(coalesce(sum(alone_fix) / nullif(sum(ran_us), 0) / {fix}, 0), {digits}) AS sm_pct
    FROM unit_parts WHERE {part} GROUP BY run HAVING sum(alone_us) > 0
) a JOIN runs r USING (run)
WHERE {part} AND r.whole AND r.devices = 1 AND r.state = '{completed}'
  AND a.us >= $least_pct * 1e4 * (r.end_s - r.start_s)

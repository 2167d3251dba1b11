-- For how long a run's figures were how high: of SM activity and DRAM time, of busy cores readings.
SELECT run, 'sm' AS kind, sm AS level, sum(alone_s) AS weight FROM passes WHERE sm IS NOT NULL GROUP BY run, sm
UNION ALL
SELECT run, 'dram', dram, sum(interval_s) FROM passes WHERE dram IS NOT NULL GROUP BY run, dram
UNION ALL
SELECT r.run, 'cores', h.cpu_s / h.interval_s AS cores, count(*) FROM hosts h JOIN runs r
  ON r.job_id_raw = h.job_id AND r.cluster = h.cluster
 AND h.at_s > r.start_s AND h.at_s - h.interval_s < r.last_s
WHERE h.interval_s > 0 AND h.cpu_s IS NOT NULL GROUP BY r.run, cores

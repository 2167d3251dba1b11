-- Nodes by the columns of runs, for rules about what runs there outside jobs.
SELECT cluster, node, '' AS "user", '' AS account, '' AS "partition", '' AS qos, '' AS job_id, '' AS job_name,
       '' AS shown, '' AS kind, min(stray_last_s) AS start_s, NULL AS end_s, max(stray_last_s) AS to_s,
       NULL::DOUBLE AS span_s, 0::DOUBLE AS unseen_s, NULL::DOUBLE AS coverage_pct, []::VARCHAR[] AS methods,
       count(DISTINCT uuid) FILTER (stray_us > 0) AS gpus, sum(stray_us) / 3.6e9 AS stray_hours,
       stray_hours AS allocated, node || '@' || floor(max(stray_last_s) / 86400) AS run
FROM device_parts GROUP BY cluster, node

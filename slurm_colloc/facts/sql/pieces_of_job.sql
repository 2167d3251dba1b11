-- A job's time in pieces: means of its devices, and the memory at peak over those of one node.
WITH near AS (
    SELECT *, greatest(at_s - interval_s, $since) AS began_s, least(at_s, $until) AS ended_s
    FROM (
        SELECT node, uuid, at_s, interval_s, gpu_mem_used_mib, gpu_util_pct, sm_active_pct FROM shares
        WHERE cluster = $cluster AND job_id = $job AND at_s > $since AND at_s - interval_s < $until
        UNION ALL
        SELECT node, uuid, at_s, interval_s, gpu_mem_used_mib, gpu_util_pct, sm_active_pct FROM ({stored})
    )
),
cut AS (
    SELECT *, unnest(range(floor((began_s - $since) / $step)::BIGINT,
                           ceil((ended_s - $since) / $step)::BIGINT)) AS piece
    FROM near
),
parts AS (
    SELECT *, least(ended_s, $since + (piece + 1) * $step) - greatest(began_s, $since + piece * $step) AS seconds
    FROM cut
),
passes AS (
    SELECT piece, CASE WHEN count(*) = count(mib) THEN sum(mib) END AS mib
    FROM (SELECT piece, node, at_s, uuid, max(gpu_mem_used_mib) AS mib FROM parts GROUP BY ALL)
    GROUP BY piece, node, at_s
),
held AS (SELECT piece, max(mib)::BIGINT AS mib FROM passes GROUP BY piece)
SELECT piece, any_value(held.mib),
       sum(gpu_util_pct * seconds) / sum(seconds) FILTER (gpu_util_pct IS NOT NULL),
       sum(sm_active_pct * seconds) / sum(seconds) FILTER (sm_active_pct IS NOT NULL)
FROM parts LEFT JOIN held USING (piece) WHERE seconds > 0 GROUP BY piece

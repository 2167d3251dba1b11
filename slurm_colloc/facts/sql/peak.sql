-- Of a run on several devices: what they held at one time, on one node.
WITH on_several AS (
    FROM day_runs SEMI JOIN (
        SELECT run FROM day_unit GROUP BY run HAVING min(node) != max(node) OR min(uuid) != max(uuid)
    ) USING (run)
)
SELECT run{hour}, max(mib)::BIGINT AS peak_mib
FROM (
    SELECT run{hour}, CASE WHEN count(*) = count(gpu_mem_used_mib) THEN sum(gpu_mem_used_mib) END AS mib
    FROM ({inside}) WHERE inside GROUP BY run{hour}, node, at_s
)
GROUP BY run{hour}

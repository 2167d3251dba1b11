-- The GPUs of runs with several whole ones, each by itself, by a measurement of its run alone; ``idle`` is one on which
-- hardly a kernel ever ran.
SELECT run, node, uuid, greatest(sum(util_us), sum(sm_us)) AS known_us,
       {hardly_used} AS idle,
       coalesce(sum(sm_fix) / nullif(sum(sm_us), 0), sum(util_fix) / nullif(sum(util_us), 0)) / {fix} AS active_pct
FROM unit_parts SEMI JOIN (SELECT run FROM runs WHERE devices > 1 AND whole) USING (run) GROUP BY run, node, uuid
HAVING bool_and(method IN ('{measured}', '{whole_device}')) AND sum(shared_us) = 0
   AND count(*) = count(blackout_us) AND sum(blackout_us) = 0 AND sum(util_us) + sum(sm_us) > 0

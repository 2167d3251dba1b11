-- A number for each run that a rule finds, by subject; equal ones are of one run.
WITH judged AS (SELECT * FROM {source} WHERE ({scope}) AND coalesce(({judged}), false))
SELECT cluster, {subject} AS subject, list(DISTINCT hash(cluster, run))
FROM judged WHERE coalesce(({found}), false) GROUP BY ALL

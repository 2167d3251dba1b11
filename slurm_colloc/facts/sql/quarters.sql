-- What bin and which hour of the week (from Monday's first on) a quarter of an hour (900 s) is in, and when that hour
-- began.
WITH edges AS (SELECT unnest($edges::DOUBLE[]) AS edge_s),
bins AS (SELECT edge_s, row_number() OVER (ORDER BY edge_s) - 1 AS bin FROM edges),
counted AS (SELECT unnest(range(floor($since / 900)::BIGINT, ceil($until / 900)::BIGINT)) AS quarter),
local AS (
    SELECT quarter, (quarter * 900 + offset_s)::BIGINT AS local_s
    FROM counted ASOF JOIN clock ON quarter * 900 >= clock.from_s
)
-- 1970 began on a Thursday; a week has 168 hours.
SELECT quarter::INTEGER AS quarter, coalesce(bin, 0)::INTEGER AS bin,
       ((local_s // 3600 + 72) % 168)::INTEGER AS cell,
       quarter * 900 - local_s % 3600 AS hour_s
FROM local ASOF LEFT JOIN bins ON quarter * 900 >= bins.edge_s

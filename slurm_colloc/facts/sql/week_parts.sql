-- A share may be seen on more GPUs than it has.
WITH hourly AS (
    SELECT run, cell, hour_s, sum(util_us) / 1e6 AS util_s,
           sum(CAST(util_fix * unit_gpus / {fix} / 3.6e9 AS DECIMAL(38, 12))) AS util_hours,
           sum(sm_us) / 1e6 AS sm_s, sum(CAST(sm_fix * unit_gpus / {fix} / 3.6e9 AS DECIMAL(38, 12))) AS sm_hours
    FROM cut GROUP BY run, cell, hour_s
),
worth AS (
    SELECT r.whole, h.cell, h.util_s, h.sm_s, gpus * hours / (devices * span_s) AS rate,
           devices * (least(to_s, hour_s + 3600) - greatest(from_s, hour_s)) AS device_s,
           rate * least(util_s, device_s) AS util_of, rate * least(sm_s, device_s) AS sm_of,
           least(util_hours::DOUBLE, util_of) AS util_used,
           least(sm_hours::DOUBLE * coalesce(gpus / nullif(blocked, 0), 1), sm_of) AS sm_used
    FROM hourly h JOIN runs r USING (run) WHERE gpus IS NOT NULL
)
SELECT cell, (sum(util_of::DECIMAL(38, 18)) FILTER (whole))::DOUBLE AS util_measured,
       (sum(util_used::DECIMAL(38, 18)) FILTER (whole AND util_s > 0))::DOUBLE AS util_used,
       sum(sm_of::DECIMAL(38, 18))::DOUBLE AS sm_measured,
       (sum(sm_used::DECIMAL(38, 18)) FILTER (sm_s > 0))::DOUBLE AS sm_used
FROM worth GROUP BY cell

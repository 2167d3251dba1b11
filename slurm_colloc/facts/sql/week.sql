-- The use of each hour of the week. What began and ended in a quarter of an hour counts there for the rest of it, and
-- all through those that follow.
WITH rates AS (
    SELECT from_s, to_s, (allocated / span_s)::DECIMAL(38, 18) AS rate
    FROM usage WHERE allocated IS NOT NULL AND span_s > 0
),
turns AS (
    SELECT quarter::INTEGER AS quarter, sum(rate) AS rate,
           sum((rate::DOUBLE * ((quarter + 1) * 900 - at_s))::DECIMAL(38, 12)) AS there
    FROM (SELECT floor(from_s / 900) AS quarter, from_s AS at_s, rate FROM rates
          UNION ALL SELECT floor(to_s / 900), to_s, -rate FROM rates)
    GROUP BY ALL
),
allocated AS (
    SELECT cell, sum(greatest(0, least((quarter + 1) * 900, $until, $so_far) - greatest(quarter * 900, $since))) / 3600
               AS hours,
           sum(coalesce(there, 0) + (900 * before)::DECIMAL(38, 12))::DOUBLE AS gpu_hours
    FROM (SELECT cell, quarter, there, coalesce(sum(rate) OVER (ORDER BY quarter ROWS BETWEEN UNBOUNDED PRECEDING
                                                                AND 1 PRECEDING), 0)::DOUBLE AS before
          FROM quarters LEFT JOIN turns USING (quarter))
    GROUP BY cell
),
seen AS (
    SELECT cell, sum(util_measured::DECIMAL(38, 18))::DOUBLE AS util_measured,
           sum(util_used::DECIMAL(38, 18))::DOUBLE AS util_used,
           sum(sm_measured::DECIMAL(38, 18))::DOUBLE AS sm_measured, sum(sm_used::DECIMAL(38, 18))::DOUBLE AS sm_used
    FROM week_parts GROUP BY cell
)
SELECT cell // 24 AS weekday, cell % 24 AS hour, hours, greatest(0, gpu_hours) / hours AS allocated_gpus,
       coalesce(sm_measured, 0) / hours AS sm_measured_gpus, sm_used / hours AS sm_used_gpus,
       coalesce(util_measured, 0) / hours AS util_measured_gpus, util_used / hours AS util_used_gpus
FROM allocated LEFT JOIN seen USING (cell) WHERE hours > 0 ORDER BY cell

-- Of runs with several whole GPUs those that were never used; ``fewer`` where each of them was seen for long enough.
SELECT run, count(*) FILTER (idle)::DOUBLE AS idle_units, sum(known_us) FILTER (idle) / 3.6e9 AS idle_units_hours,
       min(100 * least(1, known_us / 1e6 / nullif(span_s, 0))) FILTER (idle) AS idle_units_pct,
       count(DISTINCT node) AS unit_nodes,
       count(*) = any_value(devices) AND idle_units < any_value(devices) AND idle_units_pct >= {least_pct} AS fewer
FROM units_of_several JOIN runs USING (run) GROUP BY run HAVING idle_units > 0

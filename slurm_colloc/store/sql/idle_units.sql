-- Of runs with several GPUs those that were never used.
SELECT run, count(*)::DOUBLE AS idle_units, sum(known_us) / 3.6e9 AS idle_units_hours,
       min(100 * least(1, known_us / 1e6 / nullif(span_s, 0))) AS idle_units_pct
FROM units_of_several JOIN runs USING (run) WHERE idle GROUP BY run

SELECT run, bin, sum(util_us)::BIGINT AS util_us,
       sum(CAST(util_fix * unit_gpus / {fix} / 3.6e9 AS DECIMAL(38, 12)))::DOUBLE AS util_hours,
       sum(sm_us)::BIGINT AS sm_us,
       sum(CAST(sm_fix * unit_gpus / {fix} / 3.6e9 AS DECIMAL(38, 12)))::DOUBLE AS sm_hours
FROM cut GROUP BY run, bin

-- A run's figures by bin: the allocated by its time, the measured by its samples' time, the used by what they say; of a
-- run that only a mean is known of, all by its time. Each is the figure up to the end of the bin less that up to its
-- begin, both rounded, so that the bins add up to the run.
WITH by_time AS (
    SELECT u.*, bin, (least(to_s, b.until_s) - from_s) / span_s AS until_part,
           (greatest(from_s, b.since_s) - from_s) / span_s AS since_part
    FROM (SELECT u.*, unnest(range(first.bin, last.bin + 1))::INTEGER AS bin
          FROM (SELECT run, from_s, to_s, span_s, by_mean, allocated, util_measured, util_used FROM usage) u
          JOIN quarters first ON first.quarter = floor(from_s / 900)::INTEGER
          JOIN quarters last ON last.quarter = ceil(to_s / 900)::INTEGER - 1
          WHERE allocated IS NOT NULL AND span_s > 0) u
    JOIN bins b USING (bin)
),
-- Most runs are in one bin, which has all of theirs.
several AS (SELECT run FROM sampled GROUP BY run HAVING count(*) > 1),
so_far AS (
    SELECT run, bin, util_us, sm_us,
           coalesce(sum(util_us) OVER before / nullif(sum(util_us) OVER whole, 0), 0)::DOUBLE AS util_us_until,
           coalesce((sum(util_us) OVER before - util_us) / nullif(sum(util_us) OVER whole, 0), 0)::DOUBLE
               AS util_us_before,
           coalesce(sum(util_hours) OVER before / nullif(sum(util_hours) OVER whole, 0), 0)::DOUBLE AS util_hours_until,
           coalesce((sum(util_hours) OVER before - util_hours) / nullif(sum(util_hours) OVER whole, 0), 0)::DOUBLE
               AS util_hours_before,
           coalesce(sum(sm_us) OVER before / nullif(sum(sm_us) OVER whole, 0), 0)::DOUBLE AS sm_us_until,
           coalesce((sum(sm_us) OVER before - sm_us) / nullif(sum(sm_us) OVER whole, 0), 0)::DOUBLE AS sm_us_before,
           coalesce(sum(sm_hours) OVER before / nullif(sum(sm_hours) OVER whole, 0), 0)::DOUBLE AS sm_hours_until,
           coalesce((sum(sm_hours) OVER before - sm_hours) / nullif(sum(sm_hours) OVER whole, 0), 0)::DOUBLE
               AS sm_hours_before
    FROM sampled SEMI JOIN several USING (run)
    WINDOW whole AS (PARTITION BY run), before AS (PARTITION BY run ORDER BY bin ROWS UNBOUNDED PRECEDING)
),
cut_samples AS (
    SELECT run, bin, util_us, sm_us, 1::DOUBLE AS util_us_until, 0::DOUBLE AS util_us_before,
           1::DOUBLE AS util_hours_until, 0::DOUBLE AS util_hours_before, 1::DOUBLE AS sm_us_until,
           0::DOUBLE AS sm_us_before, 1::DOUBLE AS sm_hours_until, 0::DOUBLE AS sm_hours_before
    FROM sampled ANTI JOIN several USING (run)
    UNION ALL FROM so_far
)
SELECT run, bin,
       (allocated * until_part)::DECIMAL(38, 18) - (allocated * since_part)::DECIMAL(38, 18) AS allocated,
       if(by_mean AND util_used IS NOT NULL,
          (util_measured * until_part)::DECIMAL(38, 18) - (util_measured * since_part)::DECIMAL(38, 18), NULL)
           AS util_measured,
       if(by_mean, (util_used * until_part)::DECIMAL(38, 18) - (util_used * since_part)::DECIMAL(38, 18), NULL)
           AS util_used,
       NULL::DECIMAL(38, 18) AS sm_measured, NULL::DECIMAL(38, 18) AS sm_used
FROM by_time
UNION ALL
SELECT run, bin, NULL,
       (util_measured * util_us_until)::DECIMAL(38, 18) - (util_measured * util_us_before)::DECIMAL(38, 18),
       if(util_us > 0,
          (util_used * util_hours_until)::DECIMAL(38, 18) - (util_used * util_hours_before)::DECIMAL(38, 18), NULL),
       (sm_measured * sm_us_until)::DECIMAL(38, 18) - (sm_measured * sm_us_before)::DECIMAL(38, 18),
       if(sm_us > 0, (sm_used * sm_hours_until)::DECIMAL(38, 18) - (sm_used * sm_hours_before)::DECIMAL(38, 18), NULL)
FROM cut_samples JOIN (
    SELECT run, if(util_used IS NULL, 0, util_measured) AS util_measured, util_used,
           if(sm_used IS NULL, 0, sm_measured) AS sm_measured, sm_used
    FROM usage) USING (run)

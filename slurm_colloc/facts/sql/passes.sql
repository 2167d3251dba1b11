-- Readings of runs as csub's evidence has them: all devices of a node at one time are one pass.
CREATE OR REPLACE TEMP TABLE passes AS
WITH parts AS (
    -- A split among neighbours is good enough for a report, not for sizing the next run. Who reads a whole GPU says who
    -- had it, not who else, so that with a share of it nobody knows; and the first reading may be of before the run.
    SELECT r.run, s.*, s.method = '{readings}' AS is_reading,
           s.method = '{measured}' OR is_reading AND NOT regexp_matches(r.gres, 'gres/(mps|shard)')
               AND s.at_s - greatest(s.interval_s, {own_s}) >= r.start_s AS alone,
           if(alone, coalesce(s.sm_active_pct, s.gpu_util_pct) * s.whole_sm_part, NULL) AS value,
           if(s.method = '{measured}', coalesce(s.gr_active_pct, s.gpu_util_pct), NULL) AS busy,
           if(is_reading AND NOT alone, NULL, s.gpu_mem_used_mib) AS mib,
           least(s.at_s, r.last_s) - greatest(s.at_s - s.interval_s, r.start_s) AS seconds
    FROM shares s JOIN (
        SELECT run, cluster, job_id_raw, start_s, last_s, gres FROM runs
        WHERE start_s < $day_until AND last_s > $day_since
    ) r ON r.job_id_raw = s.job_id AND r.cluster = s.cluster
    WHERE s.at_s > r.start_s AND s.at_s - s.interval_s < r.last_s AND s.at_s <= r.last_s
),
units AS (
    SELECT run, node, uuid, at_s, sum(seconds) AS interval_s, max(gpu_model) AS gpu_model, max(profile) AS profile,
           max(mib) AS mib,
           sum(seconds) FILTER (value IS NOT NULL) AS alone_s, sum(seconds) FILTER (value > 0) AS ran_s,
           coalesce(sum(value * seconds) / nullif(alone_s, 0), max(value)) AS sm,
           CASE WHEN count(*) = count(dram_active_pct) AND bool_and(alone)
                THEN coalesce(sum(dram_active_pct * seconds) / nullif(sum(seconds), 0), max(dram_active_pct))
                END AS dram,
           sum(seconds) FILTER (value > 0 AND busy IS NOT NULL) AS busy_s,
           sum(busy * seconds) FILTER (value > 0) AS busy_pct_s,
           bool_or(sm_active_pct IS NULL AND gpu_util_pct IS NOT NULL) AS sm_is_bound,
           bool_or(is_reading) AS is_reading
    FROM parts GROUP BY run, node, uuid, at_s
)
SELECT run, node, at_s, max(interval_s) AS interval_s, max(gpu_model) AS gpu_model, max(profile) AS profile,
       count(*) AS devices, CASE WHEN count(*) = count(mib) THEN sum(mib) END AS mib,
       CASE WHEN count(*) = count(sm) THEN sum(sm) END AS sm, max(alone_s) AS alone_s, max(ran_s) AS ran_s,
       CASE WHEN count(*) = count(busy_s) THEN max(busy_s) END AS busy_s,
       CASE WHEN count(*) = count(busy_s) THEN max(busy_pct_s) END AS busy_pct_s,
       bool_or(sm_is_bound) AS sm_is_bound, bool_or(is_reading) AS is_reading,
       CASE WHEN count(*) = count(dram) THEN max(dram) END AS dram
FROM units GROUP BY run, node, at_s

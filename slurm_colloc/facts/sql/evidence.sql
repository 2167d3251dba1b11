-- What a day's passes of a run come to, by node.
WITH peaks AS (SELECT run, node, max(mib) AS most_mib FROM passes GROUP BY run, node),
host_use AS (
    SELECT r.run, h.node, max(h.host_mem_mib) AS host_mem_mib FROM hosts h JOIN runs r
      ON r.job_id_raw = h.job_id AND r.cluster = h.cluster
     AND h.at_s > r.start_s AND h.at_s - h.interval_s < r.last_s
    GROUP BY r.run, h.node
)
SELECT run, node, max(gpu_model) AS gpu_model, max(profile) AS profile, max(devices) AS devices, count(*) AS passes,
       sum(interval_s) AS sampled_s, max(mib)::BIGINT AS peak_mib, min(at_s) FILTER (mib > 0) AS held_since_s,
       min(at_s) FILTER (mib > 0 AND mib * 1.01 >= most_mib) AS peak_since_s,
       sum(alone_s) FILTER (sm IS NOT NULL) AS sm_s, sum(ran_s) FILTER (sm IS NOT NULL) AS sm_ran_s,
       sum(sm * alone_s) AS sm_pct_s, min(sm) AS sm_least_pct, bool_or(sm_is_bound) AS sm_is_bound,
       bool_or(is_reading) AS is_reading, count(sm) AS sm_passes, sum(sm) AS sm_sum_pct, sum(sm * sm) AS sm_sum_pct2,
       max(host_mem_mib) AS host_mem_mib, sum(busy_s) AS busy_s, sum(busy_pct_s) AS busy_pct_s
FROM passes JOIN peaks USING (run, node) LEFT JOIN host_use USING (run, node) GROUP BY run, node

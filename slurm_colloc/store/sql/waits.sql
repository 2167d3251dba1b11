-- A job of many GPUs waits longer: only those that got one, or shares of one, are like those that csub places.
WITH began AS (
    SELECT partition, start_s - coalesce(eligible_s, submit_s) AS wait_s,
           CASE WHEN regexp_full_match(gres, '(gres/gpu=1,)?gres/gpu:[^=,]+=1(,gres/gpu=1)?')
                THEN regexp_extract(gres, 'gpu:[^=,]+')
                WHEN gres = 'gres/gpu=1' THEN 'gpu'
                WHEN regexp_full_match(gres, '(,?gres/(mps|shard)(:[^=,]+)?=[0-9]+)+')
                THEN regexp_extract(gres, 'mps|shard') END AS kind
    FROM allocations
    WHERE cluster = $cluster AND start_s > $since AND start_s <= $until AND submit_s <= start_s
)
SELECT partition, kind, quantile_cont(wait_s, 0.5), quantile_cont(wait_s, 0.9), count(*)
FROM began WHERE kind IS NOT NULL GROUP BY ALL HAVING count(*) >= $least

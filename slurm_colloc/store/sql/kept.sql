-- What stays of the rows ``old`` beside those that were taken. Beside a runaway that is what was seen of it before: up
-- to then it ran.
SELECT * FROM {old} o WHERE NOT EXISTS (
    SELECT 1 FROM taken t WHERE o.cluster = t.cluster AND o.job_id_raw = t.job_id_raw
    AND o.start_s IS NOT DISTINCT FROM t.start_s AND (
        t.start_s IS NOT NULL OR o.submit_s IS NOT DISTINCT FROM t.submit_s)
    AND (t.state != '{runaway}' OR o.state = '{runaway}'))

-- What a rule finds, by subject (a user, a node), those first of which most GPU-hours are.
WITH counted AS (
    SELECT cluster, {subject} AS subject, {why} AS why, count(*) AS rows
    FROM {source} WHERE {scope} GROUP BY ALL
),
totals AS (
    SELECT coalesce(sum(rows), 0) AS rows_in, coalesce(sum(rows) FILTER (why IS NULL), 0) AS rows_judged FROM counted
),
excluded AS (
    SELECT cluster, subject, map_from_entries(list((why, rows) ORDER BY rows DESC, why)) AS excluded
    FROM counted WHERE why IS NOT NULL GROUP BY cluster, subject
),
marked AS (
    SELECT *, {subject} AS subject, coalesce(({found}), false) AS found
    FROM {source} WHERE ({scope}) AND ({judged})
),
hours AS (SELECT *, if(found, coalesce(({hours})::DOUBLE, 0), 0) AS found_hours FROM marked),
subjects AS (
    SELECT cluster, subject AS name, max("user") AS "user", count(*) AS judged, count(*) FILTER (found) AS found,
           sum(found_hours::DECIMAL(38, 12))::DOUBLE AS gpu_hours,
           (min({coverage}) FILTER (found))::DOUBLE AS coverage_pct,
           list_sort(list_distinct(flatten(list(DISTINCT methods) FILTER (found)))) AS methods,
           -- Which runs, whatever their order.
           to_hex(bit_xor(md5_number_lower(run)) FILTER (found)) AS evidence,
           max_by({'job_id': job_id, 'job_name': job_name, 'gres': shown, 'partition': "partition",
                   'start_s': start_s::DOUBLE, 'gpu_hours': found_hours, 'account': account},
                  (found_hours, -start_s, job_id), {most}) FILTER (found) AS worst,
           ({label})::VARCHAR AS label,
           max(if(end_s IS NULL, to_s - coalesce(unseen_s, 0), start_s)) FILTER (found)::DOUBLE AS newest_s,
           {figures} AS figures
    FROM hours GROUP BY cluster, subject HAVING count(*) FILTER (found) > 0
)
SELECT t.rows_in, t.rows_judged, e.excluded, s.*
FROM totals t LEFT JOIN subjects s ON true LEFT JOIN excluded e ON e.cluster = s.cluster AND e.subject = s.name
ORDER BY s.gpu_hours DESC, s.cluster, s.name

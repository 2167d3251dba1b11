-- The runs of the window. ``run`` is a run's number here, by which the parts of days are joined to it: joins by three
-- names cost more. sacct gives the length of suspensions, not their place: they are spread evenly over the run.
WITH picked AS NOT MATERIALIZED ({picked}),
ends AS NOT MATERIALIZED (
    SELECT p.*, coalesce(p.end_s, least($now, p.ingested_s, o.next_s)) AS last_s,
           if(d.text IS NULL, '', p.node_list) AS place
    FROM picked p LEFT JOIN open o USING (cluster, job_id_raw, start_s) LEFT JOIN placed d ON d.text = p.gres
    WHERE p.end_s IS NOT NULL OR o.ended IS NOT true
)
SELECT {number} AS run, e.* EXCLUDE (node_list, place), w.* EXCLUDE (text, place),
       if(contains(node_list, ',') OR contains(node_list, '['), '(several nodes)', node_list) AS on_node,
       -- A share that is seen to use more than it was given of a GPU.
       if(NOT whole AND blocked IS NULL, 100 * gpus, 100) AS most_pct,
       greatest(start_s, $since)::DOUBLE AS from_s, least(last_s, $until)::DOUBLE AS to_s,
       to_s - from_s AS span_s,
       span_s * greatest(0, 1 - coalesce(suspended_s / nullif(last_s - start_s, 0), 0)) / 3600 AS hours
FROM ends e JOIN equivalents w ON w.text = e.gres AND w.place = e.place
WHERE (last_s > $since OR start_s >= $since) AND last_s >= start_s

-- The runs by the columns that rules use; one that goes on behind the window's end runs there.
SELECT {columns}, job_id_raw || '@' || start_s AS run
FROM (
    SELECT * REPLACE (if(end_s > to_s, NULL, end_s) AS end_s, if(end_s > to_s, 'RUNNING', state) AS state),
           {strong} AS strong,
           coalesce(start_s >= csub_since_s, false) AS csub_there
    FROM usage LEFT JOIN node_shapes USING (cluster, kind, "partition") LEFT JOIN csub_since USING (cluster)
    LEFT JOIN idle_units USING (run) LEFT JOIN audited_fits USING (run)
)

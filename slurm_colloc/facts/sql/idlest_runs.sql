-- The runs of each group with most idle GPU-hours. Only those that may be among them are sorted.
WITH idle AS (
    SELECT {key} AS name, job_id, job_name, shown, allocated, start_s, cluster,
           coalesce(sm_measured - sm_used, util_measured - util_used) AS hours
    FROM {runs} WHERE allocated IS NOT NULL AND coalesce(sm_measured - sm_used, util_measured - util_used) > 0
),
least_of AS (SELECT name, list_min(max(hours, {most})) AS least_hours FROM idle GROUP BY name)
SELECT name, job_id, job_name, shown AS gres, allocated AS allocated_gpu_hours, hours AS idle_gpu_hours
FROM idle JOIN least_of USING (name) WHERE hours >= least_hours
QUALIFY row_number() OVER (PARTITION BY name ORDER BY hours DESC, job_id, cluster, start_s) <= {most}
ORDER BY name, hours DESC, job_id, cluster, start_s

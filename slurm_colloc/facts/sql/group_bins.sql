-- What the runs of a group had and used in each bin.
SELECT name, bin, sum(allocated) AS allocated, sum(util_measured) AS util_measured, sum(util_used) AS util_used,
       sum(sm_measured) AS sm_measured, sum(sm_used) AS sm_used
FROM aggregated.run_bins JOIN (SELECT run, {key} AS name FROM {runs}) USING (run) GROUP BY name, bin

-- What is to be said of each run of whole GPUs, by facts alone: why no piece is named, or the first step of its ladder
-- that holds it; how many of several GPUs it never used, and the GPU-hours of GPUs that it never used.
WITH ladders AS (
    SELECT ladder, list(
        {'unit': unit, 'gpus': gpus, 'most_mib': most_mib, 'most_sm_pct': most_sm_pct, 'place': place}
        ORDER BY step
    ) AS steps
    FROM fit_steps GROUP BY ladder
),
held AS (
    SELECT u.*, m.sm_pct, i.idle_units, i.fewer, i.unit_nodes,
           CASE WHEN never_used THEN 'never-used'
                WHEN devices != 1 THEN 'not-one-gpu'
                WHEN state != '{completed}' THEN 'not-completed'
                WHEN peak_mib IS NULL OR sm_pct IS NULL OR m.is_bound AND NOT p.tells_sm THEN 'not-measured-alone'
                WHEN 100 * alone_s < {least_pct} * elapsed_s THEN 'too-little-sampled' END AS why,
           -- Asked of those alone of which it is said.
           CASE WHEN why IS NULL
                THEN list_filter(l.steps, lambda one: one.most_mib >= peak_mib AND one.most_sm_pct >= sm_pct)[1]
                END AS step
    FROM (SELECT run, state, devices, allocated, peak_mib, {never_used} AS never_used FROM usage
          WHERE whole AND allocated IS NOT NULL AND {part}) u
    LEFT JOIN measured_alone m USING (run)
    LEFT JOIN fit_places p ON p."partition" = m."partition" AND p.account = m.account AND p.qos = m.qos
                          AND p.shown = m.shown AND p.model = m.model
    LEFT JOIN ladders l USING (ladder) LEFT JOIN idle_units i USING (run)
)
SELECT run, if(why IS NULL AND step.unit IS NOT NULL AND step.gpus IS NULL, 'size-not-known', why) AS fit_why,
       fit_why IS NULL AS fit_judged,
       if(fit_judged, step.unit, NULL) AS fit_unit, if(fit_judged, step.gpus, NULL) AS fit_gpus,
       if(fit_judged, step.place, NULL) AS fit_place,
       if(fit_judged, step.most_mib, NULL) AS fit_most_mib, if(fit_judged, sm_pct, NULL) AS fit_sm_pct,
       coalesce(allocated * greatest(0, 1 - fit_gpus), 0) AS fit_freed, devices AS asked_gpus, unit_nodes,
       if(fewer, idle_units, NULL) AS unused_gpus,
       CASE WHEN never_used THEN allocated WHEN fewer THEN allocated * idle_units / devices ELSE 0 END AS spare
FROM held

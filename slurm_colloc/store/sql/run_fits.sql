-- The first step of its ladder that holds a run.
WITH ladders AS (
    SELECT ladder, list(
        {'unit': unit, 'gpus': gpus, 'most_mib': most_mib, 'most_sm_pct': most_sm_pct} ORDER BY step
    ) AS steps
    FROM fit_steps GROUP BY ladder
),
held AS (
    SELECT run, m.sm_pct IS NOT NULL AND u.peak_mib IS NOT NULL AS measured,
           list_filter(l.steps, lambda one: one.most_mib >= u.peak_mib AND one.most_sm_pct >= m.sm_pct)[1] AS step,
           m.sm_pct
    FROM (SELECT run, peak_mib FROM usage WHERE whole AND allocated IS NOT NULL AND {part}) u
    LEFT JOIN measured_alone m USING (run)
    LEFT JOIN fit_places p ON p."partition" = m."partition" AND p.account = m.account AND p.qos = m.qos
                          AND p.shown = m.shown AND p.model = m.model
    LEFT JOIN ladders l USING (ladder)
)
SELECT run, measured AND (step IS NULL OR step.gpus IS NOT NULL) AS fit_judged,
       if(fit_judged, step.unit, NULL) AS fit_unit, if(fit_judged, step.gpus, NULL) AS fit_gpus,
       if(fit_judged, step.most_mib, NULL) AS fit_most_mib, if(fit_judged, sm_pct, NULL) AS fit_sm_pct
FROM held

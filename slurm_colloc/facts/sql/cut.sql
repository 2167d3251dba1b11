-- What runs used by hour, in bins and hours of the week.
SELECT run, unit_gpus, bin, cell, local_s AS hour_s, if(part = 1, util_us, round(util_us * part))::BIGINT AS util_us,
       round(coalesce(util_fix, 0) * part)::HUGEINT AS util_fix, if(part = 1, sm_us, round(sm_us * part))::BIGINT AS sm_us,
       round((coalesce(sm_fix, 0) - coalesce(beyond_fix, 0)) * part)::HUGEINT AS sm_fix
FROM {units} JOIN hours USING (hour_s) WHERE us > 0

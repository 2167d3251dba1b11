-- What samples say of a run, by bin.
SELECT run, bin, sum(util_us)::BIGINT AS util_us, sum(sm_us)::BIGINT AS sm_us,
       -- What a suspended run was allocated is spread evenly, and so is what it used.
       sum(if(suspended_s > 0, util_us, util_hours)::DECIMAL(38, 12)) AS util_hours,
       sum(if(suspended_s > 0, sm_us, sm_hours)::DECIMAL(38, 12)) AS sm_hours
FROM bin_parts JOIN (SELECT run, suspended_s FROM usage WHERE allocated IS NOT NULL AND NOT by_mean) USING (run)
GROUP BY run, bin

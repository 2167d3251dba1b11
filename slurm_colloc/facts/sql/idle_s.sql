-- For how long all of a run's devices were surely idle since its last activity: as if all that no reading tells of any
-- of them lay in there, at another time for each, and all of its suspensions.
CASE WHEN tail_s IS NOT NULL AND allocated > 0
     THEN greatest(0, tail_s - suspended_s - devices * greatest(0, span_s * (1 - {counted} / allocated) - unseen_s)) END

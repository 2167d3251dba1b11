-- The readings of runs that may be inside the window.
SELECT * FROM readings WHERE start_s < $until AND (end_s IS NULL OR end_s > $since OR start_s >= $since)
UNION ALL FROM outdated

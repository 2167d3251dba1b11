-- The runs near a day: of a month of them each of its queries would read all.
SELECT run, cluster, job_id_raw, start_s, from_s, to_s, last_s, most_pct
FROM runs WHERE devices > 0 AND from_s < $day_until AND to_s > $day_since

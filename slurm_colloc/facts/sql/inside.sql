-- What of the pieces of a day's rows lies inside a run and the window. A reading after the run's end may be the next
-- run's: it counts for sums as far as it reaches into the run, and for no peak.
SELECT r.run, r.most_pct, s.*, s.ends AND s.at_s <= r.to_s AS inside, s.at_s <= r.last_s AS in_run,
       greatest(s.at_s - s.interval_s, r.from_s) AS began_s,
       round(greatest(0, least(s.piece_to_s, r.to_s) - greatest(s.piece_from_s, r.from_s)) * 1e6)::BIGINT AS us
FROM ({pieces}) s JOIN {runs} r ON s.job_id = r.job_id_raw AND s.cluster = r.cluster
WHERE s.at_s > r.from_s AND s.at_s - s.interval_s < r.to_s

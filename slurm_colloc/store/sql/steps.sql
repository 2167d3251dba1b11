-- What Slurm itself saw in the steps of runs with GPUs.
SELECT t.rowid, t.gres, s.began_s, s.ended_s, if(regexp_matches(t.node_list, '[,[]'), 2, 1), s."{usage}"
FROM (SELECT r.*, {start} AS began_s, {end} AS ended_s FROM ({steps}) r{zones}) s
JOIN taken t ON t.job_id_raw = split_part(coalesce(nullif(s."JobIDRaw", ''), s."JobID"), '.', 1)
     AND s.began_s >= t.start_s AND (t.end_s IS NULL OR s.began_s <= t.end_s)
WHERE contains(s."JobID", '.') AND contains(s."{usage}", 'gres/gpu') AND t.gres != ''
ORDER BY t.rowid

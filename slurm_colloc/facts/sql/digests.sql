-- What facts of a day depend on of the runs known: facts that were made of others are read no more.
SELECT day, cluster, count(*) || ':' || bit_xor(hash(
           job_id_raw, start_s, greatest(start_s, began_s), least(last_s, began_s + 86400)::DOUBLE, most_pct)) AS digest
FROM runs JOIN digest_days ON start_s < began_s + 86400 AND last_s > began_s
WHERE devices > 0 GROUP BY day, cluster

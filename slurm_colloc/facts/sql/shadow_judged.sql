-- What a piece would have come to for each of these runs, or why nobody can say it. Without its end a run's peak is not
-- known, and of one that began earlier only a part lies in the window.
SELECT *, CASE WHEN gpus IS NULL THEN 'site.toml has no such piece for the partition, or not its size'
               WHEN start_s < $since THEN 'it began before the window'
               WHEN end_s IS NULL OR end_s > $until THEN 'it had not ended'
               WHEN devices != 1 OR allocated IS NULL THEN 'it did not get one GPU'
               WHEN peak_mib > mem_mib THEN NULL
               WHEN by_mean AND end_s - start_s < {shortest_s} THEN 'it was too short for others to see its peak'
               WHEN peak_mib IS NULL THEN 'nobody measured its peak of GPU memory'
               WHEN state != '{completed}' THEN 'it did not complete, so that its peak is none'
               WHEN NOT by_mean AND coverage_pct < {covered_pct} THEN 'less than {covered_pct} % of it was sampled'
          END AS why,
       why IS NULL AND peak_mib > mem_mib AS over, why IS NULL AND NOT over AS fitted,
       if(gpus IS NULL, '(not in site.toml)', concat(would, ' in ' || nullif(would_partition, ''))) AS name,
       -- greatest() passes over what is NULL; of a job of which nothing is known it is taken that it fills the SMs.
       coalesce(greatest(least(100, sm_active_q95_pct), 100 * sm_mean), 100) AS active_pct,
       gpus * hours * if(sm_part IS NULL, 1, {upper_on_slice}) AS piece_hours,
       -- Nobody waits less than nothing, and of a wait of weeks it is not believed that csub wrote it.
       if(fitted AND would_wait_s BETWEEN 0 AND {longest_wait_s}, waited_s - would_wait_s, NULL) AS earlier_s
FROM (SELECT s.*, p.gpus, p.sm_part, p.enforced,
             -- An MPS client is limited to what it was sized for, which is less than its share.
             if(p.enforced AND p.sm_part IS NULL, least(p.mem_mib, coalesce(s.would_memory_mib, p.mem_mib)), p.mem_mib)
               AS mem_mib
      FROM shadowed s LEFT JOIN pieces p ON p.would = s.would AND p.place = s.place AND s.cluster = $cluster
      WHERE s.would != '')

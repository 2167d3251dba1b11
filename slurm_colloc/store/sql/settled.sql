-- Of two moments that a local time may mean, those that fit the length of the run; where both do, none. A run that has
-- not ended is as long from either: of the two the later counts from which it ran when the text was written.
SELECT * EXCLUDE (fits), len(fits) != 1 AND (Start_other IS NOT NULL OR End_other IS NOT NULL) AS twice,
       fits[1][1] AS start_s, fits[1][2] AS end_s
FROM (SELECT *, CASE
          WHEN Start_other IS NULL AND End_other IS NULL THEN [[Start_at, End_at]]
          WHEN End_at IS NULL AND elapsed_s IS NOT NULL
          THEN [[if(Start_other + elapsed_s + suspended_s <= coalesce($written, $now), Start_other, Start_at), NULL]]
          ELSE list_filter(list_distinct(
              [[Start_at, End_at], [coalesce(Start_other, Start_at), End_at],
               [Start_at, coalesce(End_other, End_at)],
               [coalesce(Start_other, Start_at), coalesce(End_other, End_at)]]),
              lambda pair: pair[2] - pair[1] - suspended_s = elapsed_s)
          END AS fits FROM timed)

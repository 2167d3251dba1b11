-- Which bin and which hour of the week an hour of UTC is in: more than one where clocks are half an hour off.
SELECT quarter // 4 * 3600 AS hour_s, bin, cell, hour_s AS local_s,
       count(*) / sum(count(*)) OVER (PARTITION BY quarter // 4) AS part
FROM quarters GROUP BY quarter // 4, bin, cell, quarters.hour_s

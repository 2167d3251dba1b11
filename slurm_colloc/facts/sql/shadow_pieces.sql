-- What the runs of each piece come to, and all of them. Each user has one voice in what is earlier: how long a piece
-- would have been waited for is the user's own word.
WITH voices AS (
    SELECT if(grouping(name) = 1, NULL, name) AS whose, median(earlier_s) AS earlier_s
    FROM judged GROUP BY GROUPING SETS ((name, "user"), ("user"))
)
SELECT if(grouping(name) = 1, 'total', name) AS piece, count(*) AS runs, count(*) FILTER (fitted) AS fitted,
       count(*) FILTER (over AND enforced) AS out_of_memory, count(*) FILTER (over AND NOT enforced) AS over_share,
       coalesce((sum(allocated::DECIMAL(38, 12)) FILTER (fitted))::DOUBLE, 0) AS allocated_gpu_hours,
       coalesce((sum(piece_hours::DECIMAL(38, 12)) FILTER (fitted))::DOUBLE, 0) AS piece_gpu_hours,
       coalesce((sum(piece_hours::DECIMAL(38, 12)) FILTER (over))::DOUBLE, 0) AS lost_gpu_hours,
       count(earlier_s) AS waits_known,
       count(earlier_s) FILTER (earlier_s > 0) AS sooner,
       (SELECT median(v.earlier_s) FROM voices v WHERE v.whose IS NOT DISTINCT FROM judged.name) AS earlier_median_s
FROM judged GROUP BY GROUPING SETS ((name), ()) ORDER BY grouping(name), count(*) DESC, name

-- Runs of the window, those without a GPU, the clusters of the others, and how many of these began before it.
SELECT count(*), count(*) FILTER (devices = 0),
       coalesce(list_sort(list(DISTINCT cluster) FILTER (devices > 0)), []),
       count(*) FILTER (devices > 0 AND start_s < from_s)
FROM runs

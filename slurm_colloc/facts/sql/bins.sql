-- The bins that a window is cut into, by number.
SELECT (row_number() OVER (ORDER BY since_s) - 1)::INTEGER AS bin, since_s, until_s
FROM (SELECT unnest($edges[:-2]::DOUBLE[]) AS since_s, unnest($edges[2:]::DOUBLE[]) AS until_s)

-- Rows of {view} with the hour (hour_s) that each is in; one that reaches into several has a row for each of them.
-- ``ends`` is of the hour in which the reading was taken: what is the reading's as a whole counts there.
SELECT *, hour * 3600 AS hour_s, at_s <= (hour + 1) * 3600 AS ends,
       greatest(at_s - interval_s, hour * 3600) AS piece_from_s, least(at_s, (hour + 1) * 3600) AS piece_to_s
FROM (
    SELECT *, unnest(range(least(floor((at_s - interval_s) / 3600)::BIGINT, ceil(at_s / 3600)::BIGINT - 1),
                           ceil(at_s / 3600)::BIGINT)) AS hour
    FROM {view}
)

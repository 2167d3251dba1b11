-- What the texts of a sacct row stand for; NULL of one that is nothing of the kind.
CREATE MACRO is_none(text) AS text IN ('', 'Unknown', 'None', '0');
-- A local time, which says nothing of its zone.
CREATE MACRO is_local(text) AS regexp_full_match(text, '\d\d\d\d-\d\d-\d\dT\d\d:\d\d:\d\d');
CREATE MACRO local_s(text) AS epoch(TRY_CAST(text AS TIMESTAMP))::BIGINT;
-- How far a time that ends in Z, +hh:mm or +hhmm is ahead of UTC.
CREATE MACRO ahead_s(zone) AS if(zone = 'Z', 0,
    if(zone[1] = '-', -1, 1) * (TRY_CAST(zone[2:3] AS BIGINT) * 3600 + TRY_CAST(right(zone, 2) AS BIGINT) * 60));
-- Epoch seconds: digits, ISO with an offset, or ISO of a zone that is ``zone_s`` ahead then.
CREATE MACRO time_s(text, zone_s) AS
    CASE WHEN is_none(text) THEN NULL
         WHEN regexp_full_match(text, '[0-9]{1,11}') THEN TRY_CAST(text AS BIGINT)
         WHEN is_local(text) THEN local_s(text) - zone_s
         WHEN is_local(left(text, 19)) AND regexp_full_match(text[20:], 'Z|[+-]\d\d:?\d\d')
         THEN local_s(left(text, 19)) - ahead_s(text[20:]) END;
-- Why a text is no time, though it says that there is one; ``of_local`` of one that lacks its zone.
CREATE MACRO why_no_time(text, at_s, of_local) AS
    CASE WHEN at_s IS NOT NULL OR is_none(text) THEN NULL
         WHEN is_local(text) AND local_s(text) IS NOT NULL THEN of_local
         ELSE 'time ''' || left(text, 40) || ''' is neither epoch seconds nor ISO 8601' END;
-- Seconds of [days-]hours:minutes:seconds.
CREATE MACRO whole_of(text) AS coalesce(TRY_CAST(text AS BIGINT), 0);
CREATE MACRO parts_s(parts) AS
    ((whole_of(parts.d) * 24 + whole_of(parts.h)) * 60 + whole_of(parts.m)) * 60 + TRY_CAST(parts.s AS BIGINT);
CREATE MACRO duration_s(text) AS
    CASE WHEN coalesce(text, '') IN ('', '00:00:00') THEN 0
         ELSE parts_s(regexp_extract(
             text, '^(?:(\d{1,6})-)?(?:(?:(\d{1,6}):)?(\d{1,6}):)?(\d{1,9})(?:\.\d+)?$', ['d', 'h', 'm', 's'])) END;

# SPDX-License-Identifier: Apache-2.0
"""SQL for the times in rows of sacct text: epoch seconds, ISO 8601 with an offset, or local times of a known zone."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, tzinfo

import duckdb

from slurm_colloc.store.queries import make_rows
from slurm_colloc.store.text_rows import Rows

NO_ZONE = "times without a zone; say which zone with --timezone"
_NEVER = "local time does not exist, because clocks went forward; is --timezone right?"
TWICE = "local time is ambiguous, because clocks went back; export with SLURM_TIME_FORMAT=%s, or with ElapsedRaw"
TIMES = ("Submit", "Start", "End")
_LOCAL = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d"
_DURATION = r"(?:(\d{1,6})-)?(?:(?:(\d{1,6}):)?(\d{1,6}):)?(\d{1,9})(?:\.\d+)?"
AS_READ = "SELECT *, Start_at AS start_s, End_at AS end_s, false AS twice FROM timed"


def zone_joins(names: Sequence[str], zoned: bool) -> str:
    """Return SQL that joins to rows ``r`` what their local minutes are, as ``make_zones`` has it."""
    if not zoned:
        return ""
    return "".join(f' LEFT JOIN zones at_{name} ON at_{name}.minute = left(r."{name}", 16)' for name in names)


def _none(name: str) -> str:
    return f"coalesce(r.\"{name}\", '') IN ('', 'Unknown', 'None', '0')"


def time_of(name: str, zoned: bool) -> str:
    """Return SQL for epoch seconds of a column: digits, ISO with an offset, or ISO of a known zone."""
    text = f'r."{name}"'
    local = f"epoch(TRY_CAST(left({text}, 19) AS TIMESTAMP))::BIGINT"
    sign, hours, minutes = f"if({text}[20] = '-', -1, 1)", f"{text}[21:22]", f"right({text}, 2)"
    offset = (
        f"if({text}[20] = 'Z', 0, {sign} * (TRY_CAST({hours} AS BIGINT) * 3600 + TRY_CAST({minutes} AS BIGINT) * 60))"
    )
    return f"""CASE WHEN {_none(name)} THEN NULL
        WHEN regexp_full_match({text}, '[0-9]{{1,11}}') THEN TRY_CAST({text} AS BIGINT)
        WHEN regexp_full_match({text}, '{_LOCAL}(?:Z|[+-]\\d\\d:?\\d\\d)') THEN {local} - {offset}
        {f"WHEN regexp_full_match({text}, '{_LOCAL}') THEN {local} - at_{name}.offset_s" if zoned else ""} END"""


def later(name: str, zoned: bool) -> str:
    """Return SQL for the other moment that a local time may mean; NULL where it has but one."""
    local = f'epoch(TRY_CAST(r."{name}" AS TIMESTAMP))::BIGINT'
    return (
        f"CASE WHEN at_{name}.later_offset_s IS NOT NULL THEN {local} - at_{name}.later_offset_s END"
        if zoned
        else "NULL"
    )


def time_reason(name: str, zoned: bool) -> str:
    """Return the branches of a CASE that say why a column is no time."""
    text = f'"{name}"'
    unread = f"{name}_at IS NULL AND NOT ({_none(name).replace('r.', '')})"
    local = f"{unread} AND regexp_full_match({text}, '{_LOCAL}') AND TRY_CAST({text} AS TIMESTAMP) IS NOT NULL"
    return f"""WHEN {local} THEN '{_NEVER if zoned else NO_ZONE}'
        WHEN {unread} THEN 'time ''' || left({text}, 40) || ''' is neither epoch seconds nor ISO 8601'"""


def duration(text: str) -> str:
    """Return SQL for the seconds of [days-]hours:minutes:seconds; NULL of what is none."""
    parts = f"regexp_extract({text}, '^{_DURATION}$', ['d', 'h', 'm', 's'])"
    number = "coalesce(TRY_CAST(nullif({}, '') AS BIGINT), 0)"
    of = [number.format(f"{parts}.{part}") for part in "dhms"]
    return f"""CASE WHEN coalesce({text}, '') IN ('', '00:00:00') THEN 0
        WHEN regexp_full_match({text}, '{_DURATION}')
            THEN ((({of[0]} * 24) + {of[1]}) * 60 + {of[2]}) * 60 + {of[3]} END"""


def elapsed() -> str:
    """Return SQL for the seconds that a run has taken, NULL where its row does not say."""
    return f"""coalesce(TRY_CAST("ElapsedRaw" AS BIGINT), CASE WHEN "Elapsed" != '' THEN {duration('"Elapsed"')} END)"""


def make_zones(database: duckdb.DuckDBPyConnection, rows: Rows, zone: tzinfo) -> None:
    """Make the table of what the local minutes in ``rows`` are in ``zone``."""
    times = " UNION ALL ".join(f'SELECT "{name}" AS local FROM rows_in' for name in TIMES)
    minutes = database.execute(
        f"WITH rows_in AS MATERIALIZED ({rows.select(TIMES)}) SELECT DISTINCT left(local, 16) FROM ({times}) "
        f"WHERE regexp_full_match(local, '{_LOCAL}')",
        {"odd": rows.odd},
    ).fetchall()
    found = [(minute, *local_offsets_s(minute, zone)) for (minute,) in minutes]
    make_rows(database, "zones", {"minute": "VARCHAR", "offset_s": "BIGINT", "later_offset_s": "BIGINT"}, found)


def local_offsets_s(minute: str, zone: tzinfo) -> tuple[int | None, int | None]:
    """Return how far a local minute is ahead of UTC, and the other choice where clocks show it twice, else None.

    (None, None) is a minute that clocks leave out, or no minute at all.
    """
    try:
        local = datetime.fromisoformat(minute)
        first, later = (local.replace(tzinfo=zone, fold=fold).utcoffset() or timedelta() for fold in (0, 1))
        shown = (local - first).replace(tzinfo=UTC).astimezone(zone).replace(tzinfo=None)
    except (ValueError, OverflowError):
        return None, None
    if shown != local:
        return None, None
    return int(first.total_seconds()), int(later.total_seconds()) if later != first else None

# SPDX-License-Identifier: Apache-2.0
"""GPU-hours by bins of time and by hour of the week.

Both are cut at multiples of a quarter of an hour, on which the clocks of all zones change and turn to the next hour.
What was sampled is known by the hour of UTC: where a zone is half an hour off, each half counts for half of it.
What a run comes to is split by what of its time, or of its samples, lies in a bin; the parts are differences of
rounded sums so far, so that they add up to the run's figure exactly.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import pairwise
from typing import NamedTuple

from duckdb import DuckDBPyConnection

from slurm_colloc.accounting.parquet import make_rows, named, query
from slurm_colloc.chart_model import TimeUsage, WeekHour

QUARTER_S, _HOUR_S = 900, 3600
# Up to so long a window is cut into hours, and into days; beyond, into weeks.
_HOURS_S, _DAYS_S = 3 * 86_400, 120 * 86_400
_WEEK_HOURS = 7 * 24


class Bins(NamedTuple):
    """How a window is cut: at ``edges_s``, its own among them, and by the local clock of ``zone``.

    ``zone`` has the names that the zone goes by in the window. ``offsets`` are (from when on, seconds that the clock is
    ahead of UTC), the first from before the window on.
    """

    edges_s: tuple[float, ...]
    offsets: tuple[tuple[int, int], ...]
    zone: str


def bins_of(since_s: float, until_s: float, zone: tzinfo | None = None) -> Bins:
    """Return how to cut [since, until): by hours, days or weeks of ``zone`` (None: this machine's), by its length."""
    span_s = until_s - since_s
    hourly = span_s <= _HOURS_S
    days = 0 if hourly else 1 if span_s <= _DAYS_S else 7
    inner = _hours(since_s, until_s) if hourly else _midnights(since_s, until_s, zone, days)
    edges = (since_s, *(at_s for at_s in inner if since_s < at_s < until_s), until_s)
    offsets = tuple(_offsets(since_s, until_s, zone))
    names = (_local(max(since_s, at_s), zone).tzname() or "" for at_s, _ in offsets if at_s < until_s)
    return Bins(edges, offsets, "/".join(dict.fromkeys(names)))


def _local(at_s: float, zone: tzinfo | None) -> datetime:
    return datetime.fromtimestamp(at_s, UTC).astimezone(zone)


def _hours(since_s: float, until_s: float) -> Iterator[float]:
    yield from (float(at_s) for at_s in range(int(since_s // _HOUR_S) * _HOUR_S, int(until_s) + 1, _HOUR_S))


def _midnights(since_s: float, until_s: float, zone: tzinfo | None, days: int) -> Iterator[float]:
    """Yield when local days begin, or every seventh from a Monday on."""
    day = _local(since_s, zone).replace(tzinfo=None, hour=0, minute=0, second=0, microsecond=0, fold=0)
    day -= timedelta(days=day.weekday() if days == 7 else 0)
    while (at_s := _began_s(day, zone)) < until_s:
        yield at_s
        day += timedelta(days=days)


def _began_s(day: datetime, zone: tzinfo | None) -> float:
    """Return the first moment of a local day; where clocks leave midnight out, that in which they do."""
    at = day.replace(tzinfo=zone).timestamp() if zone else day.timestamp()
    return float(at // QUARTER_S * QUARTER_S)


def _offsets(since_s: float, until_s: float, zone: tzinfo | None) -> Iterator[tuple[int, int]]:
    def ahead_s(at_s: int) -> int:
        return int((_local(at_s, zone).utcoffset() or timedelta()).total_seconds())

    days = range(int(since_s // 86_400) * 86_400, int(until_s) + 2 * 86_400, 86_400)
    yield days[0], ahead_s(days[0])
    for before, after in pairwise(days):
        if ahead_s(before) != ahead_s(after):
            changes = range(before + QUARTER_S, after + 1, QUARTER_S)
            changed = next(at_s for at_s in changes if ahead_s(at_s) == ahead_s(after))
            yield changed, ahead_s(changed)


# What bin and which hour of the week (from Monday's first on) a quarter of an hour is in, and when that hour began.
_QUARTERS = f"""
CREATE TEMP TABLE quarters AS
WITH edges AS (SELECT unnest($edges::DOUBLE[]) AS edge_s),
bins AS (SELECT edge_s, row_number() OVER (ORDER BY edge_s) - 1 AS bin FROM edges),
counted AS (SELECT unnest(range(floor($since / {QUARTER_S})::BIGINT, ceil($until / {QUARTER_S})::BIGINT)) AS quarter),
local AS (
    SELECT quarter, (quarter * {QUARTER_S} + offset_s)::BIGINT AS local_s
    FROM counted ASOF JOIN clock ON quarter * {QUARTER_S} >= clock.from_s
)
-- 1970 began on a Thursday.
SELECT quarter::INTEGER AS quarter, coalesce(bin, 0)::INTEGER AS bin,
       ((local_s // {_HOUR_S} + 72) % {_WEEK_HOURS})::INTEGER AS cell,
       quarter * {QUARTER_S} - local_s % {_HOUR_S} AS hour_s
FROM local ASOF LEFT JOIN bins ON quarter * {QUARTER_S} >= bins.edge_s
"""
_BINS = """
CREATE TEMP TABLE bins AS
SELECT (row_number() OVER (ORDER BY since_s) - 1)::INTEGER AS bin, since_s, until_s
FROM (SELECT unnest($edges[:-2]::DOUBLE[]) AS since_s, unnest($edges[2:]::DOUBLE[]) AS until_s)
"""


def make_bins(database: DuckDBPyConnection, bins: Bins) -> None:
    """Make the tables ``bins`` and ``quarters`` by which all is cut."""
    make_rows(database, "clock", {"from_s": "BIGINT", "offset_s": "BIGINT"}, bins.offsets)
    edges = list(bins.edges_s)
    # DuckDB takes what unnest makes for a single row, and would compare each quarter with each edge.
    database.execute("SET asof_loop_join_threshold = 0")
    database.execute(_QUARTERS, {"edges": edges, "since": edges[0], "until": edges[-1]})
    database.execute("RESET asof_loop_join_threshold")
    database.execute(_BINS, {"edges": edges})
    database.execute(f"CREATE TEMP TABLE hours AS {query('hours')}")


# What of a run's use lies in which bin, and of all runs' in which hour of the week.
_TIME_PARTS = {
    "bin_parts": "run BIGINT, bin INTEGER, util_us BIGINT, util_hours DOUBLE, sm_us BIGINT, sm_hours DOUBLE",
    "week_parts": "cell INTEGER, util_measured DOUBLE, util_used DOUBLE, sm_measured DOUBLE, sm_used DOUBLE",
}
_SUM = "sum(({})::DECIMAL(38, 18))"


def make_time_parts(database: DuckDBPyConnection) -> None:
    """Make the tables that ``time_parts`` adds to, empty."""
    for name, columns in _TIME_PARTS.items():
        database.execute(f"CREATE TEMP TABLE {name} ({columns})")


def time_parts(database: DuckDBPyConnection, units: str, fix: int) -> None:
    """Add facts of ``units`` by hour to where they lie in time; percentages there are in 1/``fix``."""
    database.execute(f"CREATE OR REPLACE TEMP TABLE cut AS {query('cut', units=units)}")
    for name in _TIME_PARTS:
        database.execute(f"INSERT INTO {name} {query(name, fix=fix * 100)}")


# A run's figures by bin: the allocated by its time, the measured by its samples' time, the used by what they say; of a
# run that only a mean is known of, all by its time.
_SAMPLED = """
CREATE TEMP TABLE sampled AS
SELECT run, bin, sum(util_us)::BIGINT AS util_us, sum(sm_us)::BIGINT AS sm_us,
       -- What a suspended run was allocated is spread evenly, and so is what it used.
       sum(if(suspended_s > 0, util_us, util_hours)::DECIMAL(38, 12)) AS util_hours,
       sum(if(suspended_s > 0, sm_us, sm_hours)::DECIMAL(38, 12)) AS sm_hours
FROM bin_parts JOIN (SELECT run, suspended_s FROM usage WHERE allocated IS NOT NULL AND NOT by_mean) USING (run)
GROUP BY run, bin
"""
_PIECES = f"""
CREATE TABLE swept.pieces AS
WITH by_time AS (
    SELECT u.*, bin, (least(to_s, b.until_s) - from_s) / span_s AS until_part,
           (greatest(from_s, b.since_s) - from_s) / span_s AS since_part
    FROM (SELECT u.*, unnest(range(first.bin, last.bin + 1))::INTEGER AS bin
          FROM (SELECT run, from_s, to_s, span_s, by_mean, allocated, util_measured, util_used FROM usage) u
          JOIN quarters first ON first.quarter = floor(from_s / {QUARTER_S})::INTEGER
          JOIN quarters last ON last.quarter = ceil(to_s / {QUARTER_S})::INTEGER - 1
          WHERE allocated IS NOT NULL AND span_s > 0) u
    JOIN bins b USING (bin)
),
-- Most runs are in one bin, which has all of theirs.
several AS (SELECT run FROM sampled GROUP BY run HAVING count(*) > 1),
so_far AS (
    SELECT run, bin, util_us, sm_us, {{so_far}}
    FROM sampled SEMI JOIN several USING (run)
    WINDOW whole AS (PARTITION BY run), before AS (PARTITION BY run ORDER BY bin ROWS UNBOUNDED PRECEDING)
),
cut_samples AS (
    SELECT run, bin, util_us, sm_us, {{whole}} FROM sampled ANTI JOIN several USING (run)
    UNION ALL FROM so_far
)
SELECT run, bin, {{allocated}} AS allocated,
       if(by_mean AND util_used IS NOT NULL, {{mean_measured}}, NULL) AS util_measured,
       if(by_mean, {{mean_used}}, NULL) AS util_used,
       NULL::DECIMAL(38, 18) AS sm_measured, NULL::DECIMAL(38, 18) AS sm_used
FROM by_time
UNION ALL
SELECT run, bin, NULL, util_measured, if(util_us > 0, util_used, NULL), sm_measured, if(sm_us > 0, sm_used, NULL)
FROM (SELECT run, bin, util_us, sm_us, {{by_samples}} FROM cut_samples JOIN (
          SELECT run, if(util_used IS NULL, 0, util_measured) AS util_measured, util_used,
                 if(sm_used IS NULL, 0, sm_measured) AS sm_measured, sm_used
          FROM usage) USING (run))
"""
_FIGURES = ("allocated", "util_measured", "util_used", "sm_measured", "sm_used")
_OF = {"util_measured": "util_us", "util_used": "util_hours", "sm_measured": "sm_us", "sm_used": "sm_hours"}


def _between(figure: str, before: str, until: str) -> str:
    """Return SQL for the part of a figure from one fraction of it to the next."""
    return f"(({figure} * ({until}))::DECIMAL(38, 18) - ({figure} * ({before}))::DECIMAL(38, 18))"


def make_pieces(database: DuckDBPyConnection) -> None:
    """Make the table ``pieces`` of what each run had and used in each bin; ``database`` has ``usage``, in a file."""
    so_far: list[str] = []
    for of in _OF.values():
        for name, value in (("until", f"sum({of}) OVER before"), ("before", f"(sum({of}) OVER before - {of})")):
            so_far.append(f"coalesce({value} / nullif(sum({of}) OVER whole, 0), 0)::DOUBLE AS {of}_{name}")
    database.execute(_SAMPLED)
    query = _PIECES.format(
        so_far=", ".join(so_far),
        whole=", ".join(f"1::DOUBLE AS {of}_until, 0::DOUBLE AS {of}_before" for of in _OF.values()),
        by_samples=", ".join(f"{_between(name, f'{of}_before', f'{of}_until')} AS {name}" for name, of in _OF.items()),
        allocated=_between("allocated", "since_part", "until_part"),
        mean_measured=_between("util_measured", "since_part", "until_part"),
        mean_used=_between("util_used", "since_part", "until_part"),
    )
    database.execute(query)
    database.execute("DROP TABLE sampled")


_GROUP_PIECES = f"""
CREATE OR REPLACE TEMP TABLE group_pieces AS
SELECT name, bin, {", ".join(f"sum({name}) AS {name}" for name in _FIGURES)}
FROM swept.pieces JOIN (SELECT run, {{key}} AS name FROM {{runs}}) USING (run) GROUP BY name, bin
"""
_OVER_TIME = f"""
SELECT {{name}} AS name, since_s, until_s,
       {{installed}} * greatest(0, least(until_s, $so_far) - since_s) / 3600 AS installed_gpu_hours,
       -- In a piece of time without a run nothing was allocated, and so nothing measured.
       coalesce(allocated, 0) AS allocated_gpu_hours, coalesce(util_measured, 0) AS util_measured_gpu_hours,
       util_used AS util_used_gpu_hours, coalesce(sm_measured, 0) AS sm_measured_gpu_hours,
       sm_used AS sm_used_gpu_hours
FROM bins {{join}} (
    SELECT {{name}} AS name, bin, {", ".join(f"sum({name})::DOUBLE AS {name}" for name in _FIGURES)}
    FROM group_pieces GROUP BY ALL
) USING (bin) ORDER BY 1, bin
"""


def use_over_time(
    database: DuckDBPyConnection, key: str, runs: str, installed_gpus: float | None, so_far_s: float
) -> tuple[tuple[TimeUsage, ...], dict[str, list[TimeUsage]]]:
    """Return the use of all bins, and by group of those in which it had anything.

    Args:
        database: swept with bins.
        key: SQL for the name of a run's group.
        runs: the query, or the name, of the runs.
        installed_gpus: what the site has; None where that is not known.
        so_far_s: up to when they are there: what is to come is not known.
    """
    database.execute(_GROUP_PIECES.format(key=key, runs=runs))
    query = _OVER_TIME.format(name="NULL", installed="$gpus::DOUBLE", join="LEFT JOIN")
    rows = named(database, query, {"gpus": installed_gpus, "so_far": so_far_s})
    whole = tuple(TimeUsage(**row) for row in rows if row.pop("name") is None)
    found: dict[str, list[TimeUsage]] = {}
    query = _OVER_TIME.format(name="name", installed="NULL::DOUBLE", join="JOIN")
    for row in named(database, query, {"so_far": so_far_s}):
        found.setdefault(row.pop("name"), []).append(TimeUsage(**row))
    return whole, found


# What began and ended in a quarter counts there for the rest of it, and all through those that follow.
_WEEK = f"""
WITH rates AS (
    SELECT from_s, to_s, (allocated / span_s)::DECIMAL(38, 18) AS rate
    FROM usage WHERE allocated IS NOT NULL AND span_s > 0
),
turns AS (
    SELECT quarter::INTEGER AS quarter, sum(rate) AS rate,
           sum((rate::DOUBLE * ((quarter + 1) * {QUARTER_S} - at_s))::DECIMAL(38, 12)) AS there
    FROM (SELECT floor(from_s / {QUARTER_S}) AS quarter, from_s AS at_s, rate FROM rates
          UNION ALL SELECT floor(to_s / {QUARTER_S}), to_s, -rate FROM rates)
    GROUP BY ALL
),
allocated AS (
    SELECT cell, sum(greatest(0, least((quarter + 1) * {QUARTER_S}, $until, $so_far)
                                 - greatest(quarter * {QUARTER_S}, $since))) / {_HOUR_S} AS hours,
           sum(coalesce(there, 0) + ({QUARTER_S} * before)::DECIMAL(38, 12))::DOUBLE AS gpu_hours
    FROM (SELECT cell, quarter, there, coalesce(sum(rate) OVER (ORDER BY quarter ROWS BETWEEN UNBOUNDED PRECEDING
                                                                AND 1 PRECEDING), 0)::DOUBLE AS before
          FROM quarters LEFT JOIN turns USING (quarter))
    GROUP BY cell
),
seen AS (
    SELECT cell, {", ".join(f"{_SUM.format(name)}::DOUBLE AS {name}" for name in _OF)} FROM week_parts GROUP BY cell
)
SELECT cell // 24 AS weekday, cell % 24 AS hour, hours, greatest(0, gpu_hours) / hours AS allocated_gpus,
       coalesce(sm_measured, 0) / hours AS sm_measured_gpus, sm_used / hours AS sm_used_gpus,
       coalesce(util_measured, 0) / hours AS util_measured_gpus, util_used / hours AS util_used_gpus
FROM allocated LEFT JOIN seen USING (cell) WHERE hours > 0 ORDER BY cell
"""


def use_over_week(database: DuckDBPyConnection, since_s: float, until_s: float, so_far_s: float) -> list[WeekHour]:
    """Return the use of each hour of the week that [since, until) has had so far; ``database`` is swept with bins."""
    edges = {"since": since_s, "until": until_s, "so_far": so_far_s}
    return [WeekHour(**row) for row in named(database, _WEEK, edges)]

# SPDX-License-Identifier: Apache-2.0
"""GPU-hours by bins of time and by hour of the week, and what else the charts of a page are drawn of.

Both are cut at multiples of a quarter of an hour, on which the clocks of all zones change and turn to the next hour.
Samples are known by the hour of UTC: each half of one counts for half of it if a zone is half an hour off.
Figures of a run are split by how much of its time, or of its samples, lies in a bin; the parts are differences of
rounded sums so far, so that they add up to the run's figure exactly.
"""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from itertools import pairwise
from typing import NamedTuple

from duckdb import DuckDBPyConnection

from slurm_colloc.core.chart_model import Charts, GroupDetail, IdleRun, TimeUsage, UtilAgainstSm, WeekHour
from slurm_colloc.core.usage_model import GroupUsage
from slurm_colloc.facts.usage import source
from slurm_colloc.store.queries import kinds_of, make_rows, named, query, records
from slurm_colloc.store.window import Window

QUARTER_S, _HOUR_S = 900, 3600
# Up to so long a window is cut into hours, and into days; beyond, into weeks.
_HOURS_S, _DAYS_S = 3 * 86_400, 120 * 86_400


_CELL_PCT = 5.0
_IDLEST = 5


class Bins(NamedTuple):
    """How a window is cut: at ``edges_s``, its own among them, and by the local clock of ``zone``.

    ``zone`` has the names that the zone goes by in the window. ``offsets`` are (from when on, seconds that the clock is
    ahead of UTC), the first from before the window on.
    """

    edges_s: tuple[float, ...]
    offsets: tuple[tuple[int, int], ...]
    zone: str


def bins_of(since_s: float, until_s: float, zone: tzinfo | None = None) -> Bins:
    """Return how to cut [since, until) into hours, days or weeks of ``zone`` (None: this machine's), by its length."""
    span_s = until_s - since_s
    if span_s <= _HOURS_S:
        days, inner = 0, _hours(since_s, until_s)
    else:
        days = 1 if span_s <= _DAYS_S else 7
        inner = _midnights(since_s, until_s, zone, days)
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


def months_of(since_s: float, until_s: float, zone: tzinfo | None = None) -> list[tuple[float, str]]:
    """Return when each month of [since, until) begins in it, and its name; last when the window ends, without one."""
    firsts = (at_s for at_s in _midnights(since_s, until_s, zone, 1) if _local(at_s, zone).day == 1 and at_s > since_s)
    return [*((at_s, f"{_local(at_s, zone):%Y-%m}") for at_s in (since_s, *firsts)), (until_s, "")]


def _began_s(day: datetime, zone: tzinfo | None) -> float:
    """Return the first moment of a local day, or that in which clocks leave midnight out."""
    midnight_s = day.replace(tzinfo=zone).timestamp() if zone else day.timestamp()
    return float(midnight_s // QUARTER_S * QUARTER_S)


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


def make_bins(database: DuckDBPyConnection, bins: Bins) -> None:
    """Make the tables ``bins`` and ``quarters`` by which all is cut, and those that ``time_parts`` adds to, empty."""
    make_rows(database, "clock", kinds_of("from_s BIGINT, offset_s BIGINT"), bins.offsets)
    edges = list(bins.edges_s)
    # DuckDB takes what unnest makes for a single row, and would compare each quarter with each edge.
    database.execute("SET asof_loop_join_threshold = 0")
    parameters = {"edges": edges, "since": edges[0], "until": edges[-1]}
    database.execute(f"CREATE TEMP TABLE quarters AS {query('facts/sql/quarters')}", parameters)
    database.execute("RESET asof_loop_join_threshold")
    database.execute(f"CREATE TEMP TABLE bins AS {query('facts/sql/bins')}", {"edges": edges})
    database.execute(f"CREATE TEMP TABLE hours AS {query('facts/sql/hours')}")
    for name, columns in _TIME_PARTS.items():
        database.execute(f"CREATE TEMP TABLE {name} ({columns})")


# The parts of a run's use by bin, and of all runs' use by hour of the week.
_TIME_PARTS = {
    "bin_parts": "run BIGINT, bin INTEGER, util_us BIGINT, util_hours DOUBLE, sm_us BIGINT, sm_hours DOUBLE",
    "week_parts": "cell INTEGER, util_measured DOUBLE, util_used DOUBLE, sm_measured DOUBLE, sm_used DOUBLE",
}


def time_parts(database: DuckDBPyConnection, units: str, fix: int) -> None:
    """Add facts of ``units`` by hour to where they lie in time; percentages there are in 1/``fix``."""
    database.execute(f"CREATE OR REPLACE TEMP TABLE cut AS {query('facts/sql/cut', units=units)}")
    for name in _TIME_PARTS:
        database.execute(f"INSERT INTO {name} {query(f'facts/sql/{name}', fix=fix * 100)}")


def make_run_bins(database: DuckDBPyConnection) -> None:
    """Make the table ``run_bins`` of what each run had and used in each bin; ``database`` has ``usage``, in a file."""
    database.execute(f"CREATE TEMP TABLE sampled AS {query('facts/sql/sampled')}")
    database.execute(f"CREATE TABLE aggregated.run_bins AS {query('facts/sql/run_bins')}")
    database.execute("DROP TABLE sampled")


def charts_of(
    database: DuckDBPyConnection,
    by: str,
    window: Window,
    bins: Bins,
    installed_gpus: float | None,
    kinds: Mapping[str, Sequence[GroupUsage]],
) -> Charts:
    """Return what there is to draw of a database that was aggregated with ``bins``.

    Args:
        database: aggregated, of a store.
        by: one of GROUPINGS, what the details are of.
        window: that was aggregated.
        bins: the same.
        installed_gpus: GPUs that the site has, None where that is not known.
        kinds: the usage of each kind of GPU, by group, from ``used_hours_by_kind``.
    """
    key, runs = source(by)
    # Runs are known up to ``so_far``: figures of later bins are not.
    parameters = {**window.parameters, "gpus": installed_gpus, "so_far": min(window.until_s, window.now_s)}
    select = query("facts/sql/group_bins", key=key, runs=runs)
    database.execute(f"CREATE OR REPLACE TEMP TABLE group_bins AS {select}")
    of_all = query("facts/sql/over_time", group="NULL", installed="$gpus::DOUBLE", join="LEFT JOIN")
    total = tuple(TimeUsage(**row) for row in named(database, of_all, parameters) if row.pop("name") is None)
    by_group: dict[str, list[TimeUsage]] = {}
    of_groups = query("facts/sql/over_time", group="name", installed="NULL::DOUBLE", join="JOIN")
    for row in named(database, of_groups, parameters):
        by_group.setdefault(row.pop("name"), []).append(TimeUsage(**row))
    idlest: dict[str, list[IdleRun]] = {}
    for run in named(database, query("facts/sql/idlest_runs", key=key, runs=runs, most=_IDLEST)):
        idlest.setdefault(run.pop("name"), []).append(IdleRun(**run))
    return Charts(
        over_time=total,
        week=tuple(records(WeekHour, database, query("facts/sql/week"), parameters)),
        zone=bins.zone,
        util_against_sm=tuple(records(UtilAgainstSm, database, query("facts/sql/util_against_sm", cell_pct=_CELL_PCT))),
        details=tuple(
            GroupDetail(name, tuple(by_group.get(name, ())), tuple(usages), tuple(idlest.get(name, ())))
            for name, usages in kinds.items()
        ),
    )

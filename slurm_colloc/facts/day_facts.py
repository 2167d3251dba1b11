# SPDX-License-Identifier: Apache-2.0
"""Facts: the use of each device by each run, hour by hour, stored, and of days without them made as asked for.

    facts/<cluster>/<day>.parquet      of the readings of a closed day, for each hour and for the day as a whole

A report takes a day's facts, or its readings: readings where they are still there and the facts were made of other runs
than are known now, or the window cuts an hour. An hour that a window cuts counts in proportion where only facts are
left. A fact is what the window of one hour would have; rows of the whole day spare a year's report the hours.
"""

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from math import inf, isfinite
from typing import NamedTuple

from duckdb import DuckDBPyConnection

from slurm_colloc.core.files import file_mode
from slurm_colloc.core.usage_model import MEASURED, WHOLE_DEVICE
from slurm_colloc.facts.over_time import Bins, make_bins, time_parts
from slurm_colloc.store.parquet import SUFFIX, Hours, hours_in, read, told_by, write
from slurm_colloc.store.queries import execute, kinds_of, make_rows, query
from slurm_colloc.store.sample_tables import SHARES
from slurm_colloc.store.samples import day_began_s
from slurm_colloc.store.schema import (
    DAY_S,
    DEVICE,
    EVIDENCE,
    FACTS,
    HOST,
    HOUR_S,
    LEVEL,
    OF_RUN,
    PEAK,
    UNIT,
    all_columns,
    combined,
    in_proportion,
    keys,
    names,
    typed,
)
from slurm_colloc.store.store import Store
from slurm_colloc.store.window import Step, Window, ignore

FIX = 65_536
USE, HISTORY = (UNIT, PEAK, HOST, DEVICE), (EVIDENCE, LEVEL)
# Readings of a whole GPU, by exporters and logs, are each a moment's, or a mean over the exporter's own interval, which
# is 30 s as dcgm-exporter comes, so that the first may be of before the run.
OWN_INTERVAL_S = 30.0
# Stored days are added up so many at a time, so that the hours of a year need not fit into memory.
_DAYS_AT_ONCE = 30


def facts_path(store: str, cluster: str, day: str) -> str:
    """Return where the facts of a day lie."""
    return os.path.join(store, "facts", cluster, day + SUFFIX)


class Days(NamedTuple):
    """The days of a window: those whose readings are read, and those whose facts are.

    ``cut`` says that only facts are left of an hour that the window cuts.
    """

    raw: tuple[str, ...]
    stored: Mapping[str, Sequence[str]]
    cut: bool


def days_of(database: DuckDBPyConnection, store: Store, window: Window) -> Days:
    """Return how each day of a window is read; ``database`` has all ``runs`` of the window.

    Raises:
        StoreError: a folder or file cannot be read.
    """
    since_s, until_s = window[:2]
    raw = store.samples.days(since_s, until_s)
    facts = store.samples.facts(since_s, until_s)
    both = {day: paths for day, paths in facts.items() if day in raw}
    fresh = _fresh(database, both) if store.visible.everybody and both else set()
    read_raw = {
        day for day in both if (day not in fresh or _cuts(window, day)) and _has_readings(store, day, both[day])
    }
    stored = {day: paths for day, paths in facts.items() if day not in read_raw}
    return Days(tuple(day for day in raw if day not in stored), stored, any(_cuts(window, day) for day in stored))


def _has_readings(store: Store, day: str, facts: Sequence[str]) -> bool:
    """Return whether all readings that facts of a day were made of are there."""
    readings = hours_in(store.samples.files(SHARES, -inf, inf, day))
    return all(
        has_all({path: held for path, held in readings.items() if f"{os.sep}{cluster_of(fact)}{os.sep}" in path}, hours)
        for fact, hours in hours_in(facts).items()
    )


def has_all(files: Mapping[str, Hours], needed: Hours) -> bool:
    """Return whether files of readings have each hour, and no less of its journal."""
    sizes: dict[tuple[str, str], int] = {}
    for hours in files.values():
        for key, (size, _) in hours.items():
            sizes[key] = max(size, sizes.get(key, 0))
    return all(sizes.get(key, -1) >= size for key, (size, _) in needed.items())


def _cuts(window: Window, day: str) -> bool:
    """Return whether an end of the window lies within an hour that readings of this day may reach into."""
    began_s = day_began_s(day)
    return any(
        isfinite(end_s) and end_s % HOUR_S and began_s - DAY_S <= end_s < began_s + DAY_S for end_s in window[:2]
    )


def _fresh(database: DuckDBPyConnection, files: Mapping[str, Sequence[str]]) -> set[str]:
    """Return the days whose facts were made of the runs that are known now."""
    digest_of = digests(database, files)
    digest_in_file = told_by([path for paths in files.values() for path in paths], "runs")
    return {
        day
        for day, paths in files.items()
        if all(digest_in_file.get(path) == digest_of(cluster_of(path), day) for path in paths)
    }


def cluster_of(path: str) -> str:
    """Return the cluster that a file of facts is of."""
    return os.path.basename(os.path.dirname(path))


def digests(database: DuckDBPyConnection, days: Iterable[str]) -> Callable[[str, str], str]:
    """Return a function (cluster, day) -> what facts of that day depend on of ``runs``."""
    database.execute("DROP TABLE IF EXISTS digest_days")
    make_rows(database, "digest_days", kinds_of("day VARCHAR, began_s BIGINT"), [(d, day_began_s(d)) for d in days])
    rows = database.execute(query("facts/sql/digests")).fetchall()
    by_day = {(cluster, day): digest for day, cluster, digest in rows}
    return lambda cluster, day: by_day.get((cluster, day), "0")


def make_parts(
    database: DuckDBPyConnection, which: Collection[str] = USE, bins: Bins | None = None, kind: str = "TEMP TABLE"
) -> None:
    """Make the tables of the parts of facts that are asked for, empty, and those of the bins."""
    for part in which:
        owner = "cluster VARCHAR" if part == DEVICE else "run BIGINT"
        database.execute(f"CREATE {kind} {part}_parts ({owner}, {typed(FACTS[part])})")
    if bins:
        make_bins(database, bins)


def add_parts(
    database: DuckDBPyConnection,
    store: Store,
    window: Window,
    days: Days,
    which: Collection[str] = USE,
    bins: Bins | None = None,
    step: Step = ignore,
) -> None:
    """Fill the tables of ``make_parts`` with what ``runs`` used in the window.

    Raises:
        StoreError: the store cannot be read.
    """
    stored = sorted(days.stored.items())
    chunks = [stored[start : start + _DAYS_AT_ONCE] for start in range(0, len(stored), _DAYS_AT_ONCE)]
    todo = len(days.raw) + len(chunks)
    for done, day in enumerate(days.raw):
        step(done, todo)
        store.view_samples(database, window.since_s, window.until_s, day)
        edges = {"since": window.since_s, "until": window.until_s}
        for part in make_day(database, day_began_s(day), edges, which, hourly=bins is not None):
            columns = "* EXCLUDE (hour_s)" if bins and part not in HISTORY else "*"
            of_day = f"SELECT {columns} FROM day_{part}"
            if part == UNIT and bins:
                of_day = (
                    f"SELECT run, {combined(FACTS[UNIT])} FROM day_unit GROUP BY run, {', '.join(keys(FACTS[UNIT]))}"
                )
            database.execute(f"INSERT INTO {part}_parts BY NAME {of_day}")
        if bins:
            time_parts(database, "day_unit", FIX)
    for done, chunk in enumerate(chunks, len(days.raw)):
        step(done, todo)
        # As of a day: each part of each chunk would look through the runs of a year.
        oldest, newest = (_near(day_began_s(chunk[index][0])) for index in (0, -1))
        execute(database, _DAY_RUNS, {**newest, "day_since": oldest["day_since"]})
        _add_stored(database, store, window, chunk, which, bins)


def make_day(
    database: DuckDBPyConnection,
    began_s: float,
    edges: Mapping[str, float],
    which: Collection[str],
    *,
    hourly: bool,
) -> list[str]:
    """Make the tables ``day_<part>`` of what the views of samples show of a day, and return which."""
    # Runs near a day are looked up for its samples, and not all of a month or a year.
    parameters = {**edges, **_near(began_s)}
    shares, hosts = (query("facts/sql/pieces", view=view) for view in ("shares", "hosts"))
    words = {
        "fix": FIX,
        "measured": MEASURED,
        "readings": WHOLE_DEVICE,
        "own_s": OWN_INTERVAL_S,
        "hour": ", hour_s" if hourly else "",
    }
    of_shares = query("facts/sql/inside", pieces=shares, runs="day_runs")
    inputs = {
        UNIT: {"inside": of_shares},
        PEAK: {"inside": query("facts/sql/inside", pieces=shares, runs="on_several")},
        HOST: {"inside": query("facts/sql/inside", pieces=hosts, runs="day_runs")},
        DEVICE: {"pieces": shares},
        EVIDENCE: {},
        LEVEL: {},
    }
    execute(database, _DAY_RUNS, parameters)
    if EVIDENCE in which:
        execute(database, query("facts/sql/passes", **words), parameters)
    parts = [part for part in FACTS if part in which]
    for part in parts:
        select = query(f"facts/sql/{part}", **words, **inputs[part])
        execute(database, f"CREATE OR REPLACE TEMP TABLE day_{part} AS {select}", parameters)
    return parts


_DAY_RUNS = f"CREATE OR REPLACE TEMP TABLE day_runs AS {query('facts/sql/day_runs')}"


def _near(began_s: float) -> dict[str, float]:
    """Return between which times runs are that facts of a day may be of."""
    return {"day_since": began_s - 2 * DAY_S, "day_until": began_s + 2 * DAY_S}


def _add_stored(
    database: DuckDBPyConnection,
    store: Store,
    window: Window,
    days: Sequence[tuple[str, Sequence[str]]],
    which: Collection[str],
    bins: Bins | None,
) -> None:
    paths = [path for _, paths_of_day in days for path in paths_of_day]
    # A day's file reaches a day back. No row of an hour is looked at if the window has all of the day.
    whole_days = {day for day, _ in days if window.since_s + DAY_S <= day_began_s(day) <= window.until_s - DAY_S}
    inner, outer = (
        [path for day, paths_of_day in days for path in paths_of_day if (day in whole_days) is is_whole]
        for is_whole in (True, False)
    )
    since, until = (f"'{end_s}'::DOUBLE" for end_s in window[:2])
    hour = f"from_s >= {since} AND from_s + {HOUR_S} <= {until}"
    begin = f"floor(from_s / {DAY_S}) * {DAY_S}"
    day = f"{begin} >= {since} AND {begin} + {DAY_S} <= {until}"
    inside = f"span_s = {HOUR_S} AND {hour} AND NOT ({day}) OR span_s = {DAY_S} AND {day}"
    edge = f"span_s = {HOUR_S} AND from_s < {until} AND from_s + {HOUR_S} > {since} AND NOT ({hour})"
    any_of = f"from_s < {until} AND from_s + {DAY_S} > {since}"
    cuts = any(isfinite(end_s) and end_s % HOUR_S for end_s in window[:2])
    for part in which:
        selects = [(inner, f"span_s = {DAY_S}", ""), (outer, any_of if part in HISTORY else inside, "")]
        selects += [(outer, edge, until)] if cuts and part not in HISTORY else []
        for group, where, end in selects:
            if group:
                rows = _stored(store, part, group, where, since, end)
                database.execute(f"INSERT INTO {part}_parts BY NAME {rows}")
    if bins:
        of_hours = [(f"span_s = {HOUR_S} AND {hour}", ""), *([(edge, until)] if cuts else [])]
        hours = [_stored(store, UNIT, paths, where, since, end, ", f.from_s AS hour_s") for where, end in of_hours]
        time_parts(database, f"({' UNION ALL BY NAME '.join(hours)})", FIX)


def _stored(
    store: Store, part: str, paths: Sequence[str], where: str, since: str, until: str = "", more: str = ""
) -> str:
    """Return SQL for the rows of a part of stored facts, and ``more`` columns, by the runs whose they are.

    With ``until`` as much of them counts as lies in the window, in proportion.
    """
    # A device's use while nobody visible was on it is not shown; the time of visible jobs is.
    of_jobs = part == DEVICE and not store.visible.everybody
    rows = f"(SELECT * FROM {read(paths)} WHERE part = '{UNIT if of_jobs else part}' AND ({where})) f"
    on = "r.cluster = f.cluster AND r.job_id_raw = f.job_id AND r.start_s = f.start_s"
    joined = f"{rows} JOIN day_runs r ON {on}"
    if of_jobs:
        return f"SELECT f.cluster, f.node, f.uuid, f.whole_us AS jobs_us FROM {joined}"
    key, begin, end = "r.run", "greatest(f.from_s, r.start_s)", f"least(f.from_s + {HOUR_S}, r.last_s)"
    if part == DEVICE:
        joined, key, begin, end = rows, "f.cluster", "f.from_s", f"f.from_s + {HOUR_S}"
    figures = ", ".join(f"f.{name}" for name in names(FACTS[part]))
    if until:
        before, up_to = (
            f"greatest(0, least(1, coalesce(({end_s} - {begin}) / nullif({end} - {begin}, 0), 0)))"
            for end_s in (since, until)
        )
        figures = in_proportion(FACTS[part], before, up_to)
    figures = figures.replace("f.first_s", f"if(f.first_s < {since}, {since}, f.first_s) AS first_s")
    return f"SELECT {key}, {figures}{more} FROM {joined}"


def make_facts(
    database: DuckDBPyConnection,
    store: Store,
    day: str,
    paths: tuple[Sequence[str], Sequence[str]],
    target: str,
    made_of: tuple[Hours, str],
    work: str,
    older: Sequence[str] = (),
) -> None:
    """Write the facts of a day, whole, in place of what is there.

    Args:
        database: has ``runs`` of the day, and of a day before and after it at least.
        store: where to.
        day: of the facts.
        paths: files of the day's shares and hosts, of one cluster.
        target: the file.
        made_of: hours of journals that are in it, and what it depends on of the runs.
        work: a folder for temporaries.
        older: files of facts that these are added to.

    Raises:
        StoreError: a file cannot be read or written.
    """
    store.view_files(database, paths)
    made_parts = make_day(database, day_began_s(day), {"since": -inf, "until": inf}, FACTS, hourly=True)
    parts = []
    for part in made_parts:
        key = "cluster, NULL AS job_id, NULL AS start_s" if part == DEVICE else "cluster, job_id_raw AS job_id, start_s"
        join = "" if part == DEVICE else "JOIN (SELECT run, cluster, job_id_raw, start_s FROM day_runs) r USING (run)"
        rows = f"(SELECT {key}, d.* FROM day_{part} d {join})"
        begin = f"floor(hour_s / {DAY_S})::BIGINT * {DAY_S}"
        of_day = f"SELECT '{part}' AS part, {day_began_s(day)} AS from_s, {DAY_S} AS span_s"
        if part == EVIDENCE:
            parts.append(f"{of_day}, * EXCLUDE (run) FROM {rows}")
            continue
        if part == LEVEL:
            level = "if(kind = 'cores', ceil(level * 4) / 4, ceil(level / 2) * 2) AS level, sum(weight) AS weight"
            parts.append(f"{of_day}, cluster, job_id, start_s, kind, {level} FROM {rows} GROUP BY ALL")
            continue
        for from_s, span_s in (("hour_s", HOUR_S), (begin, DAY_S)):
            parts.append(
                f"SELECT '{part}' AS part, {from_s} AS from_s, {span_s} AS span_s, {', '.join(names(OF_RUN))}, "
                f"{combined(FACTS[part])} FROM {rows} GROUP BY ALL"
            )
    parts += [f"SELECT * FROM {read(older)}"] if older else []
    columns = ", ".join(f"CAST({column.name} AS {column.kind}) AS {column.name}" for column in all_columns())
    select = (
        f"SELECT {columns} FROM ({' UNION ALL BY NAME '.join(parts)}) "
        "ORDER BY span_s, part, cluster, job_id, start_s, from_s, node, uuid"
    )
    hours, digest = made_of
    write(database, select, target, hours, work, file_mode(store.samples.folder), more={"runs": digest}, group=_GROUP)


# Rows of days lie by themselves, so that who reads these decodes no hours.
_GROUP = 8192

# SPDX-License-Identifier: Apache-2.0
"""Fewer files and fewer rows: the hours of a closed day joined, old days rolled up, the oldest deleted.

May be killed at any instant and repeated at will. The coarser file is there before the finer ones go, and these go at
the earliest in the next run: a report that began before still finds them.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import NamedTuple

from duckdb import DuckDBPyConnection

from slurm_colloc.accounting.parquet import (
    broken,
    connection,
    folders,
    hours_in,
    parquet_files,
    read,
    remove,
    sql,
    write,
)
from slurm_colloc.accounting.sample_tables import (
    SHARES,
    TABLES,
    Table,
    joined,
    trimmed,
    typed,
)
from slurm_colloc.accounting.samples import DAY, GRAINS, MINUTE, RAW_DAY, Samples, day_and_hour, rolled_up
from slurm_colloc.accounting.sweep import Step, ignore
from slurm_colloc.config import Observe
from slurm_colloc.errors import StoreError
from slurm_colloc.files import file_mode
from slurm_colloc.measured import METHODS

# Of these on and off, rows are not merged: sums are taken by them.
_APART = (
    "process_count = 0",
    "process_count = 0 AND (gpu_util_pct > 0 OR sm_active_pct > 0)",
    "direct_count > 0",
    "sharers > 1",
)
_LARGEST = ("process_count", "direct_count", "sharers", "gpu_mem_used_mib", "host_mem_mib")
# Two readings follow each other if no more lies between them than what rounding and a sampler's own time leave.
_TOUCH = "0.01 + 0.01 * interval_s"
# ``head`` begins what follows each other, ``slot`` numbers the minutes (days), an ``island`` becomes one row.
_ROLLED = f"""
WITH apart AS (
    SELECT *, at_s - interval_s AS from_s,
           coalesce(at_s - interval_s - lag(at_s) OVER ({{one}}) > {_TOUCH}, true) AS head
    FROM ({{select}})
),
slots AS (
    SELECT *, unnest(CASE WHEN head THEN [{{last}} - 1] ELSE range({{first}}, {{last}}) END) AS slot FROM apart
),
pieces AS (
    SELECT * REPLACE (least(at_s, (slot + 1) * {{grain_s}}) AS at_s),
           least(at_s, (slot + 1) * {{grain_s}}) - if(head, from_s, greatest(from_s, slot * {{grain_s}})) AS piece_s,
           ({{state}}) AS state
    FROM slots
),
islands AS (
    SELECT *, sum(begins::INT) OVER ({{one}} ROWS UNBOUNDED PRECEDING) AS island
    FROM (SELECT *, head OR coalesce(lag(head) OVER ({{one}}), true) OR slot != lag(slot) OVER ({{one}})
                    OR state IS DISTINCT FROM lag(state) OVER ({{one}}) AS begins FROM pieces)
)
SELECT {{typed}} FROM (
    SELECT {{who}}, max(at_s) AS at_s, sum(piece_s) AS interval_s, {{merged}} FROM islands GROUP BY {{who}}, island
) ORDER BY {{order}}
"""
# Samples come every day, so that a clock further past the last of them is ahead, or sampling has stopped.
_LONGEST_SILENCE_DAYS = 2


class Compacted(NamedTuple):
    """What a run did: files written and removed; ``refused`` are hours that came too late, ``errors`` what failed."""

    written: int
    removed: int
    refused: tuple[str, ...]
    errors: tuple[str, ...]


def rolled(table: Table, select: str, grain_s: int) -> str:
    """Return a query that merges the rows of ``select`` where they follow each other within one ``grain_s`` of time.

    A merged row stands for (at_s - interval_s, at_s] as any row does: nothing is merged over a gap, and a reading that
    spans the edge of a minute or day is cut there, so that the sums of whole minutes (days) stay what they were. What
    sums are taken under a condition of stays apart: time with and without a process (and without one, yet at work),
    with and without one that is no client of MPS, with and without neighbours, with and without a value of each
    counter. The first of readings that follow each other stays as it is, because it may reach back before the start of
    its job and counts from there on.
    """
    names = [name for name in table.columns if name not in ("at_s", "interval_s")]
    values = [name for name in names if name.endswith("_pct") or name in table.sums or name in _LARGEST]
    who = [name for name in names if name not in values and name != "method"]
    state = [f"{name} IS NULL" for name in values]
    state += list(_APART) if table is SHARES else []
    merged = {name: _merged(table, name) for name in values}
    if "method" in names:
        merged["method"] = f"arg_max(method, coalesce(list_position({list(METHODS)}, method), {len(METHODS) + 1}))"
    last = f"ceil(at_s / {grain_s})::BIGINT"
    return _ROLLED.format(
        select=select,
        grain_s=grain_s,
        one=f"PARTITION BY {', '.join(table.one)} ORDER BY at_s",
        last=last,
        first=f"least(floor(from_s / {grain_s})::BIGINT, {last} - 1)",
        state=", ".join(state),
        typed=typed(table),
        who=", ".join(who),
        merged=", ".join(f"{how} AS {name}" for name, how in merged.items()),
        order=", ".join(("node", *table.one, "at_s")),
    )


def _merged(table: Table, name: str) -> str:
    if name in _LARGEST:
        return f"max({name})"
    if name in table.sums:
        return f"sum({name} * coalesce(piece_s / nullif(interval_s, 0), 1))"
    return f"coalesce(sum({name} * piece_s) / nullif(sum(piece_s), 0), max({name}))"


def compact(
    store: Samples, keep: Observe, now_s: float, anyway: bool = False, *, step: Step = ignore
) -> Compacted | None:
    """Bring every day of the store to the form that it has at its age; None where another run does so already.

    ``step`` is told how many days are done, of how many.

    Raises:
        StoreError: the store cannot be written at all; what fails with one day is in ``errors``, and so is a clock
            that the samples do not bear out, unless it is to be done ``anyway``.
    """
    doubt = "" if anyway else _clock_doubt(store, now_s)
    if doubt:
        return Compacted(0, 0, (), (doubt,))
    with store.work("compact") as work:
        return None if work is None else _Run(store, work).all_days(keep, now_s, step)


def _clock_doubt(store: Samples, now_s: float) -> str:
    """Return why ``now_s`` is doubtful, if it is long past the last sampled day: what is deleted does not come back."""
    today = day_and_hour(now_s)[0]
    days = [os.path.basename(folder) for _, folder in _days(store)]
    # A node whose clock was ahead left days that are still to come; they say nothing.
    last = max((day for day in days if _began_s(day) is not None and day <= today), default=today)
    if now_s - (_began_s(last) or 0.0) <= DAY * (1 + _LONGEST_SILENCE_DAYS):
        return ""
    return (
        f"the last sampled day in '{store.folder}' is {last}, and this host's clock says {today}: is it ahead? "
        "Nothing was done. Set the clock; if it is right and sampling has stopped, give --anyway"
    )


def _days(store: Samples) -> list[tuple[Table, str]]:
    """Return the folders of days, those of others among them."""
    return [
        (table, folder)
        for table in TABLES
        for cluster in folders(os.path.join(store.folder, table.name))
        for folder in folders(cluster)
    ]


def _began_s(day: str) -> float | None:
    """Return when the day of that name began, None where it is no day's."""
    try:
        return datetime.strptime(day, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


class _Run:
    """One run, and what it has done so far."""

    def __init__(self, store: Samples, work: str) -> None:
        self._store, self._work = store, work
        self._mode = file_mode(store.folder)
        self._written = self._removed = 0
        self._refused: list[str] = []

    def all_days(self, keep: Observe, now_s: float, step: Step) -> Compacted:
        errors = []
        days = _days(self._store)
        for done, (table, folder) in enumerate(days):
            step(done, len(days))
            try:
                self._day(table, folder, keep, now_s)
            except StoreError as error:
                paths = [path for place in (folder, *folders(folder)) for path in parquet_files(place)]
                errors.append(broken(paths) or str(error))
        return Compacted(self._written, self._removed, tuple(self._refused), tuple(errors))

    def _day(self, table: Table, folder: str, keep: Observe, now_s: float) -> None:
        began_s = _began_s(os.path.basename(folder))
        if began_s is None:
            return  # not ours
        age_days = (now_s - began_s) / DAY - 1
        nodes = [path for node in folders(folder) for path in parquet_files(node)]
        there = [path for _, path in rolled_up(folder)]
        if age_days > keep.keep_job_days:
            self._remove([*there, *nodes])
        elif there or age_days > keep.keep_raw_days:
            self._roll_up(table, folder, DAY if age_days > keep.keep_minute_days else MINUTE, there, nodes)
        elif age_days > 1:
            for node in folders(folder):
                self._join(table, os.path.join(node, RAW_DAY), parquet_files(node))
        for path in (*folders(folder), folder):
            with suppress(OSError):  # not empty
                os.rmdir(path)

    def _join(self, table: Table, target: str, paths: Sequence[str]) -> None:
        """Make one file of a node's day; an hour that came or grew since takes the place of what was there of it."""
        held = hours_in([target] if target in paths else [])
        known = hours_in([path for path in paths if path != target])
        whole = held.get(target, {})
        fresh = [path for path, hours in known.items() if not hours.items() <= whole.items()]
        self._remove([path for path in known if path not in fresh])
        if fresh:
            hours = whole | {key: counts for path in fresh for key, counts in known[path].items()}
            with connection(self._work) as database:
                database.execute(f"CREATE VIEW newer AS SELECT * FROM {read(fresh)}")
                write(database, joined(table, "newer", list(held)), target, hours, self._work, self._mode)
            self._written += 1

    def _roll_up(self, table: Table, folder: str, grain_s: int, there: Sequence[str], nodes: Sequence[str]) -> None:
        """Make one file of a day of all nodes, from a finer one of these and from what nodes have beside it."""
        coarse = there[0] if there else ""
        if not coarse:  # as the hours of a node stand, late ones included
            for node in folders(folder):
                self._join(table, os.path.join(node, RAW_DAY), parquet_files(node))
            nodes = [path for path in (os.path.join(node, RAW_DAY) for node in folders(folder)) if os.path.exists(path)]
        whole = hours_in([coarse])[coarse] if coarse else {}
        known = hours_in([*there[1:], *nodes])
        fresh = [path for path, hours in known.items() if not hours.keys() & whole.keys()]
        spent = [path for path, hours in known.items() if path not in fresh and hours.items() <= whole.items()]
        self._refused += [path for path in known if path not in fresh and path not in spent]
        self._remove(spent)
        target = os.path.join(folder, GRAINS[DAY] if coarse.endswith(GRAINS[DAY]) else GRAINS[grain_s])
        if not fresh and coarse in ("", target):
            return
        if target.endswith(GRAINS[DAY]):
            grain_s = DAY
        with connection(self._work) as database:
            parts: list[str] = []
            for select in self._by_node(database, table, coarse, fresh):
                parts.append(os.path.join(self._work, f"part-{len(parts)}"))
                query = f"COPY ({rolled(table, select, grain_s)}) TO '{sql(parts[-1])}' (FORMAT parquet)"
                database.execute(query)
            hours = whole | {key: counts for path in fresh for key, counts in known[path].items()}
            write(database, f"SELECT * FROM {read(parts)}", target, hours, self._work, self._mode)
        for part in parts:
            remove(part)
        self._written += 1

    def _by_node(self, database: DuckDBPyConnection, table: Table, coarse: str, fresh: Sequence[str]) -> Iterator[str]:
        """Yield a query for each node's rows, so that no more than a node's day is in memory."""
        if coarse:
            nodes = database.execute(f"SELECT DISTINCT node FROM {read([coarse])} ORDER BY 1").fetchall()
            for (node,) in nodes or [("",)]:  # a day of unusable lines has its list of hours, too
                yield f"SELECT * FROM {read([coarse])} WHERE node = '{sql(node)}'"
        for folder in sorted({os.path.dirname(path) for path in fresh}):
            of_node = [path for path in fresh if os.path.dirname(path) == folder]
            yield trimmed(table, f"SELECT * FROM {read(of_node)}")

    def _remove(self, paths: Sequence[str]) -> None:
        for path in paths:
            remove(path)
        self._removed += len(paths)

# SPDX-License-Identifier: Apache-2.0
"""Joins the hours of a day, makes its facts, and deletes old readings and old facts.

May be killed at any instant and repeated at will. Files that others stand for go when these are there, at the earliest
in the next run: a report that began before still finds them.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain
from math import inf
from typing import NamedTuple

from slurm_colloc.core.config import Observe
from slurm_colloc.core.errors import StoreError
from slurm_colloc.core.files import file_mode, remove
from slurm_colloc.facts.aggregate import find_runs
from slurm_colloc.facts.day_facts import cluster_of, digests, facts_path, has_all, make_facts
from slurm_colloc.store.parquet import (
    Hours,
    broken,
    connection,
    folders,
    hours_in,
    parquet_files,
    read,
    there,
    told_by,
    write,
)
from slurm_colloc.store.sample_tables import TABLES, Table, joined
from slurm_colloc.store.samples import RAW_DAY, Samples, day_and_hour, day_began_s
from slurm_colloc.store.schema import DAY_S
from slurm_colloc.store.store import Store
from slurm_colloc.store.window import Step, Window, ignore

# Samples come every day, so that a clock further past the last of them is ahead, or sampling has stopped.
_LONGEST_SILENCE_DAYS = 2


class Compacted(NamedTuple):
    """The files that a run wrote and removed; ``refused`` are hours that came too late, ``errors`` what failed."""

    written: int
    removed: int
    refused: tuple[str, ...]
    errors: tuple[str, ...]


class Task(NamedTuple):
    """Facts of one day of a cluster that are to be made.

    ``paths`` are of its shares and hosts, ``hours`` of the journals in them, ``digest`` is of the runs known, ``older``
    are facts that they are added to.
    """

    cluster: str
    day: str
    paths: tuple[tuple[str, ...], tuple[str, ...]]
    hours: Hours
    digest: str
    older: tuple[str, ...] = ()


# Makes the facts of days, seen from a time, and returns what failed.
Make = Callable[[Store, Sequence[Task], float, Step], list[str]]


def compact(
    store: Store, keep: Observe, now_s: float, anyway: bool = False, *, step: Step = ignore, make: Make | None = None
) -> Compacted | None:
    """Bring every day of the store to the form that it has at its age; None where another run does so already.

    ``step`` is told how many days are done, of how many. ``make`` makes facts elsewhere.

    Raises:
        StoreError: the store cannot be written at all; failures of single days are in ``errors``, and so is a clock
            that the samples do not bear out, unless it is to be done ``anyway``.
    """
    doubt = "" if anyway else _clock_doubt(store.samples, now_s)
    if doubt:
        return Compacted(0, 0, (), (doubt,))
    with store.samples.work("compact") as work:
        return None if work is None else _Run(store, work).all_days(keep, now_s, step, make or make_here)


def make_here(store: Store, tasks: Sequence[Task], now_s: float, step: Step = ignore) -> list[str]:
    """Make the facts of these days, one after the other; return what failed."""
    errors: list[str] = []
    with store.samples.work("facts") as work:
        if work is None:
            return [f"another run makes facts in '{store.samples.folder}'"]
        for done, task in enumerate(tasks):
            step(done, len(tasks))
            try:
                make_one(store, task, now_s, work)
            except StoreError as error:
                errors.append(str(error))
    return errors


def make_one(store: Store, task: Task, now_s: float, work: str) -> None:
    """Make the facts of one day.

    Raises:
        StoreError: a file cannot be read or written.
    """
    began_s = day_began_s(task.day)
    target = facts_path(store.samples.folder, task.cluster, task.day)
    try:
        with store.connect(inf, inf) as database:
            # A reading may reach a day back; and no run ends where the window does.
            find_runs(database, Window(began_s - 2 * DAY_S, began_s + 2 * DAY_S, now_s))
            make_facts(database, store, task.day, task.paths, target, (task.hours, task.digest), work, task.older)
    except StoreError as error:
        raise StoreError(broken([*task.paths[0], *task.paths[1], *task.older]) or str(error)) from error


def _clock_doubt(store: Samples, now_s: float) -> str:
    """Return why ``now_s`` is doubtful, if it is long past the last sampled day: deleted files do not come back."""
    today = day_and_hour(now_s)[0]
    # A node whose clock was ahead left days that are still to come; they say nothing.
    last = max((day for _, day in _days(store) if day <= today), default=today)
    if now_s - day_began_s(last) <= DAY_S * (1 + _LONGEST_SILENCE_DAYS):
        return ""
    return (
        f"the last sampled day in '{store.folder}' is {last}, and this host's clock says {today}: is it ahead? "
        "Nothing was done. Set the clock; if it is right and sampling has stopped, give --anyway"
    )


def _days(store: Samples) -> list[tuple[str, str]]:
    """Return the clusters and days that there is anything of; folders of others are none."""
    days = {(cluster, day) for table in TABLES for cluster, day, _ in store.day_folders(table)}
    facts = store.facts()
    days |= {(cluster_of(path), day) for day, paths in facts.items() for path in paths}
    return sorted((cluster, day) for cluster, day in days if _is_day(day))


def _is_day(name: str) -> bool:
    try:
        datetime.strptime(name, "%Y-%m-%d").replace(tzinfo=UTC)
    except ValueError:
        return False
    return True


class _Run:
    """One run, and what it has done so far."""

    def __init__(self, store: Store, work: str) -> None:
        self._store, self._work = store, work
        self._folder = store.samples.folder
        self._mode = file_mode(self._folder)
        self._written = self._removed = 0
        self._refused: list[str] = []

    def all_days(self, keep: Observe, now_s: float, step: Step, make: Make) -> Compacted:
        errors: list[str] = []
        tasks: list[Task] = []
        days = _days(self._store.samples)
        digest_of = self._digests(days, keep, now_s)
        for done, (cluster, day) in enumerate(days):
            step(done, len(days) * 2)
            age_days = (now_s - day_began_s(day)) / DAY_S - 1
            try:
                tasks += self._day(cluster, day, age_days, keep, digest_of(cluster, day))
            except StoreError as error:
                errors.append(broken(chain(*self._files_of(cluster, day))) or str(error))
        half = len(days)
        if tasks:
            failed = make(self._store, tasks, now_s, lambda done, total: step(half + done * half // total, half * 2))
            self._written += len(tasks) - len(failed)
            errors += failed
        return Compacted(self._written, self._removed, tuple(self._refused), tuple(errors))

    def _digests(self, days: Sequence[tuple[str, str]], keep: Observe, now_s: float) -> Callable[[str, str], str]:
        """Return what facts of days with readings depend on."""
        sampled = sorted({day for _, day in days} & set(self._store.samples.days(0, 1e10)))
        if not sampled:
            return lambda cluster, day: ""
        since_s, until_s = day_began_s(sampled[0]), day_began_s(sampled[-1]) + DAY_S
        with self._store.connect(inf, inf) as database:
            find_runs(database, Window(since_s, until_s, now_s))
            return digests(database, sampled)

    def _files_of(self, cluster: str, day: str) -> list[list[str]]:
        """Return the files of a day's shares, of its hosts, and of its facts."""
        facts = facts_path(self._folder, cluster, day)
        by_table = [
            [path for node in folders(self._of_day(table, cluster, day)) for path in parquet_files(node)]
            for table in TABLES
        ]
        return [*by_table, there(facts)]

    def _of_day(self, table: Table, cluster: str, day: str) -> str:
        return os.path.join(self._folder, table.name, cluster, day)

    def _day(self, cluster: str, day: str, age_days: float, keep: Observe, digest: str) -> list[Task]:
        """Do what there is to do about a day, but for the facts that are to be made."""
        *files, facts = self._files_of(cluster, day)
        tasks: list[Task] = []
        if age_days > keep.keep_job_days:
            self._remove([*chain(*files), *facts])
        elif age_days > 1:
            stored = _all_hours(hours_in(facts))
            if has_all(hours_in(files[0]), stored):
                made_of = stored, told_by(facts, "runs").get("".join(facts))
                tasks = self._closed(cluster, day, made_of, digest)
                if not tasks and age_days > keep.keep_raw_days:
                    self._remove([*chain(*files)])
            else:
                tasks = self._late(cluster, day, facts, stored, files, digest)
        for table in TABLES:
            folder = self._of_day(table, cluster, day)
            for path in (*folders(folder), folder):
                with suppress(OSError):  # not empty
                    os.rmdir(path)
        return tasks

    def _closed(self, cluster: str, day: str, made_of: tuple[Hours, str | None], digest: str) -> list[Task]:
        """Join the hours of each node of a day of which all readings are there; return the facts to be made."""
        paths = []
        for table in TABLES:
            nodes = folders(self._of_day(table, cluster, day))
            for node in nodes:
                self._join(table, os.path.join(node, RAW_DAY), parquet_files(node))
            paths.append(tuple(path for node in nodes if os.path.exists(path := os.path.join(node, RAW_DAY))))
        shares, hosts = paths
        hours = _all_hours(hours_in(shares))
        return [] if made_of == (hours, digest) else [Task(cluster, day, (shares, hosts), hours, digest)]

    def _late(
        self, cluster: str, day: str, facts: Sequence[str], stored: Hours, files: Sequence[Sequence[str]], digest: str
    ) -> list[Task]:
        """Return the facts to be made of hours that came after the readings of their day were deleted."""
        fresh: list[tuple[str, ...]] = []
        added: Hours = {}
        for paths in files:
            hours_by_path = hours_in(paths)
            new = {path: hours for path, hours in hours_by_path.items() if not hours.keys() & stored.keys()}
            spent = [path for path, hours in hours_by_path.items() if hours.items() <= stored.items()]
            self._refused += [path for path in hours_by_path if path not in (*new, *spent)]
            self._remove([path for path in spent if path not in new])
            fresh.append(tuple(new))
            added |= _all_hours(new)
        shares, hosts = fresh
        return [Task(cluster, day, (shares, hosts), stored | added, digest, tuple(facts))] if shares else []

    def _join(self, table: Table, target: str, paths: Sequence[str]) -> None:
        """Make one file of a node's day; an hour that came or grew since takes the place of what was there of it."""
        held = hours_in([target] if target in paths else [])
        hours_by_path = hours_in([path for path in paths if path != target])
        joined_hours = held.get(target, {})
        fresh = [path for path, hours in hours_by_path.items() if not hours.items() <= joined_hours.items()]
        self._remove([path for path in hours_by_path if path not in fresh])
        if fresh:
            hours = joined_hours | _all_hours({path: hours_by_path[path] for path in fresh})
            with connection(self._work) as database:
                database.execute(f"CREATE VIEW newer AS SELECT * FROM {read(fresh)}")
                write(database, joined(table, "newer", list(held)), target, hours, self._work, self._mode)
            self._written += 1

    def _remove(self, paths: Sequence[str]) -> None:
        for path in paths:
            remove(path)
        self._removed += len(paths)


def _all_hours(files: Mapping[str, Hours]) -> Hours:
    return {key: counts for hours in files.values() for key, counts in hours.items()}

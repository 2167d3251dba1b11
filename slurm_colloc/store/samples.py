# SPDX-License-Identifier: Apache-2.0
"""Samples as Parquet files: their folders, their owners, and the files that a reader takes.

For each of two tables, ``samples`` (what each job used of each GPU) and ``hosts`` (what it did besides):

    <table>/<cluster>/<day>/<node>/<HH>.parquet    an hour of the node's journal, flushed
    <table>/<cluster>/<day>/<node>/raw.parquet     the hours of a closed day, joined

Each file appears whole, by a rename, and a joined day before its hours go. The joined file of a node's day counts
where it is there, and the hours do not: one look at the names, and nothing is counted twice. A file's key-value
metadata has the version of its form and, for each node and hour in it, how long the journal was (it only ever grows)
and how many of its lines were unusable; the file of facts that is made of a day has them, too (facts.py).
``flush_hours`` writes the finished hours of the nodes' journals.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import groupby, islice
from typing import NamedTuple, Protocol

from slurm_colloc.core.errors import StoreError
from slurm_colloc.core.files import as_owner, closed_folder, file_mode, locked, private_folder, remove, whose
from slurm_colloc.core.usage_model import AttributedUse, NodeSample
from slurm_colloc.store.parquet import (
    SUFFIX,
    Hours,
    connection,
    entries,
    folders,
    hours_in,
    parquet_files,
    read,
    there,
    write,
)
from slurm_colloc.store.queries import no_rows
from slurm_colloc.store.sample_tables import (
    HOSTS,
    SHARES,
    TABLES,
    Table,
    insert,
    joined,
    share_rows,
)

DAY = 86_400
RAW_DAY = "raw.parquet"
_BATCH_ROUNDS = 64
# These may lie in a work folder: files of parquet.write, parts of a day, and what DuckDB spills.
_TEMPORARY = ("file.", "part-", "duckdb_temp_")


def _clear(work: str) -> None:
    """Remove what a writer, perhaps a killed one, left in its folder."""
    for entry in entries(work):
        if entry.name.startswith(_TEMPORARY):
            remove(entry.path)


class Source(Protocol):
    """An hour of a node's journal; the counts are final when every NodeSample was taken."""

    node: str
    began_s: int
    read_bytes: int
    rejected: int

    def __iter__(self) -> Iterator[NodeSample]:
        """Yield its NodeSamples."""
        ...


class FlushedHour(NamedTuple):
    """An hour that is flushed; it does not count where only facts of its day are left, made with less of it."""

    size_bytes: int
    counts: bool


class Samples:
    """The sampled part of the store in ``folder``."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    @contextmanager
    def work(self, *name: str) -> Iterator[str | None]:
        """Hold one writer's folder for temporaries, empty before and after; None where another holds it.

        Raises:
            StoreError: it cannot be made or locked, or it, or one above it in the store, is a link or somebody else's.
        """
        path = self.folder
        with as_owner(self.folder):
            try:
                closed_folder(path)
            except OSError as error:
                raise StoreError(f"store '{path}' cannot be made: {error.strerror}; {whose(path)}") from error
            for part in ("work", *name):
                # A user who may write in the store must not point a run of its owner, or of root, elsewhere.
                path = private_folder(os.path.join(path, part))
            with locked(os.path.join(path, "lock")) as held:
                if not held:
                    yield None
                    return
                _clear(path)
                try:
                    yield path
                finally:
                    _clear(path)

    @contextmanager
    def alone(self, what: str, *name: str) -> Iterator[str]:
        """Hold a folder as ``work`` does, to take in ``what``.

        Raises:
            StoreError: as of ``work``, or another run holds it.
        """
        with self.work(*name) as work:
            if work is None:
                raise StoreError(f"another run takes in {what}; wait for its end")
            yield work

    def flush(
        self, cluster: str, hour: Source, attribute: Callable[[NodeSample], tuple[AttributedUse, ...]], work: str
    ) -> int:
        """Write one hour of a journal, whole, in place of an earlier reading of it; return how many NodeSamples it has.

        ``attribute`` splits a NodeSample over its jobs. Passes in the store that this journal has not
        (it was moved, or there are two) stay.

        Raises:
            StoreError: the journal cannot be read or the store not written.
        """
        day, name = day_and_hour(hour.began_s)
        with connection(work) as database:
            for table in TABLES:
                database.execute(f"CREATE TABLE {table.name} AS {no_rows(table.columns)}")
            rounds, count = iter(hour), 0
            while batch := list(islice(rounds, _BATCH_ROUNDS)):
                count += len(batch)
                insert(
                    database,
                    SHARES,
                    (row for sample in batch for row in share_rows(cluster, sample, attribute(sample))),
                )
                hosts = ((sample, host) for sample in batch for host in sample.hosts)
                rows = ((cluster, sample.node, sample.at_s, sample.interval_s, *host) for sample, host in hosts)
                insert(database, HOSTS, rows)
            hours: Hours = {(hour.node, name): (hour.read_bytes, hour.rejected)}
            # Shares come last: an hour with flushed shares has its hosts.
            for table in reversed(TABLES):
                path = os.path.join(self.folder, table.name, cluster, day, hour.node, name + SUFFIX)
                held = database.execute(f"SELECT count(*) FROM {table.name}").fetchone() != (0,)
                if held or table is SHARES:
                    write(database, joined(table, table.name, there(path)), path, hours, work, file_mode(self.folder))
        return count

    def flushed(self, cluster: str, node: str, days: Iterable[str]) -> dict[tuple[str, str], FlushedHour]:
        """Return for each (day, hour) of a node how much of its journal is flushed, in bytes, and whether that counts.

        Raises:
            StoreError: a file cannot be read.
        """
        root = os.path.join(self.folder, SHARES.name, cluster)
        by_hour: dict[tuple[str, str], FlushedHour] = {}
        for day in days:
            # The finest file knows best: an hour that came after its day's facts were made lies beside them. Names
            # are compared: "raw" sorts after the digits.
            files = parquet_files(os.path.join(root, day, node))
            facts = os.path.join(self.folder, "facts", cluster, day + SUFFIX)
            facts_alone = os.path.exists(facts) and RAW_DAY not in map(os.path.basename, files)
            joined_hours: Hours = {}
            for path, hours in hours_in([*([facts] if facts_alone else []), *reversed(files)]).items():
                if path == facts:
                    joined_hours = hours
                counts = (
                    path == facts or not hours.keys() & joined_hours.keys() or hours.items() <= joined_hours.items()
                )
                sizes = {hour: size for (name, hour), (size, _) in hours.items() if name == node}
                by_hour |= {(day, hour): FlushedHour(size, counts) for hour, size in sizes.items()}
        return by_hour

    def days(self, since_s: float, until_s: float) -> list[str]:
        """Return the days that have files for readings of [since, until).

        Raises:
            StoreError: a folder cannot be read.
        """
        begin, end = _days_of(since_s, until_s)
        return sorted({day for table in TABLES for _, day, _ in self.day_folders(table) if begin <= day <= end})

    def day_folders(self, table: Table) -> Iterator[tuple[str, str, str]]:
        """Yield of each cluster and each of its days their names and where the files of a table lie.

        Raises:
            StoreError: a folder cannot be read.
        """
        for cluster in folders(os.path.join(self.folder, table.name)):
            for day in folders(cluster):
                yield os.path.basename(cluster), os.path.basename(day), day

    def files(self, table: Table, since_s: float, until_s: float, day: str | None = None) -> list[str]:
        """Return the files that count for readings of [since, until), of one ``day`` only where it is given.

        Raises:
            StoreError: a folder cannot be read.
        """
        begin, end = _days_of(since_s, until_s)
        chosen: list[str] = []
        for _, name, folder in self.day_folders(table):
            if begin <= name <= end and day in (None, name):
                for node in folders(folder):
                    paths = parquet_files(node)
                    joined_file = os.path.join(node, RAW_DAY)
                    chosen += [joined_file] if joined_file in paths else paths
        return chosen

    def select(self, table: Table, since_s: float, until_s: float, paths: Sequence[str]) -> str:
        """Return a query of the rows of these files whose interval overlaps [since, until)."""
        if not paths:
            return no_rows(table.columns)
        inside = f"at_s > '{since_s}'::DOUBLE AND at_s - interval_s < '{until_s}'::DOUBLE"
        return f"{no_rows(table.columns)} UNION ALL BY NAME SELECT * FROM {read(paths)} WHERE {inside}"

    def facts(self, since_s: float = 0, until_s: float = 1e10) -> dict[str, list[str]]:
        """Return by day the files of facts for [since, until).

        Raises:
            StoreError: a folder cannot be read.
        """
        begin, end = _days_of(since_s, until_s)
        by_day: dict[str, list[str]] = {}
        for cluster in folders(os.path.join(self.folder, "facts")):
            for path in parquet_files(cluster):
                day = os.path.basename(path).removesuffix(SUFFIX)
                if begin <= day <= end:
                    by_day.setdefault(day, []).append(path)
        return dict(sorted(by_day.items()))

    def flushed_until_s(self) -> float | None:
        """Return when the last hour that is flushed ends; None where there is none.

        Raises:
            StoreError: a file cannot be read.
        """
        facts = self.facts()
        for day in sorted({*self.days(0, 1e10), *facts}, reverse=True):
            paths = [*self.files(SHARES, 0, 1e10, day), *facts.get(day, ())]
            if hours := [int(hour) for by_hour in hours_in(paths).values() for _, hour in by_hour]:
                return day_began_s(day) + (max(hours) + 1) * 3600.0
        return None

    def rejected(self, since_s: float, until_s: float) -> int:
        """Return how many journal lines of these days were unusable.

        Raises:
            StoreError: a file cannot be read.
        """
        facts = [path for paths in self.facts(since_s, until_s).values() for path in paths]
        # Facts and the readings that they were made of know the same hours of a cluster.
        lines: dict[tuple[str, ...], int] = {}
        for path, hours in hours_in([*facts, *self.files(SHARES, since_s, until_s)]).items():
            cluster, day = os.path.relpath(path, self.folder).split(os.sep)[1:3]
            for (node, hour), (_, rejected) in hours.items():
                lines[cluster, day.removesuffix(SUFFIX), node, hour] = rejected
        return sum(lines.values())


def day_began_s(day: str) -> int:
    """Return when a UTC day began."""
    return int(datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp())


def _days_of(since_s: float, until_s: float) -> tuple[str, str]:
    """Return the first and last day whose files have readings of [since, until).

    An interval is a day long at most, and ends in the day of its file.
    """
    return day_and_hour(since_s)[0], day_and_hour(until_s + DAY)[0]


def day_and_hour(at_s: float) -> tuple[str, str]:
    """Return the UTC day and hour of a time as file names have them; times beyond all days count as 1970 or 2286."""
    time = datetime.fromtimestamp(min(max(at_s, 0), 1e10), UTC)
    return time.date().isoformat(), f"{time.hour:02}"


class JournalHour(Source, Protocol):
    """An hour of a node's journal as a file that may still grow."""

    path: str

    def size_bytes(self) -> int:
        """Return how long it is now."""
        ...


class Flushed(NamedTuple):
    """Hours written with their NodeSamples, and unusable lines; ``kept`` are hours flushed by earlier runs.

    Hours flushed after their day was compacted are in neither: keep their journal. ``busy`` are nodes whose journal
    another run is flushing, ``errors`` says why the rest is not flushed.
    """

    hours: int
    rounds: int
    rejected: int
    kept: tuple[JournalHour, ...]
    busy: tuple[str, ...]
    errors: tuple[str, ...]


def flush_hours(
    store: Samples,
    cluster: str,
    journal: Iterable[JournalHour],
    attribute: Callable[[NodeSample], tuple[AttributedUse, ...]],
) -> Flushed:
    """Write the hours of a journal, by node, that the store does not have in full.

    ``attribute`` splits a NodeSample over its jobs.
    """
    hour_count = rounds = rejected = 0
    kept: list[JournalHour] = []
    busy: list[str] = []
    errors: list[str] = []
    for node, group in groupby(journal, key=lambda hour: hour.node):
        by_day: dict[str, dict[tuple[str, str], FlushedHour]] = {}
        try:
            with store.work("flush", cluster, node) as work:
                if work is None:
                    busy.append(node)
                    continue
                for hour in group:
                    day = day_and_hour(hour.began_s)[0]
                    try:
                        # A damaged file stops its own day only.
                        if day not in by_day:
                            by_day[day] = store.flushed(cluster, node, [day])
                        flushed_hour = by_day[day].get(day_and_hour(hour.began_s))
                        if flushed_hour and flushed_hour.size_bytes == hour.size_bytes():
                            kept += [hour] if flushed_hour.counts else []
                            continue
                        rounds += store.flush(cluster, hour, attribute, work)
                    except StoreError as error:
                        errors.append(str(error))
                        continue
                    hour_count, rejected = hour_count + 1, rejected + hour.rejected
        except StoreError as error:
            errors.append(str(error))
    return Flushed(hour_count, rounds, rejected, tuple(kept), tuple(busy), tuple(errors))

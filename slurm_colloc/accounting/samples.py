# SPDX-License-Identifier: Apache-2.0
"""What was sampled, as Parquet: where it lies, who may write it, and which files a reader takes.

For each of two tables, ``samples`` (what each job used of each GPU) and ``hosts`` (what it did besides):

    <table>/<cluster>/<day>/<node>/<HH>.parquet            an hour of the node's journal, sealed
    <table>/<cluster>/<day>/<node>/raw.parquet             the hours of a closed day, joined
    <table>/<cluster>/<day>/minute.parquet, day.parquet    the day of all nodes, rolled up

Each file appears whole, by a rename, and a coarser one before the finer ones that it stands for go. So of a day, and
of a node's day, the coarsest file that is there counts and the others do not: one look at the names, and nothing is
counted twice. A file's key-value metadata has the version of its form and, for each node and hour in it, how long the
journal was (it only ever grows) and how many of its lines were unusable.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from typing import NamedTuple, Protocol

from slurm_colloc.accounting.parquet import (
    SUFFIX,
    Hours,
    connection,
    entries,
    folders,
    hours_in,
    parquet_files,
    read,
    remove,
    write,
)
from slurm_colloc.accounting.sample_tables import (
    HOSTS,
    SHARES,
    TABLES,
    Table,
    columns_of,
    host_rows,
    insert,
    joined,
    no_rows,
    share_rows,
)
from slurm_colloc.errors import StoreError
from slurm_colloc.files import as_owner, closed_folder, file_mode, locked, private_folder, whose
from slurm_colloc.measured import JobShare, Round

RAW, MINUTE, DAY = 0, 60, 86_400
GRAINS = {MINUTE: "minute.parquet", DAY: "day.parquet"}
RAW_DAY = "raw.parquet"
_BATCH_ROUNDS = 64
# What may lie in a work folder: files of parquet.write, parts of a day, and what DuckDB spills.
_TEMPORARY = ("file.", "part-", "duckdb_temp_")


def _clear(work: str) -> None:
    """Remove what a writer, perhaps a killed one, left in its folder."""
    for left in entries(work):
        if left.name.startswith(_TEMPORARY):
            remove(left.path)


class Source(Protocol):
    """An hour of a node's journal; the counts are final when every Round was taken."""

    node: str
    began_s: int
    read_bytes: int
    rejected: int

    def __iter__(self) -> Iterator[Round]:
        """Yield its Rounds."""
        ...


class SealedHour(NamedTuple):
    """An hour that is sealed; it does not count where its day was rolled up with less of it."""

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
                # Whoever may write in the store must not point a run of its owner, or of root, elsewhere.
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

    def seal(self, cluster: str, hour: Source, attribute: Callable[[Round], tuple[JobShare, ...]], work: str) -> int:
        """Write one hour of a journal, whole, in place of an earlier reading of it; return how many Rounds it has.

        ``attribute`` splits a Round over its jobs. What is there of passes that this journal has not (it was moved, or
        there are two) stays.

        Raises:
            StoreError: the journal cannot be read or the store not written.
        """
        day, name = day_and_hour(hour.began_s)
        with connection(work) as database:
            for table in TABLES:
                database.execute(f"CREATE TABLE {table.name} ({columns_of(table)})")
            rounds, count = iter(hour), 0
            while batch := list(islice(rounds, _BATCH_ROUNDS)):
                count += len(batch)
                insert(database, SHARES, (row for seen in batch for row in share_rows(cluster, seen, attribute(seen))))
                insert(database, HOSTS, (row for seen in batch for row in host_rows(cluster, seen)))
            known: Hours = {(hour.node, name): (hour.read_bytes, hour.rejected)}
            # Shares last: where they are sealed, so are the hosts.
            for table in reversed(TABLES):
                path = os.path.join(self.folder, table.name, cluster, day, hour.node, name + SUFFIX)
                held = database.execute(f"SELECT count(*) FROM {table.name}").fetchone() != (0,)
                if held or table is SHARES:
                    there = [path] if os.path.exists(path) else []
                    write(database, joined(table, table.name, there), path, known, work, file_mode(self.folder))
        return count

    def sealed(self, cluster: str, node: str, days: Iterable[str]) -> dict[tuple[str, str], SealedHour]:
        """Return for each (day, hour) of a node how much of its journal is sealed, in bytes, and whether that counts.

        Raises:
            StoreError: a file cannot be read.
        """
        root = os.path.join(self.folder, SHARES.name, cluster)
        found: dict[tuple[str, str], SealedHour] = {}
        for day in days:
            folder = os.path.join(root, day)
            # The finest file knows best: an hour that came after its day was rolled up lies beside it.
            rolled = [path for _, path in rolled_up(folder)]
            # By name "raw" sorts after the digits.
            paths = [*rolled, *reversed(parquet_files(os.path.join(folder, node)))]
            whole: Hours = {}
            for path, hours in hours_in(paths).items():
                if path in rolled:
                    whole = whole or hours
                counts = path in rolled or not hours.keys() & whole.keys() or hours.items() <= whole.items()
                of = {hour: size for (name, hour), (size, _) in hours.items() if name == node}
                found |= {(day, hour): SealedHour(size, counts) for hour, size in of.items()}
        return found

    def days(self, since_s: float, until_s: float) -> list[str]:
        """Return the days that have files for readings of [since, until).

        Raises:
            StoreError: a folder cannot be read.
        """
        first, last = (day_and_hour(at_s)[0] for at_s in (since_s, until_s + DAY))
        clusters = [cluster for table in TABLES for cluster in folders(os.path.join(self.folder, table.name))]
        names = {os.path.basename(day) for cluster in clusters for day in folders(cluster)}
        return sorted(day for day in names if first <= day <= last)

    def files(self, table: Table, since_s: float, until_s: float, day: str | None = None) -> dict[int, list[str]]:
        """Return by grain the files that count for readings of [since, until), of one ``day`` only where it is given.

        Raises:
            StoreError: a folder cannot be read.
        """
        # An interval is a day long at most, and ends in the day of its file.
        first, last = (day_and_hour(at_s)[0] for at_s in (since_s, until_s + DAY))
        found: dict[int, list[str]] = {RAW: [], MINUTE: [], DAY: []}
        for folder in (path for cluster in folders(os.path.join(self.folder, table.name)) for path in folders(cluster)):
            if not first <= os.path.basename(folder) <= last or day not in (None, os.path.basename(folder)):
                continue
            rolled = rolled_up(folder)
            if rolled:
                found[rolled[0][0]].append(rolled[0][1])
                continue
            for node in folders(folder):
                paths = parquet_files(node)
                whole = os.path.join(node, RAW_DAY)
                found[RAW] += [whole] if whole in paths else paths
        return found

    def several_nodes(self, since_s: float, until_s: float, day: str) -> bool:
        """Return whether the shares of a day may be of more than one node, as the names of their files tell it.

        Raises:
            StoreError: a folder cannot be read.
        """
        files = self.files(SHARES, since_s, until_s, day)
        return bool(files[MINUTE] or files[DAY]) or len({os.path.dirname(path) for path in files[RAW]}) > 1

    def paths(self, table: Table, since_s: float, until_s: float) -> list[str]:
        """Return the files that count for readings of [since, until), whatever their grain.

        Raises:
            StoreError: a folder cannot be read.
        """
        return [path for paths in self.files(table, since_s, until_s).values() for path in paths]

    def select(self, table: Table, since_s: float, until_s: float, day: str | None = None) -> str:
        """Return a query of the rows whose interval overlaps [since, until), of the files of one ``day`` where given.

        Besides the columns of the table: ``grain_s``, RAW for a reading as it was taken, else the time that it is
        rolled up by; and ``pass_s``, which readings taken together, or rolled up together, have in common.

        Raises:
            StoreError: a folder cannot be read.
        """
        files = self.files(table, since_s, until_s, day)
        inside = f"at_s > '{since_s}'::DOUBLE AND at_s - interval_s < '{until_s}'::DOUBLE"
        parts = [no_rows(table, "NULL::INTEGER AS grain_s, NULL::DOUBLE AS pass_s")]
        for grain, paths in files.items():
            at = f"ceil(at_s / {grain}) * {grain}" if grain else "at_s"
            if paths:
                parts.append(f"SELECT *, {grain} AS grain_s, {at} AS pass_s FROM {read(paths)} WHERE {inside}")
        return " UNION ALL BY NAME ".join(parts)

    def sealed_until_s(self) -> float | None:
        """Return when the last hour that is sealed ends; None where there is none.

        Raises:
            StoreError: a file cannot be read.
        """
        for day in reversed(self.days(0, 1e10)):
            paths = [path for paths in self.files(SHARES, 0, 1e10, day).values() for path in paths]
            if hours := [int(hour) for of in hours_in(paths).values() for _, hour in of]:
                return datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp() + (max(hours) + 1) * 3600
        return None

    def rejected(self, since_s: float, until_s: float) -> int:
        """Return how many journal lines of these days were unusable.

        Raises:
            StoreError: a file cannot be read.
        """
        found = hours_in(self.paths(SHARES, since_s, until_s))
        return sum(rejected for hours in found.values() for _, rejected in hours.values())


def rolled_up(folder: str) -> list[tuple[int, str]]:
    """Return the files in a day's folder that all nodes are rolled up in, with their grain, the coarsest first.

    Raises:
        StoreError: the folder cannot be read.
    """
    there = parquet_files(folder)
    return [(grain, path) for grain in (DAY, MINUTE) if (path := os.path.join(folder, GRAINS[grain])) in there]


def day_and_hour(at_s: float) -> tuple[str, str]:
    """Return the UTC day and hour of a time as file names have them; what is beyond all days counts as 1970 or 2286."""
    at = datetime.fromtimestamp(min(max(at_s, 0), 1e10), UTC)
    return at.date().isoformat(), f"{at.hour:02}"

# SPDX-License-Identifier: Apache-2.0
"""The store: Parquet files that are each written once, whole, by one writer.

``allocations/<source>.parquet`` holds job runs, ``decisions.parquet`` what csub decided, ``past.parquet`` what 'colloc
history bootstrap' found of past jobs, ``ingest/<source>.json`` what was counted; samples are samples.py's.
Writing the same input again replaces the same file, and readers drop repeated runs by identity, so that an ingest can
be repeated at will.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any, TypeVar, get_args

import duckdb

from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.errors import StoreError
from slurm_colloc.core.files import (
    as_owner,
    closed_folder,
    file_mode,
    read_bounded,
    temporary_folder,
    whose,
    write_atomic,
)
from slurm_colloc.core.model import Decision, Evidence
from slurm_colloc.core.usage_model import AllocationRow
from slurm_colloc.slurm.job_visibility import EVERYBODY, Visible
from slurm_colloc.store.decisions import COLUMNS as DECISION_COLUMNS
from slurm_colloc.store.decisions import make_table
from slurm_colloc.store.equivalents import SLICES, make_equivalents
from slurm_colloc.store.parquet import (
    THREADS,
    broken,
    connection,
    entries,
    open_database,
    parquet_files,
    read,
    refuse_later,
    there,
    write,
)
from slurm_colloc.store.queries import make_rows, no_rows, query, quoted, visible_runs, visible_samples
from slurm_colloc.store.sacct_rows import ALLOCATION_COLUMNS, MEANS, RUNAWAY, Means, take_runs
from slurm_colloc.store.sample_tables import SHARES, TABLES, trimmed
from slurm_colloc.store.samples import Samples

T = TypeVar("T")
_KINDS = {str: "VARCHAR", bool: "BOOLEAN", int: "BIGINT", float: "DOUBLE"}
# The cluster and user of a run, and the fields of Evidence.
PAST_COLUMNS = {"cluster": "VARCHAR", "user": "VARCHAR"} | {
    name: _KINDS[get_args(kind)[0] if get_args(kind) else kind] for name, kind in Evidence.__annotations__.items()
}
_MEMORY = "1500MB"
# A million rows of text take as long with more; DuckDB spills the rest.
_TEXT_MEMORY = "180MB"
# Why lines of a journal are not in the store.
REJECTED_LINES = "journal line fails its checksum or form"
# Runs with several readings.
SEVERAL = "SELECT cluster, job_id_raw, start_s FROM {source} GROUP BY ALL HAVING count(*) > 1"
_RENAMED = "SELECT cluster, uuid FROM shares GROUP BY ALL HAVING min(node) != max(node)"


class Store:
    """A folder of Parquet files; ``config`` and the convention ``by`` say the worth of a share there.

    Only runs and samples that are ``visible`` are read.
    """

    def __init__(
        self, folder: str, config: SiteConfig | None = None, by: str = SLICES, visible: Visible = EVERYBODY
    ) -> None:
        self._folder = folder
        self._config = config
        self._by = by
        self.visible = visible
        self.samples = Samples(folder)
        self._decisions_path = os.path.join(folder, "decisions.parquet")
        self._past_path = os.path.join(folder, "past.parquet")

    def take(self, name: str, fill: Callable[[duckdb.DuckDBPyConnection, str], T], *, keep: bool = False) -> T:
        """Write the runs of one source, in place of what that source gave before.

        Args:
            name: the name of the source.
            fill: makes the table ``taken`` in a database, with a folder for temporaries; the store stays as it is if it
                raises.
            keep: the runs that this source gave before and does not now: it forgets, it does not correct.

        Raises:
            StoreError: the folder cannot be written, or another run takes in the same source.
        """
        path = os.path.join(self._folder, "allocations", f"{name}.parquet")
        with (
            self.samples.alone(f"'{name}'", "allocations", name) as work,
            self._in_place_of(path, work, THREADS, _TEXT_MEMORY) as (database, earlier),
        ):
            result = fill(database, work)
            rows = f"SELECT {quoted(ALLOCATION_COLUMNS)} FROM taken"
            if keep and earlier:
                if reason := broken(earlier):
                    raise StoreError(reason)
                rows += f" UNION ALL BY NAME {query('store/sql/kept', old=read(earlier), runaway=RUNAWAY)}"
            write(database, rows, path, {}, work, file_mode(self._folder))
        return result

    @contextmanager
    def _in_place_of(
        self, path: str, work: str = "", threads: int = 1, memory: str = ""
    ) -> Iterator[tuple[duckdb.DuckDBPyConnection, list[str]]]:
        """Open a database, and yield with it the path itself where there is such a file, which is ours to read."""
        earlier = there(path)
        with connection(work, threads, memory) as database:
            refuse_later(database, earlier)
            yield database, earlier

    def write_allocations(
        self, name: str, rows: Sequence[AllocationRow], ingested_s: float, means: Means = (), *, keep: bool = False
    ) -> None:
        """Write the runs of one source, with their means where it brings some; ``keep`` as in ``take``.

        Raises:
            StoreError: the folder cannot be written.
        """
        self.take(name, lambda database, _: take_runs(database, rows, ingested_s, means), keep=keep)

    def write_decisions(self, decisions: Iterable[tuple[str, Decision]]) -> None:
        """Add decisions, by the user whose they are, to those that are kept; the latest of one job counts.

        Raises:
            StoreError: the folder cannot be written.
        """
        path = self._decisions_path
        with self.samples.alone("decisions", "decisions") as work, self._in_place_of(path, work) as (database, earlier):
            make_table(database, decisions)
            # The latest decision on a job counts.
            rows = f"SELECT * FROM {read(earlier)} UNION ALL BY NAME FROM decided" if earlier else "FROM decided"
            select = (
                f'SELECT DISTINCT ON (cluster, "user", job_id, at_s) * FROM ({rows}) '
                'ORDER BY cluster, "user", job_id, at_s, out_of_memory DESC NULLS LAST'
            )
            write(database, select, path, {}, work, file_mode(self._folder))

    def write_past(self, cluster: str, evidence: Iterable[tuple[str, Evidence]]) -> None:
        """Add past jobs, by the user whose they were, to those that are kept; a job's last one counts.

        Raises:
            StoreError: the folder cannot be written.
        """
        with self.samples.alone("past jobs", "past") as work:
            new = [(cluster, user, *run) for user, run in evidence]
            # Later rows of the same cluster, user, job and signature count.
            rows = {row[:4]: row for row in (*self._past_rows(), *new)}
            with connection(work) as database:
                make_rows(database, "past", PAST_COLUMNS, list(rows.values()))
                write(database, "FROM past ORDER BY ALL", self._past_path, {}, work, file_mode(self._folder))

    def past(self, cluster: str) -> dict[str, list[Evidence]]:
        """Return the past jobs of a cluster that were taken in for histories, by user.

        Raises:
            StoreError: the file is corrupt.
        """
        runs_of: dict[str, list[Evidence]] = {}
        for of_cluster, user, *values in self._past_rows():
            if of_cluster == cluster:
                runs_of.setdefault(user, []).append(Evidence(*values))
        return runs_of

    def _past_rows(self) -> list[tuple[Any, ...]]:
        with self._in_place_of(self._past_path) as (database, earlier):
            if reason := broken(earlier):
                raise StoreError(reason)
            return database.execute(f"SELECT {quoted(PAST_COLUMNS)} FROM {read(earlier)}").fetchall() if earlier else []

    def write_log(self, source: str, log: Mapping[str, Any]) -> None:
        """Keep what a source's last ingest counted, so that reports can name the rows they do not have."""
        folder = os.path.join(self._folder, "ingest")
        with as_owner(self._folder):
            try:
                # The store itself is closed to others, unless its keeper opens it.
                closed_folder(self._folder)
                os.makedirs(folder, exist_ok=True)
            except OSError as error:
                raise StoreError(f"folder '{folder}' cannot be made: {error.strerror}; {whose(folder)}") from error
            write_atomic(
                os.path.join(folder, f"{source}.json"), json.dumps(log).encode(), file_mode(self._folder), durable=True
            )

    def logs(self) -> dict[str, dict[str, Any]]:
        """Return what the last ingest of each source counted.

        Raises:
            StoreError: a log is damaged, or the store is closed to this user.
        """
        logs = {}
        for entry in entries(os.path.join(self._folder, "ingest")):
            if entry.name.endswith(".json"):
                try:
                    log = json.loads(read_bounded(entry.path, 1024 * 1024))
                except ValueError:
                    log = None
                if not isinstance(log, dict):
                    raise StoreError(f"log '{entry.path}' is damaged; remove it, and ingest again")
                logs[entry.name.removesuffix(".json")] = log
        return logs

    @contextmanager
    def connect(self, since_s: float = -inf, until_s: float = inf) -> Iterator[duckdb.DuckDBPyConnection]:
        """Open a database with the views ``allocations`` (each run once), ``readings``, ``shares`` and ``hosts``.

        ``shares`` and ``hosts`` have the rows of which a part lies in [since, until). Nothing is read of any of them
        yet. The tables ``placed`` and ``equivalents`` say what the gres of the readings are worth.

        Raises:
            StoreError: a file is corrupt, or another error of the database while it is open.
        """
        # It has a folder of its own to spill to; DuckDB would spill into the working directory.
        with temporary_folder() as work, open_database(work, THREADS, _MEMORY) as database:
            try:
                files = parquet_files(os.path.join(self._folder, "allocations"))
                refuse_later(database, files)
                source = no_rows(ALLOCATION_COLUMNS)
                if files:
                    source += f" UNION ALL BY NAME SELECT * FROM {read(files)}"
                filter_text = visible_runs(self.visible)
                database.execute(f"CREATE VIEW readings AS SELECT * FROM ({source}) WHERE {filter_text}")
                self.ready(database, since_s, until_s)
                yield database
            except duckdb.Error as error:
                reason = (
                    self._broken(since_s, until_s) or f"store '{self._folder}' cannot be read: {error}; ingest again"
                )
                if "Permission denied" in str(error):
                    reason = f"store '{self._folder}' is closed to this user: {whose(self._folder)}"
                raise StoreError(reason) from error

    @contextmanager
    def over(
        self, work: str, fill: Callable[[duckdb.DuckDBPyConnection], T]
    ) -> Iterator[tuple[duckdb.DuckDBPyConnection, T]]:
        """Open a database as ``connect`` does, over runs outside the store: ``fill`` makes ``taken`` of them."""
        with open_database(work, THREADS, _TEXT_MEMORY) as database:
            try:
                result = fill(database)
                database.execute("CREATE VIEW readings AS FROM taken")
                self.ready(database)
                yield database, result
            except duckdb.Error as error:
                raise StoreError(
                    self._broken(-inf, inf) or f"the runs of the text cannot be added up: {error}"
                ) from error

    def ready(self, database: duckdb.DuckDBPyConnection, since_s: float = -inf, until_s: float = inf) -> None:
        """Make all that ``connect`` promises of the table or view ``readings``."""
        # DuckDB takes the rows that conditions on times leave for a handful, and hashes millions to look up six.
        # Queries say themselves what is to be looked up in what: they join the smaller to the larger.
        database.execute("SET disabled_optimizers = 'join_order'")
        database.execute(f"CREATE VIEW allocations AS {once('readings')}")
        decisions = there(self._decisions_path)
        earlier = f" UNION ALL BY NAME FROM {read(decisions)}" if decisions else ""
        database.execute(f"CREATE VIEW decisions AS {no_rows(DECISION_COLUMNS)}{earlier}")
        make_equivalents(database, self._config, self._by)
        database.execute(f"CREATE VIEW sized AS {query('store/sql/sized')}")
        self.view_samples(database, since_s, until_s)

    def view_samples(
        self, database: duckdb.DuckDBPyConnection, since_s: float, until_s: float, day: str | None = None
    ) -> None:
        """Let the views ``shares`` and ``hosts`` show [since, until), or the files of one ``day`` only.

        A job's hold of a GPU in a day is there once, also where two samplers call the GPU's node by two names.
        """
        shares, hosts = (self.samples.files(table, since_s, until_s, day) for table in TABLES)
        self.view_files(database, (shares, hosts), since_s, until_s, of_a_day=day is not None)

    def view_files(
        self,
        database: duckdb.DuckDBPyConnection,
        paths: tuple[Sequence[str], Sequence[str]],
        since_s: float = -inf,
        until_s: float = inf,
        *,
        of_a_day: bool = True,
    ) -> None:
        """Let the views ``shares`` and ``hosts`` show [since, until) of these files; see ``view_samples``."""
        shares, hosts = (
            visible_samples(self.visible, self.samples.select(table, since_s, until_s, table_files))
            for table, table_files in zip(TABLES, paths, strict=True)
        )
        database.execute(f"CREATE OR REPLACE VIEW shares AS {shares}")
        database.execute(f"CREATE OR REPLACE VIEW hosts AS {hosts}")
        if not of_a_day or len({os.path.dirname(path) for path in paths[0]}) < 2:
            return
        database.execute(f"CREATE OR REPLACE TABLE renamed AS {_RENAMED}")
        if database.execute("SELECT 1 FROM renamed LIMIT 1").fetchone():
            once_each = trimmed(SHARES, f"SELECT * FROM ({shares}) SEMI JOIN renamed USING (cluster, uuid)", SHARES.one)
            unrenamed = f"SELECT * FROM ({shares}) ANTI JOIN renamed USING (cluster, uuid)"
            database.execute(f"CREATE OR REPLACE VIEW shares AS {unrenamed} UNION ALL BY NAME {once_each}")

    def rows(
        self, text: str, parameters: Mapping[str, Any], since_s: float = -inf, until_s: float = inf
    ) -> list[tuple[Any, ...]]:
        """Return what ``text``, a query, finds in the tables of ``connect``.

        Raises:
            StoreError: a file is corrupt.
        """
        with self.connect(since_s, until_s) as database:
            return database.execute(text, parameters).fetchall()

    def open_days(self, until_s: float) -> list[float]:
        """Return the UTC days before ``until_s`` in which runs of which no end is known began or were last seen.

        Raises:
            StoreError: a file is corrupt.
        """
        days = """
            SELECT DISTINCT floor(unnest([start_s, ingested_s]) / 86400) * 86400 AS day_s
            FROM allocations WHERE end_s IS NULL AND start_s IS NOT NULL AND ingested_s < $until
        """
        return sorted(day_s for (day_s,) in self.rows(days, {"until": until_s}) if day_s < until_s)

    def _broken(self, since_s: float, until_s: float) -> str:
        sampled = [path for table in TABLES for path in self.samples.files(table, since_s, until_s)]
        sampled += [path for paths in self.samples.facts(since_s, until_s).values() for path in paths]
        runs = parquet_files(os.path.join(self._folder, "allocations"))
        return broken([*runs, *there(self._decisions_path), *sampled])


def once(source: str, several: str = "") -> str:
    """Return a query of the rows of the table or view ``source``, each run once.

    ``several`` is a table of what SEVERAL finds in ``source``, where there is one.
    """
    means = ", ".join(f"first_value({name}) OVER newest AS {name}" for name in MEANS)
    several = several or f"({SEVERAL.format(source=source)})"
    return query("store/sql/once", source=source, several=several, means=means)


def open_store(folder: str, config: SiteConfig | None = None, by: str = SLICES, visible: Visible = EVERYBODY) -> Store:
    """Return the store in ``folder`` to read from, of which only what is ``visible`` is shown.

    Raises:
        StoreError: nothing was ever taken in, so that every figure of it would say "nothing" of something.
    """
    store = Store(folder, config, by, visible)
    if not store.logs():
        raise StoreError(f"store '{folder}' holds nothing; run 'colloc ingest' first, or name another with --store")
    return store

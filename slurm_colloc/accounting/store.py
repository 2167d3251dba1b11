# SPDX-License-Identifier: Apache-2.0
"""The store: Parquet files that are each written once, whole, by one writer.

``allocations/<source>.parquet`` holds job runs; what was sampled is samples.py's. Writing the same input again replaces
the same file, and readers drop repeated runs by identity, so that an ingest can be repeated at will.
"""

import glob
import json
import os
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import duckdb
import pandas as pd

from slurm_colloc.accounting.equivalents import devices, gpu_equivalents
from slurm_colloc.accounting.parquet import broken, sql, write
from slurm_colloc.accounting.samples import HOSTS, SHARES, TABLES, Samples
from slurm_colloc.config import SiteConfig
from slurm_colloc.errors import StoreError
from slurm_colloc.files import as_owner, closed_folder, file_mode, read_bounded, whose, write_atomic
from slurm_colloc.model import AllocationRow

# Why lines of a journal are not in the store.
REJECTED_LINES = "journal line fails its checksum or form"
ALLOCATION_COLUMNS = {
    "cluster": "VARCHAR",
    "job_id": "VARCHAR",
    "job_id_raw": "VARCHAR",
    "user": "VARCHAR",
    "account": "VARCHAR",
    "partition": "VARCHAR",
    "qos": "VARCHAR",
    "state": "VARCHAR",
    "submit_s": "BIGINT",
    "start_s": "BIGINT",
    "end_s": "BIGINT",
    "suspended_s": "BIGINT",
    "node_list": "VARCHAR",
    "job_name": "VARCHAR",
    "gres": "VARCHAR",
    "gpus": "DOUBLE",
    "devices": "INTEGER",
    "mean_gpu_util_pct": "DOUBLE",
    "ingested_s": "DOUBLE",
}


class Store:
    """A folder of Parquet files."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self.samples = Samples(folder)

    def write_allocations(
        self,
        name: str,
        rows: Sequence[AllocationRow],
        config: SiteConfig | None,
        ingested_s: float,
        mean_gpu_util_pct: Sequence[float | None] = (),
    ) -> None:
        """Write the runs of one source, in place of what that source gave before.

        Raises:
            StoreError: the folder cannot be written.
        """
        means = mean_gpu_util_pct or [None] * len(rows)
        records = [
            (
                *(_clean(value) for value in (*row[:12], *row[13:])),
                ",".join(str(gres) for gres in row.gres),
                gpu_equivalents(row.gres, row.node_list, config),
                devices(row.gres),
                mean,
                ingested_s,
            )
            for row, mean in zip(rows, means, strict=True)
        ]
        self._write(os.path.join("allocations", name), records, ALLOCATION_COLUMNS)

    def write_log(self, source: str, log: Mapping[str, Any]) -> None:
        """Keep what a source's last ingest counted, so that reports can name the rows they do not have."""
        path = os.path.join(self._folder, "ingest", f"{source}.json")
        with as_owner(self._folder):
            try:
                self._make_folder(path)
            except OSError as error:
                where = os.path.dirname(path)
                raise StoreError(f"folder '{where}' cannot be made: {error.strerror}; {whose(where)}") from error
            write_atomic(path, json.dumps(log).encode(), file_mode(self._folder))

    def logs(self) -> dict[str, dict[str, Any]]:
        """Return what the last ingest of each source counted."""
        folder = os.path.join(self._folder, "ingest")
        names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        return {
            name.removesuffix(".json"): json.loads(read_bounded(os.path.join(folder, name), 1024 * 1024))
            for name in names
            if name.endswith(".json")
        }

    def _write(self, name: str, records: list[tuple[Any, ...]], columns: dict[str, str]) -> None:
        path = os.path.join(self._folder, f"{name}.parquet")
        frame = pd.DataFrame.from_records(records, columns=list(columns))
        casts = ", ".join(f'CAST("{column}" AS {kind}) AS "{column}"' for column, kind in columns.items())
        with as_owner(self._folder):
            try:
                self._make_folder(path)
                with duckdb.connect() as connection:
                    connection.register("frame", frame)
                    query = f"SELECT {casts} FROM frame"  # noqa: S608
                    write(connection, query, path, {}, os.path.dirname(path), file_mode(self._folder))
            except (OSError, duckdb.Error) as error:
                raise StoreError(f"store file '{path}' cannot be written: {error}") from error

    def _make_folder(self, path: str) -> None:
        """Make the folder of ``path``; the store itself is closed to others, unless whoever keeps it opens it."""
        closed_folder(self._folder)
        os.makedirs(os.path.dirname(path), exist_ok=True)

    def connect(self, since_s: float = -inf, until_s: float = inf) -> duckdb.DuckDBPyConnection:
        """Return a connection with the table ``allocations`` and the views ``shares`` and ``hosts``, each row once.

        The views hold the rows of which a part lies in [since, until), and nothing is read of them yet.

        Raises:
            StoreError: a file is corrupt.
        """
        connection = duckdb.connect()
        try:
            self._allocations(connection)
            for name, table in (("shares", SHARES), ("hosts", HOSTS)):
                connection.execute(f"CREATE VIEW {name} AS {self.samples.select(table, since_s, until_s)}")
        except duckdb.Error as error:
            connection.close()
            raise self._unreadable(error, since_s, until_s) from error
        return connection

    def rows(
        self, query: str, parameters: Mapping[str, Any], since_s: float = -inf, until_s: float = inf
    ) -> list[tuple[Any, ...]]:
        """Return what ``query`` finds in the tables of ``connect``.

        Raises:
            StoreError: a file is corrupt.
        """
        with self.connect(since_s, until_s) as connection:
            try:
                return connection.execute(query, parameters).fetchall()
            except duckdb.Error as error:
                raise self._unreadable(error, since_s, until_s) from error

    def _unreadable(self, error: Exception, since_s: float, until_s: float) -> StoreError:
        if "Permission denied" in str(error):
            return StoreError(f"store '{self._folder}' is closed to this user: {whose(self._folder)}")
        sampled = [path for table in TABLES for path in self.samples.paths(table, since_s, until_s)]
        why = broken([*sampled, *self.samples.first_release()])
        return StoreError(why or f"store '{self._folder}' cannot be read: {error}; ingest again")

    def _allocations(self, connection: duckdb.DuckDBPyConnection) -> None:
        folder = os.path.join(self._folder, "allocations")
        held = any(name.endswith(".parquet") for _, _, names in os.walk(folder) for name in names)
        empty = ", ".join(f'NULL::{sort} AS "{column}"' for column, sort in ALLOCATION_COLUMNS.items())
        pattern = f"{sql(glob.escape(folder))}/**/*.parquet"
        files = f"SELECT * FROM read_parquet('{pattern}', hive_partitioning = false)"  # noqa: S608
        source = files if held else f"SELECT {empty} WHERE false"
        # Of two readings of one run the one that knows its end, however old its source: a run does not reopen. Then the
        # newest; then any, but always the same one. A mean survives the choice, whichever reading brought it.
        rest = ", ".join(f'"{column}"' for column in ALLOCATION_COLUMNS)
        same = "PARTITION BY cluster, job_id_raw, start_s"
        connection.execute(
            f"CREATE TABLE allocations AS SELECT * REPLACE (max(mean_gpu_util_pct) OVER ({same}) AS mean_gpu_util_pct) "  # noqa: S608
            f"FROM ({source}) QUALIFY row_number() OVER "
            f"({same} ORDER BY end_s IS NULL, ingested_s DESC, end_s DESC, {rest}) = 1"
        )


def open_store(folder: str) -> Store:
    """Return the store in ``folder`` to read from.

    Raises:
        StoreError: nothing was ever taken in, so that every figure of it would say "nothing" of something.
    """
    store = Store(folder)
    if not store.logs():
        raise StoreError(f"store '{folder}' holds nothing; run 'colloc ingest' first, or name another with --store")
    return store


def _clean(value: Any) -> Any:
    """Return text that Parquet can hold: bytes outside UTF-8 become their escapes, not an error."""
    return value.encode(errors="surrogateescape").decode(errors="backslashreplace") if isinstance(value, str) else value

# SPDX-License-Identifier: Apache-2.0
"""The store: Parquet files that are each written once, whole, by one writer.

``allocations/<source>.parquet`` holds job runs, ``shares/<node>/<hour>.parquet`` what each job used of each device.
Writing the same input again replaces the same file, and readers drop repeated rows by identity, so that an ingest can
be repeated at will.
"""

import glob
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import duckdb
import pandas as pd

from slurm_colloc.accounting.equivalents import devices, gpu_equivalents, unit_gpus
from slurm_colloc.config import SiteConfig
from slurm_colloc.errors import StoreError
from slurm_colloc.files import closed_folder, file_mode, read_bounded, temporary_path, write_atomic
from slurm_colloc.model import ADDITIVE, AllocationRow, JobShare, Round

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
SHARE_COLUMNS = {
    "cluster": "VARCHAR",
    "node": "VARCHAR",
    "at_s": "DOUBLE",
    "interval_s": "DOUBLE",
    "uuid": "VARCHAR",
    "job_id": "VARCHAR",
    "unit_gpus": "DOUBLE",
    "whole_sm_part": "DOUBLE",
    "gpu_model": "VARCHAR",
    "profile": "VARCHAR",
    "process_count": "INTEGER",
    "gpu_util_pct": "DOUBLE",
    "gr_active_pct": "DOUBLE",
    "sm_active_pct": "DOUBLE",
    "sm_occupancy_pct": "DOUBLE",
    "tensor_active_pct": "DOUBLE",
    "dram_active_pct": "DOUBLE",
    "energy_j": "DOUBLE",
    "gpu_mem_used_mib": "BIGINT",
    "method": "VARCHAR",
    "sharers": "INTEGER",
}


class Store:
    """A folder of Parquet files."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

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

    def write_shares(self, name: str, cluster: str, seen: Iterable[tuple[Round, Sequence[JobShare]]]) -> None:
        """Write what the jobs used in the Rounds of one journal file.

        Raises:
            StoreError: the folder cannot be written.
        """
        records = [record for passed, shares in seen for record in _share_records(cluster, passed, shares)]
        self._write(os.path.join("shares", name), records, SHARE_COLUMNS)

    def write_log(self, source: str, log: Mapping[str, Any]) -> None:
        """Keep what a source's last ingest counted, so that reports can name the rows they do not have."""
        path = os.path.join(self._folder, "ingest", f"{source}.json")
        try:
            self._make_folder(path)
        except OSError as error:
            raise StoreError(f"folder '{os.path.dirname(path)}' cannot be created: {error.strerror}") from error
        write_atomic(path, json.dumps(log).encode(), file_mode(self._folder))

    def has_log(self, source: str) -> bool:
        """Return whether an ingest of ``source`` was logged."""
        return os.path.exists(os.path.join(self._folder, "ingest", f"{source}.json"))

    def logs(self) -> dict[str, dict[str, Any]]:
        """Return what the last ingest of each source counted."""
        folder = os.path.join(self._folder, "ingest")
        names = sorted(os.listdir(folder)) if os.path.isdir(folder) else []
        return {
            name.removesuffix(".json"): json.loads(read_bounded(os.path.join(folder, name), 1024 * 1024))
            for name in names
            if name.endswith(".json")
        }

    def share_written_s(self, name: str) -> float | None:
        """Return when the shares called ``name`` were written, None when they are not there."""
        try:
            return os.stat(os.path.join(self._folder, "shares", f"{name}.parquet")).st_mtime
        except FileNotFoundError:
            return None

    def _write(self, name: str, records: list[tuple[Any, ...]], columns: dict[str, str]) -> None:
        path = os.path.join(self._folder, f"{name}.parquet")
        temporary = temporary_path(path)
        frame = pd.DataFrame.from_records(records, columns=list(columns))
        casts = ", ".join(f'CAST("{column}" AS {kind}) AS "{column}"' for column, kind in columns.items())
        try:
            self._make_folder(path)
            with duckdb.connect() as connection:
                connection.register("frame", frame)
                connection.execute(f"COPY (SELECT {casts} FROM frame) TO '{_sql(temporary)}' (FORMAT parquet)")  # noqa: S608
            os.chmod(temporary, file_mode(self._folder))
            os.replace(temporary, path)
        except (OSError, duckdb.Error) as error:
            with suppress(OSError):
                os.unlink(temporary)
            raise StoreError(f"store file '{path}' cannot be written: {error}") from error

    def _make_folder(self, path: str) -> None:
        """Make the folder of ``path``; the store itself is closed to others, unless whoever keeps it opens it."""
        closed_folder(self._folder)
        os.makedirs(os.path.dirname(path), exist_ok=True)

    def connect(self) -> duckdb.DuckDBPyConnection:
        """Return a connection with the views ``allocations`` and ``shares``, each row once.

        Raises:
            StoreError: a file is corrupt.
        """
        connection = duckdb.connect()
        try:
            self._view(connection, "allocations", ALLOCATION_COLUMNS, ("cluster", "job_id_raw", "start_s"))
            self._view(connection, "shares", SHARE_COLUMNS, ("cluster", "uuid", "at_s", "job_id"))
        except duckdb.Error as error:
            connection.close()
            raise StoreError(f"store '{self._folder}' cannot be read: {error}; ingest again") from error
        return connection

    def _view(
        self, connection: duckdb.DuckDBPyConnection, kind: str, columns: dict[str, str], key: Sequence[str]
    ) -> None:
        folder = os.path.join(self._folder, kind)
        held = any(name.endswith(".parquet") for _, _, names in os.walk(folder) for name in names)
        empty = ", ".join(f'NULL::{sort} AS "{column}"' for column, sort in columns.items())
        pattern = f"{_sql(glob.escape(folder))}/**/*.parquet"
        files = f"SELECT * FROM read_parquet('{pattern}', hive_partitioning = false)"  # noqa: S608
        source = files if held else f"SELECT {empty} WHERE false"
        # Of two readings of one run the one that knows its end, however old its source: a run does not reopen. Then the
        # newest; then any, but always the same one. A mean survives the choice, whichever reading brought it.
        rest = ", ".join(f'"{column}"' for column in columns)
        runs = "ingested_s" in columns
        newest = f"end_s IS NULL, ingested_s DESC, end_s DESC, {rest}" if runs else rest
        same = f"PARTITION BY {', '.join(key)}"
        mean = f" REPLACE (max(mean_gpu_util_pct) OVER ({same}) AS mean_gpu_util_pct)" if runs else ""
        connection.execute(
            f"CREATE TABLE {kind} AS SELECT *{mean} FROM ({source}) "  # noqa: S608
            f"QUALIFY row_number() OVER ({same} ORDER BY {newest}) = 1"
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


def _share_records(cluster: str, passed: Round, shares: Sequence[JobShare]) -> Iterable[tuple[Any, ...]]:
    devices_by_uuid = {device.uuid: device for device in passed.devices}
    for share in shares:
        device = devices_by_uuid[share.uuid]
        yield (
            cluster,
            passed.node,
            passed.at_s,
            passed.interval_s,
            share.uuid,
            share.job_id,
            unit_gpus(device.profile, device.model),
            device.sm_count / device.whole_sm_count if device.whole_sm_count else 1.0,
            device.model,
            device.profile,
            share.process_count,
            *(getattr(share, name) for name in ADDITIVE),
            share.gpu_mem_used_mib,
            share.method,
            len({other.job_id for other in shares if other.uuid == share.uuid and other.job_id}),
        )


def _clean(value: Any) -> Any:
    """Return text that Parquet can hold: bytes outside UTF-8 become their escapes, not an error."""
    return value.encode(errors="surrogateescape").decode(errors="backslashreplace") if isinstance(value, str) else value


def _sql(path: str) -> str:
    return path.replace("'", "''")

# SPDX-License-Identifier: Apache-2.0
"""Parquet files of samples: read, written whole, and what their metadata says of them."""

import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

import duckdb

from slurm_colloc.core.errors import StoreError
from slurm_colloc.core.files import sync_folder, temporary_folder, temporary_path, whose
from slurm_colloc.store.queries import make_rows, sql

SCHEMA = 1
SUFFIX = ".parquet"
_PATTERN = re.compile(r"[*?[]")
_REPORT_KINDS = {int: "BIGINT", float: "DOUBLE"}

# (node, hour) -> (bytes of its journal, lines of it that were unusable)
Hours = dict[tuple[str, str], tuple[int, int]]


# Each thread takes memory of its own: with eight, a million runs of text no longer fit into what a database may take.
THREADS = 2


def open_database(work: str, threads: int, memory: str) -> duckdb.DuckDBPyConnection:
    """Open a database in memory that spills into ``work`` from ``memory`` on (empty: when that is full).

    One thread, where a node's cores are its jobs'; else THREADS, however many cores there are.
    """
    config: dict[str, str | bool | int | float | list[str]] = {"temp_directory": work, "threads": threads}
    config |= {"preserve_insertion_order": False} if threads > 1 else {}
    config |= {"memory_limit": memory} if memory else {}
    return duckdb.connect(config=config)


@contextmanager
def connection(work: str = "", threads: int = 1, memory: str = "") -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a database as ``open_database`` does; its errors are ours.

    Raises:
        StoreError: anything that it could not do.
    """
    with open_database(work, threads, memory) as database:
        try:
            yield database
        except duckdb.Error as error:
            raise StoreError(f"the store cannot be read or written: {error}") from error


def write(
    database: duckdb.DuckDBPyConnection,
    select: str,
    path: str,
    hours: Hours,
    work: str,
    mode: int,
    *,
    more: Mapping[str, str] = MappingProxyType({}),
    group: int = 122_880,
) -> None:
    """Write the rows of ``select`` to the Parquet file ``path``, whole or not at all, by way of the folder ``work``.

    ``more`` goes into its metadata, too; ``group`` rows at most are in one group of rows.

    Raises:
        StoreError: a folder cannot be written.
    """
    temporary = temporary_path(os.path.join(work, "file"))
    hours_of: dict[str, dict[str, tuple[int, int]]] = {}
    for (node, hour), counts in sorted(hours.items()):
        hours_of.setdefault(node, {})[hour] = counts
    pairs = {"schema": str(SCHEMA), "hours": json.dumps(hours_of), **more}
    metadata = ", ".join(f"{name}: '{sql(value)}'" for name, value in pairs.items())
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        database.execute(
            f"COPY ({select}) TO '{sql(temporary)}' (FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 9, "
            f"ROW_GROUP_SIZE {group}, KV_METADATA {{{metadata}}})"
        )
        descriptor = os.open(temporary, os.O_RDONLY)
        try:
            os.fchmod(descriptor, mode)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.replace(temporary, path)
        sync_folder(os.path.dirname(path))
    except (OSError, duckdb.Error) as error:
        with suppress(OSError):
            os.unlink(temporary)
        raise StoreError(f"store file '{path}' cannot be written: {error}") from error


def hours_in(paths: Sequence[str]) -> dict[str, Hours]:
    """Return what each file's metadata says of the hours in it, in the order of ``paths``.

    Raises:
        StoreError: a file cannot be read, or was written by a later release.
    """
    hours: dict[str, Hours] = {}
    for path, metadata in _metadata(paths).items():
        if "schema" not in metadata:  # hours of a file that names none would be taken in again and again
            raise StoreError(f"store file '{path}' does not say what is in it; move what is not ours elsewhere")
        if int(metadata["schema"]) > SCHEMA:
            raise _later(path, metadata["schema"])
        nodes = json.loads(metadata["hours"])
        hours[path] = {(node, hour): (*counts,) for node, by_hour in nodes.items() for hour, counts in by_hour.items()}
    return hours


def told_by(paths: Sequence[str], name: str) -> dict[str, str]:
    """Return what each file's metadata says under a name; nothing of one that says nothing.

    Raises:
        StoreError: a file cannot be read.
    """
    return {path: metadata[name] for path, metadata in _metadata(paths).items() if name in metadata}


def _metadata(paths: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return each file's metadata by its names, in the order of ``paths``."""
    by_path: dict[str, dict[str, str]] = {path: {} for path in paths}
    query = f"SELECT file_name, decode(key), decode(value) FROM parquet_kv_metadata({listed(paths)})"
    if paths:
        with connection() as database:
            for path, key, value in database.execute(query).fetchall():
                by_path[path][key] = value
    return by_path


def refuse_later(database: duckdb.DuckDBPyConnection, paths: Sequence[str]) -> None:
    """Refuse files of a later release, whose columns may mean something else; readers will name a damaged one.

    Raises:
        StoreError: one of them is of a later release.
    """
    query = f"SELECT file_name, decode(value)::INTEGER FROM parquet_kv_metadata({listed(paths)})"
    with suppress(duckdb.Error):
        for path, schema in database.execute(f"{query} WHERE decode(key) = 'schema'").fetchall() if paths else ():
            if schema > SCHEMA:
                raise _later(path, schema)


def _later(path: str, schema: int | str) -> StoreError:
    return StoreError(f"store file '{path}' has schema {schema}, later than {SCHEMA}; upgrade")


def broken(paths: Iterable[str]) -> str:
    """Return which of the files cannot be read to its end, and why; nothing where all can.

    DuckDB names a file that it cannot open, and not one whose pages are damaged.
    """
    for path in paths:
        try:
            with duckdb.connect(config={"threads": 1}) as database:
                database.execute(f"SELECT max(hash(COLUMNS(*))) FROM {read([path])}").fetchall()
        except duckdb.Error as error:
            return f"store file '{path}' cannot be read: {str(error).splitlines()[0]}; move it away, or restore it"
    return ""


def read(paths: Sequence[str]) -> str:
    """Return the table function that reads these files, whichever columns each of them has."""
    return f"read_parquet({listed(paths)}, union_by_name = true, hive_partitioning = false)"


def listed(paths: Sequence[str]) -> str:
    """Return paths of regular files as a list in SQL.

    Raises:
        StoreError: one is something else, which DuckDB might wait for.
    """
    for path in paths:
        with suppress(OSError):  # DuckDB says which
            if not stat.S_ISREG(os.stat(path).st_mode):
                raise StoreError(f"store file '{path}' is not a regular file; move it away, or restore it")
    return f"[{', '.join(map(quoted_path, paths))}]"


def quoted_path(path: str) -> str:
    """Return a path as a text in SQL that names this file alone, whatever letters of patterns are in it."""
    alone = _PATTERN.sub(r"[\g<0>]", path)
    return f"'{sql(alone)}'"


def parquet_files(folder: str) -> list[str]:
    """Return the Parquet files in ``folder`` by name; none where there is no such folder.

    Raises:
        StoreError: it cannot be read.
    """
    return [entry.path for entry in entries(folder) if entry.name.endswith(SUFFIX)]


def there(path: str) -> list[str]:
    """Return the path of a file where there is one; else none."""
    return [path] if os.path.exists(path) else []


def folders(folder: str) -> list[str]:
    """Return the folders in ``folder`` by name; none where there is no such folder.

    Raises:
        StoreError: it cannot be read.
    """
    return [entry.path for entry in entries(folder) if entry.is_dir()]


def entries(folder: str) -> list["os.DirEntry[str]"]:
    """Return what is in ``folder`` by name; nothing where there is no such folder.

    Raises:
        StoreError: it cannot be read.
    """
    try:
        with os.scandir(folder) as iterator:
            return sorted(iterator, key=lambda entry: entry.name)
    except FileNotFoundError:
        return []
    except PermissionError as error:
        raise StoreError(f"store folder '{folder}' is closed to this user: {whose(folder)}") from error
    except OSError as error:
        raise StoreError(f"store folder '{folder}' cannot be read: {error.strerror}") from error


def parquet_bytes(kinds: Mapping[str, Any], rows: Sequence[Sequence[Any]], about: Mapping[str, str]) -> bytes:
    """Return a Parquet file.

    Args:
        kinds: column -> type; it is text unless it is a whole number or one with a fraction.
        rows: their values are in the order of the columns.
        about: goes into its metadata.

    Raises:
        StoreError: there is no room for it.
    """
    columns = {name: _REPORT_KINDS.get(next(iter(get_args(kind)), kind), "VARCHAR") for name, kind in kinds.items()}
    # Metadata is a text in a query, and not every release of DuckDB takes one with a NUL.
    escaped = {name: _text(value).replace("\0", "\\x00") for name, value in about.items()}
    metadata = ", ".join(f"{name}: '{sql(value)}'" for name, value in escaped.items())
    with temporary_folder() as folder, connection(folder) as database:
        path = os.path.join(folder, "report.parquet")
        make_rows(database, "report", columns, [[_text(v) if isinstance(v, str) else v for v in row] for row in rows])
        database.execute(f"COPY report TO '{sql(path)}' (FORMAT parquet, COMPRESSION zstd, KV_METADATA {{{metadata}}})")
        return Path(path).read_bytes()


def _text(text: str) -> str:
    # A name of bytes that are no UTF-8, which Parquet's texts are.
    return text.encode(errors="backslashreplace").decode()

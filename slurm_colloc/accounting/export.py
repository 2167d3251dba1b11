# SPDX-License-Identifier: Apache-2.0
"""Figures of a report as a Parquet file."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, get_args

from slurm_colloc.accounting.parquet import connection, make_rows, sql

_KINDS = {int: "BIGINT", float: "DOUBLE"}


def parquet_bytes(kinds: Mapping[str, Any], rows: Sequence[Sequence[Any]], about: Mapping[str, str]) -> bytes:
    """Return a Parquet file.

    Args:
        kinds: column -> type; what is neither a whole number nor one with a fraction is text.
        rows: in the order of the columns.
        about: goes into its metadata.

    Raises:
        StoreError: there is no room for it.
    """
    columns = {name: _KINDS.get(next(iter(get_args(kind)), kind), "VARCHAR") for name, kind in kinds.items()}
    # Metadata is a text in a query, and not every release of DuckDB takes one with a NUL.
    shown = {name: _text(value).replace("\0", "\\x00") for name, value in about.items()}
    metadata = ", ".join(f"{name}: '{sql(value)}'" for name, value in shown.items())
    with TemporaryDirectory(prefix="colloc-") as folder, connection(folder) as database:
        path = os.path.join(folder, "report.parquet")
        make_rows(database, "report", columns, [[_text(v) if isinstance(v, str) else v for v in row] for row in rows])
        database.execute(f"COPY report TO '{sql(path)}' (FORMAT parquet, COMPRESSION zstd, KV_METADATA {{{metadata}}})")
        return Path(path).read_bytes()


def _text(text: str) -> str:
    # A name of bytes that are no UTF-8, which Parquet's texts are.
    return text.encode(errors="backslashreplace").decode()

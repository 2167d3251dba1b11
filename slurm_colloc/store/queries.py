# SPDX-License-Identifier: Apache-2.0
"""The queries in sql/, one a file under its name, and rows to and from the database."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from duckdb import DuckDBPyConnection

# sql/NAME.sql holds one query, {words} in it stand for other SQL.
_FOLDER = Path(__file__).with_name("sql")
_WORD = re.compile(r"\{(\w+)\}")


def query(name: str, **words: object) -> str:
    """Return the query of that name, with these words replaced; one without a replacement is a KeyError."""
    return _WORD.sub(lambda found: str(words[found[1]]), text_of(name))


@cache
def text_of(name: str) -> str:
    """Return a query as it stands in its file."""
    return (_FOLDER / f"{name}.sql").read_text(encoding="utf-8")


def sql(text: str) -> str:
    """Return ``text`` as it stands inside a quoted SQL text."""
    return text.replace("'", "''")


def make_rows(database: DuckDBPyConnection, name: str, kinds: Mapping[str, str], rows: Sequence[Sequence[Any]]) -> None:
    """Make the temporary table ``name`` of rows, with columns of these names and kinds."""
    columns = [f'unnest(${number}::{kind}[]) AS "{column}"' for number, (column, kind) in enumerate(kinds.items(), 1)]
    values = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in kinds]
    database.execute(f"CREATE TEMP TABLE {name} AS SELECT {', '.join(columns)}", values)


def named(database: DuckDBPyConnection, text: str, known: Mapping[str, Any] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the rows of a query by the names of its columns; ``known`` are its parameters."""
    found = database.execute(text, known or {})
    names = [column[0] for column in found.description or ()]
    for values in found.fetchall():
        yield dict(zip(names, values, strict=True))

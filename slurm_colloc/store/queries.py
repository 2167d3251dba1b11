# SPDX-License-Identifier: Apache-2.0
"""Queries, each in a file of the room that uses it, and rows to and from the database.

Conditions on the rows that the caller may see are used before anything is added up.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Event, Thread
from typing import Any, TypeVar

from duckdb import DuckDBPyConnection

from slurm_colloc.slurm.job_visibility import Visible
from slurm_colloc.store.window import Step

_PACKAGE = Path(__file__).parents[1]
_LOOK_EACH_S = 0.5
_WORD = re.compile(r"\{(\w+)\}")
T = TypeVar("T")


def query(file: str, /, **words: object) -> str:
    """Return the query of a ``file``, as "facts/sql/usage", with other SQL in place of its {words}.

    A word without a replacement is a KeyError.
    """
    return _WORD.sub(lambda match: str(words[match[1]]), text_of(file))


@cache
def text_of(file: str) -> str:
    """Return a query as it stands in its file."""
    return (_PACKAGE / f"{file}.sql").read_text(encoding="utf-8")


def sql(text: str) -> str:
    """Return ``text`` as it stands inside a quoted SQL text."""
    return text.replace("'", "''")


def visible_runs(visible: Visible) -> str:
    """Return the condition on a run; a view takes no parameters."""
    if visible.everybody:
        return "true"
    # The name is empty of a run whose user accounting could not tell.
    of_user = f'"user" = {_quoted_name(visible.user)}' if visible.user else "false"
    accounts = ", ".join(map(_quoted_name, filter(None, visible.accounts)))
    return f"({of_user} OR account IN ({accounts}))" if accounts else of_user


def visible_samples(visible: Visible, samples: str) -> str:
    """Return the query ``samples`` with the rows of visible runs only, without readings of nobody's processes."""
    if visible.everybody:
        return samples
    return f"SELECT s.* FROM ({samples}) s SEMI JOIN readings r ON s.cluster = r.cluster AND s.job_id = r.job_id_raw"


def _quoted_name(name: str) -> str:
    return f"'{sql(stored_name(name))}'"


def stored_name(name: str) -> str:
    """Return a name as the store has it: it has no bytes outside UTF-8, so one with such a byte names nobody in it."""
    return name.encode(errors="replace").decode()


def kinds_of(columns: str) -> dict[str, str]:
    """Return the kind of each column, of columns as CREATE TABLE takes them: "run BIGINT, state VARCHAR"."""
    return dict(column.split() for column in columns.split(", "))


def quoted(names: Iterable[str]) -> str:
    """Return names of columns as a list in SQL, whatever words they are."""
    return ", ".join(f'"{name}"' for name in names)


def no_rows(columns: Mapping[str, str]) -> str:
    """Return a query of columns of these names and kinds without a row, for others to be added BY NAME."""
    empty = ", ".join(f'NULL::{kind} AS "{name}"' for name, kind in columns.items())
    return f"SELECT {empty} WHERE false"


def make_rows(database: DuckDBPyConnection, name: str, kinds: Mapping[str, str], rows: Sequence[Sequence[Any]]) -> None:
    """Make the temporary table ``name`` of rows, with columns of these names and kinds."""
    columns = [f'unnest(${number}::{kind}[]) AS "{column}"' for number, (column, kind) in enumerate(kinds.items(), 1)]
    values = [list(column) for column in zip(*rows, strict=True)] or [[] for _ in kinds]
    database.execute(f"CREATE TEMP TABLE {name} AS SELECT {', '.join(columns)}", values)


@contextmanager
def watched(database: DuckDBPyConnection, step: Step) -> Iterator[None]:
    """Tell ``step`` of how many hundredths of a query a database is sure, and never of less than before."""
    database.execute("SET enable_progress_bar = true; SET enable_progress_bar_print = false")
    over, percent = Event(), 0

    def look() -> None:
        nonlocal percent
        while not over.wait(_LOOK_EACH_S):
            percent = max(percent, int(database.query_progress()))
            step(percent, 100)

    looking = Thread(target=look, daemon=True)
    looking.start()
    try:
        yield
    finally:
        over.set()
        looking.join()


def execute(database: DuckDBPyConnection, text: str, known: Mapping[str, Any]) -> DuckDBPyConnection:
    """Execute a query with those of the ``known`` parameters that it uses."""
    (statement,) = database.extract_statements(text)
    return database.execute(text, {name: known[name] for name in statement.named_parameters})


def named(database: DuckDBPyConnection, text: str, known: Mapping[str, Any] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the rows of a query by the names of its columns; ``known`` are parameters as in ``execute``."""
    cursor = execute(database, text, known or {})
    names = [column[0] for column in cursor.description or ()]
    for values in cursor.fetchall():
        yield dict(zip(names, values, strict=True))


def records(
    kind: Callable[..., T], database: DuckDBPyConnection, text: str, known: Mapping[str, Any] | None = None
) -> list[T]:
    """Return the rows of a query, each made a ``kind`` of record by the names of its columns."""
    return [kind(**row) for row in named(database, text, known)]

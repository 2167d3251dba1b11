# SPDX-License-Identifier: Apache-2.0
"""The files of samples and facts: each column with its type, its unit and what it means.

The reference page of the store is made from this, and so is the SQL that reads, adds up and writes these columns.
"""

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import NamedTuple

HOUR_S, DAY_S = 3600, 86_400

# How rows of several hours, days or devices become one. ALL is a sum that is not known where one part is not.
KEY, SUM, ALL, MAX, MIN = "key", "sum", "sum of all", "max", "min"
_COMBINED = {
    SUM: "sum({0})",
    ALL: "if(count(*) = count({0}), sum({0}), NULL)",
    MAX: "max({0})",
    MIN: "min({0})",
}


class Column(NamedTuple):
    """One column; ``adds`` says how it is added up, in a table of facts."""

    name: str
    kind: str
    unit: str
    meaning: str
    adds: str = KEY


def _columns(rows: Iterable[Sequence[str]]) -> tuple[Column, ...]:
    return tuple(Column(*row) for row in rows)


_TABLES = tomllib.loads(files(__package__).joinpath("schema.toml").read_text())
SAMPLES, HOSTS = _columns(_TABLES["samples"]), _columns(_TABLES["hosts"])
# Columns that say which run a row of facts is of, and which part of the facts and which time.
OF_RUN, OF_FACT = _columns(_TABLES["of_run"]), _columns(_TABLES["of_fact"])
UNIT, PEAK, HOST, DEVICE, EVIDENCE, LEVEL = "unit", "peak", "host", "device", "evidence", "level"
FACTS: Mapping[str, tuple[Column, ...]] = {part: _columns(rows) for part, rows in _TABLES["facts"].items()}


def names(columns: Iterable[Column]) -> list[str]:
    """Return the names of columns."""
    return [column.name for column in columns]


def typed(columns: Iterable[Column]) -> str:
    """Return columns for a CREATE TABLE."""
    return ", ".join(f"{column.name} {column.kind}" for column in columns)


def keys(columns: Iterable[Column]) -> list[str]:
    """Return the names of those columns by which facts are grouped."""
    return [column.name for column in columns if column.adds == KEY]


def combined(columns: Iterable[Column]) -> str:
    """Return SQL that makes one row of several: the keys as they are, the others added up."""
    return ", ".join(
        column.name
        if column.adds == KEY
        else f"CAST({_COMBINED[column.adds].format(column.name)} AS {column.kind}) AS {column.name}"
        for column in columns
    )


def in_proportion(columns: Iterable[Column], before: str, until: str) -> str:
    """Return SQL for columns of which a part of the time counts, from one fraction of it to the next.

    Sums are cut where the sum so far is rounded, so that parts add up to the whole. The rows are called ``f``.
    """

    return ", ".join(
        f"(round(f.{column.name} * {until}) - round(f.{column.name} * {before}))::BIGINT AS {column.name}"
        if column.adds in (SUM, ALL)
        else f"f.{column.name}"
        for column in columns
    )


def all_columns() -> Iterator[Column]:
    """Yield the columns of a file of facts, each once."""
    every = (*OF_FACT, *OF_RUN, *(column for part in FACTS.values() for column in part))
    yield from {column.name: column for column in every}.values()

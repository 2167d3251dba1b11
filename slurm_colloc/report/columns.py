# SPDX-License-Identifier: Apache-2.0
"""Reports in every form: tables of columns that are declared once, and what is shown of them as text, CSV and JSON."""

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from slurm_colloc.core.units import printable
from slurm_colloc.report.layout import (
    NO_TERMINAL,
    Terminal,
    bold_table,
    folded,
    left_out_line,
    list_lines,
    narrowed,
    page_of,
)
from slurm_colloc.report.text import csv_text, json_text
from slurm_colloc.report.usage import number


class Column(NamedTuple):
    """A column: its title, the figure in it, the digits after the point (None: a text), and what is left out first.

    ``figure`` is a field of the row, or what makes it of the row. Columns of the highest ``rank`` are left out first
    where there is no room for all. ``meaning`` is said below the table.
    """

    title: str
    figure: str | Callable[[Any], Any]
    digits: int | None = None
    rank: int = 0
    meaning: str = ""

    def cell(self, row: Any, separator: str = "") -> str:
        """Return the figure in words; thousands are parted by ``separator``."""
        value = getattr(row, self.figure) if isinstance(self.figure, str) else self.figure(row)
        return printable(value or "-") if self.digits is None else number(value, self.digits, separator)


class Table(NamedTuple):
    """Columns of rows, the names first; the last row is the sum of the others where it is ``summed``.

    A longer name than ``name_columns`` is cut before a column is left out; None: nothing is ever left out.
    """

    columns: Sequence[Column]
    rows: Sequence[Any]
    heading: str = ""
    summed: bool = False
    name_columns: int | None = None


def table_in_words(titles: Sequence[str], rows: Sequence[Sequence[str]], heading: str = "") -> Table:
    """Return a table whose cells are words already."""
    return Table([Column(title, itemgetter(index)) for index, title in enumerate(titles)], rows, heading)


class Listing(NamedTuple):
    """A report: tables for people between a heading and notes, ``nouns`` of a ``kind`` as CSV, ``record`` as JSON."""

    heading: str
    tables: Sequence[Table]
    notes: Sequence[str]
    schema: int
    record: Any
    kind: type
    nouns: Sequence[Any]


def table_of(listing: Listing, terminal: Terminal = NO_TERMINAL) -> str:
    """Return the listing for people."""
    body: list[str] = []
    notes: list[str] = []
    for table in listing.tables:
        if not table.rows:
            continue
        rows: list[Sequence[str]] = [[column.title for column in table.columns]]
        rows += [[column.cell(row) for column in table.columns] for row in table.rows]
        if table.name_columns is not None:
            titles = rows[0]
            rows = narrowed(rows, [column.rank for column in table.columns[1:]], terminal, table.name_columns)
            notes += left_out_line(titles, rows[0])
        if body:
            body.append("")
        if table.heading:
            body += folded(table.heading, terminal.columns)
        body += bold_table(rows, terminal) if table.summed else list_lines(rows)
        notes += [column.meaning for column in table.columns if column.meaning and column.title in rows[0]]
    return page_of(listing.heading, body, [*notes, *listing.notes], terminal)


FORMATS: Mapping[str, Callable[..., str]] = {
    "table": table_of,
    "csv": lambda listing: csv_text(listing.kind, listing.nouns),
    "json": lambda listing: json_text(listing.schema, listing.record),
}

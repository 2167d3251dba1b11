# SPDX-License-Identifier: Apache-2.0
"""Columns of tables, declared once, and listings of which the text, the CSV and the JSON are made of them."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from slurm_colloc.core.units import printable
from slurm_colloc.report.layout import NO_TERMINAL, Terminal, list_lines, narrowed, page_of
from slurm_colloc.report.text import csv_text, json_text
from slurm_colloc.report.usage import number


class Column(NamedTuple):
    """A column: its title, the figure in it, the digits after the point (None: a text), and what is left out first.

    Columns of the highest ``rank`` are left out first where there is no room for all. ``meaning`` is said below the
    table.
    """

    title: str
    figure: str
    digits: int | None
    rank: int = 0
    meaning: str = ""

    def cell(self, figures: Mapping[str, Any], separator: str = "") -> str:
        """Return the figure in words; thousands are parted by ``separator``."""
        value = figures[self.figure]
        return printable(value or "-") if self.digits is None else number(value, self.digits, separator)


class Listing(NamedTuple):
    """A table of nouns of a ``kind``, each a row: all of their fields as CSV and JSON, and ``columns`` of them as text.

    ``about`` is what the JSON says beside ``rows``; ``words`` are figures of a row that only the text has.
    """

    heading: str
    columns: Sequence[Column]
    rows: Sequence[Any]
    kind: type
    about: Mapping[str, Any]
    schema: int
    notes: Sequence[str] = ()
    words: Sequence[Mapping[str, str]] = ()


def table_of(listing: Listing, terminal: Terminal = NO_TERMINAL) -> str:
    """Return the listing for people."""
    names, *columns = listing.columns
    words = listing.words or [{}] * len(listing.rows)
    figures = [row._asdict() | row_words for row, row_words in zip(listing.rows, words, strict=True)]
    rows = [[column.title for column in listing.columns]]
    rows += [[column.cell(row_figures) for column in listing.columns] for row_figures in figures]
    fitting = narrowed(rows, [column.rank for column in columns], terminal, len(names.title) + 12)
    meanings = [column.meaning for column in listing.columns if column.meaning and column.title in fitting[0]]
    body = list_lines(fitting) if listing.rows else []
    return page_of(listing.heading, body, [*(meanings if listing.rows else ()), *listing.notes], terminal)


def csv_of(listing: Listing) -> str:
    """Return one row for each noun."""
    return csv_text(listing.kind, listing.rows)


def json_of(listing: Listing) -> str:
    """Return the listing as JSON, null for what is not known."""
    return json_text(listing.schema, {**listing.about, "rows": listing.rows})


FORMATS = {"table": table_of, "csv": csv_of, "json": json_of}

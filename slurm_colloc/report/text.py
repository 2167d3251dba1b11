# SPDX-License-Identifier: Apache-2.0
"""Words for a terminal. Nothing is imported here that a sampler should not carry."""

from collections.abc import Sequence
from datetime import datetime


def printable(text: str) -> str:
    """Return ``text`` with what a terminal would act on made visible: escapes, direction marks, newlines."""
    return "".join(character if character.isprintable() else "?" for character in text)


def stamp(moment: datetime) -> str:
    """Return a time with its offset."""
    return moment.isoformat(sep=" ", timespec="seconds")


def inert(text: str) -> str:
    """Return ``text`` so that a spreadsheet shows it rather than evaluates it."""
    return "'" + printable(text) if text[:1] in ("=", "+", "-", "@", "\t", "\r") else printable(text)


def table_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table's lines with rules below its titles and above its last row, which is the sum of the others."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        first, *others = (
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join([first, *others]).rstrip())
    rule = "-" * max(len(line) for line in lines)
    return [lines[0], rule, *lines[1:-1], rule, lines[-1]]

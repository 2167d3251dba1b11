# SPDX-License-Identifier: Apache-2.0
"""Text laid out for a terminal of some width, or for none; a name is as wide as it looks, not as it has letters."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from rich.cells import cell_len

BOLD, DIM, BLUE, YELLOW, PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[34m", "\x1b[33m", "\x1b[0m"
_ELLIPSIS = "…"
_INDENT, TEXT_INDENT = 2, 13
# A name is cut to that where not one figure would be left.
_LEAST_NAME_COLUMNS = 5
_WORDS = re.compile("( *)([^ ]+)")


class Terminal(NamedTuple):
    """A terminal, or a file: without ``columns`` a text is the same every time, and all of it is there."""

    columns: int | None = None
    colour: bool = False

    def bold(self, text: str) -> str:
        """Return ``text`` in bold letters where there are any."""
        return f"{BOLD}{text}{PLAIN}" if self.colour else text

    def dim(self, text: str) -> str:
        """Return ``text`` in faint letters where there are any."""
        return f"{DIM}{text}{PLAIN}" if self.colour else text


NO_TERMINAL = Terminal()


def cut(text: str, columns: int) -> str:
    """Return ``text``, without its middle where it is wider than ``columns``."""
    # Marks that take no room are letters all the same: a name of nothing else is cut, too.
    if cell_len(text) <= columns and len(text) <= 4 * columns:
        return text
    room = max(0, columns - 1)
    start, end = max(0, len(text) - 2 * columns), 2 * columns
    while cell_len(text[start:]) > room // 2 or (start < len(text) and not cell_len(text[start])):
        start += 1  # a mark without its letter would sit on the ellipsis
    while cell_len(text[:end]) > room - cell_len(text[start:]):
        end -= 1
    return text[:end] + _ELLIPSIS[:columns] + text[start:]


def folded(line: str, columns: int | None, indent: int = _INDENT) -> list[str]:
    """Return ``line`` as lines of at most so many columns, those after the first indented where there is room."""
    # A row of signs is no text, and a command must be copied whole.
    if columns is None or cell_len(line) <= columns or line.lstrip().startswith(("|", "$ ")):
        return [line]
    pad = " " * (indent if columns > indent + 10 else _INDENT)
    lines = [""]
    for blanks, word in _WORDS.findall(line):
        if cell_len(lines[-1] + blanks + word) <= columns:
            lines[-1] += blanks + word
        elif cell_len(pad + word) <= columns:
            lines.append(pad + word)
        else:
            lines[-1] += blanks
            for letter in word:
                if cell_len(lines[-1] + letter) > columns:
                    lines[-1] = lines[-1].rstrip()
                    lines.append(pad)
                lines[-1] += letter
    return lines


def titled(title: str, text: str) -> str:
    """Return a line of a story: its title, and what it says, from the column TEXT_INDENT on."""
    return f"  {title:<{TEXT_INDENT - 2}}{text}"


def fitting(widths: Sequence[int], ranks: Sequence[int], room: int) -> list[int]:
    """Return which columns fit beside each other, two blanks before each; those of low rank are taken first."""
    chosen: list[int] = []
    for index in sorted(range(len(widths)), key=ranks.__getitem__):
        if sum(widths[column] + 2 for column in [*chosen, index]) > room:
            break
        chosen.append(index)
    return sorted(chosen)


def narrowed(
    rows: Sequence[Sequence[str]], ranks: Sequence[int], terminal: Terminal, name_columns: int
) -> list[Sequence[str]]:
    """Return a table with the columns that fit on a terminal, beside names that are cut where they leave no room.

    Args:
        rows: the table, the names first, its titles as the first row.
        ranks: one for each column beside the names; the highest are left out first.
        terminal: that it is for; all is shown where it has no columns.
        name_columns: a longer name is cut before a column is left out.
    """
    if terminal.columns is None:
        return list(rows)
    longest, *widths = widths_of(rows)
    least = ranks.index(min(ranks))
    chosen = fitting(widths, ranks, terminal.columns - min(longest, name_columns))
    if not chosen and widths[least] + 2 + _LEAST_NAME_COLUMNS <= terminal.columns:
        chosen = [least]
    room = terminal.columns - sum(widths[index] + 2 for index in chosen)
    return [[cut(name, room), *(figures[at] for at in chosen)] for name, *figures in rows]


def left_out_line(titles: Sequence[str], shown: Sequence[str]) -> list[str]:
    """Return the line on the columns of these titles that a terminal has no room for, none where all are shown."""
    # The first is never left out, and may be cut.
    names = [title for title in titles[1:] if title not in shown]
    return [f"left out for want of width: {', '.join(names)}; all: --format csv"] if names else []


def widths_of(rows: Sequence[Sequence[str]]) -> list[int]:
    """Return how wide each column of a table is."""
    return [max(map(cell_len, column)) for column in zip(*rows, strict=True)]


def table_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table's lines with rules below its titles and above its last row, which is the sum of the others."""
    widths = widths_of(rows)
    lines = []
    for row in rows:
        blanks = [" " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)]
        cells = [row[0] + blanks[0], *(blank + cell for blank, cell in zip(blanks[1:], row[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    rule = "-" * max(map(cell_len, lines))
    return [lines[0], rule, *lines[1:-1], rule, lines[-1]]


def list_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table of which no row is the sum of the others."""
    return table_lines([*rows, rows[0]])[:-2]


def bold_table(rows: Sequence[Sequence[str]], terminal: Terminal) -> list[str]:
    """Return the lines of a table, with titles and sum in bold letters."""
    titles, *lines, sums = table_lines(rows)
    return [terminal.bold(titles), *lines, terminal.bold(sums)]


def page_of(heading: str, body: Sequence[str], notes: Sequence[str], terminal: Terminal) -> str:
    """Return a page: a line on what it is about, its tables, and notes in faint letters."""
    below = (terminal.dim(line) for note in notes for line in folded(note, terminal.columns))
    body = [*body, ""] if body else []
    return "\n".join([*folded(heading, terminal.columns), "", *body, *below]) + "\n"

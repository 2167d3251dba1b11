# SPDX-License-Identifier: Apache-2.0
"""Words for a terminal. Nothing is imported here that a sampler should not carry."""

import csv
import io
from collections.abc import Iterable, Sequence
from datetime import datetime
from math import ceil

from slurm_colloc.core.units import printable

# A job's name may have a thousand.
_NAME_CHARACTERS = 40
# Those of full width are the same to a spreadsheet that is set to Japanese.
_FORMULA = tuple("=+-@\t\r＝＋－＠")


def local(at_s: float) -> datetime:
    """Return a time as the clocks of this machine have it."""
    return datetime.fromtimestamp(at_s).astimezone()


def stamp(moment: datetime) -> str:
    """Return a time with its offset."""
    return moment.isoformat(sep=" ", timespec="seconds")


def minute(at_s: float) -> str:
    """Return a time to the minute."""
    return local(at_s).isoformat(sep=" ", timespec="minutes")


def short_name(text: str) -> str:
    """Return a name that somebody chose so that no mail and no page becomes unreadable by it."""
    shown = printable(text)
    return shown if len(shown) <= _NAME_CHARACTERS else f"{shown[: _NAME_CHARACTERS - 3]}..."


def inert(text: str) -> str:
    """Return ``text`` so that a spreadsheet shows it rather than evaluates it."""
    return "'" + printable(text) if text[:1] in _FORMULA else printable(text)


def csv_table(titles: Iterable[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a table; None is an empty cell, and a text that a spreadsheet would evaluate begins with an apostrophe."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(titles)
    writer.writerows([inert(value) if isinstance(value, str) else value for value in row] for row in rows)
    return out.getvalue()


# From 0 on; the first is for 0 alone.
_BLOCKS, _GAP = "▁▂▃▄▅▆▇█", " "


def sparkline(values: Sequence[float | None], top: float) -> str:
    """Return one sign for each value between 0 and ``top``, blank where there is none."""
    last = len(_BLOCKS) - 1
    return "".join(
        _GAP if value is None else _BLOCKS[0 if value <= 0 or top <= 0 else max(1, min(last, ceil(last * value / top)))]
        for value in values
    )

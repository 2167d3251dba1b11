# SPDX-License-Identifier: Apache-2.0
"""A table of past runs (CSV), as ``colloc evaluate`` replays it."""

import csv
import io
import math
from collections import Counter
from collections.abc import Mapping
from difflib import get_close_matches
from typing import NamedTuple

from slurm_colloc.errors import InputError
from slurm_colloc.estimate.replay import Row
from slurm_colloc.history.signature import signature
from slurm_colloc.model import COMPLETED

COLUMNS = ("at_s", "command", "gpu_model", "state", "peak_mib")
MAY_BE_EMPTY = ("allocator_peak_mib", "sm_active_pct", "dram_active_pct")
# No folder of anybody: what the replay knows of a program is its name.
_NOWHERE = "/dev/null"
_LARGEST_MIB = 2.0**40


class Table(NamedTuple):
    """Rows by time; ``rejected`` counts those that cannot be used by reason, ``clock_back`` those that came too late.

    ``rows_in`` = rows + rejected.
    """

    rows: tuple[Row, ...]
    rows_in: int
    rejected: Mapping[str, int]
    clock_back: int


def parse_table(text: str) -> Table:
    """Return the runs in a table with a header; the order of its columns is free.

    Raises:
        InputError: no header, a column that is missing or not known.
    """
    reader = csv.reader(io.StringIO(text.removeprefix("\ufeff")))
    try:
        header = [name.strip() for name in next(reader, [])]
        _check_header(header)
        lines = [line for line in reader if line]
    except csv.Error as error:
        raise InputError(f"line {reader.line_num} of the table is no CSV: {error}") from error
    rows: list[Row] = []
    rejected: Counter[str] = Counter()
    clock_back, before_s = 0, -math.inf
    for number, line in enumerate(lines, 1):
        found = _row(str(number), dict(zip(header, line, strict=True))) if len(line) == len(header) else _WIDTH
        if isinstance(found, str):
            rejected[found] += 1
            continue
        clock_back += found.run.ended_s < before_s
        before_s = found.run.ended_s
        rows.append(found)
    rows.sort(key=lambda row: row.run.ended_s)
    return Table(tuple(rows), len(lines), dict(rejected), clock_back)


_WIDTH = "not as many values as the header has names"


def _check_header(header: list[str]) -> None:
    known = (*COLUMNS, *MAY_BE_EMPTY)
    for name in header:
        if name not in known:
            near = get_close_matches(name, known, 1, 0.0)[0]
            raise InputError(f"the table's column '{name}' is not known; the nearest that is: '{near}'")
    if missing := [name for name in known if name not in header]:
        raise InputError(f"the table lacks the column '{missing[0]}'; its first line must name {', '.join(known)}")
    if len(set(header)) < len(header):
        raise InputError("the table names a column twice")


def _row(number: str, values: Mapping[str, str]) -> Row | str:
    """Return one run, or why it cannot be used."""
    words = {name: values[name].strip() for name in ("command", "gpu_model", "state")}
    for name, word in words.items():
        if not word:
            return f"no {name}"
    numbers: dict[str, float | None] = {}
    for name in ("at_s", "peak_mib", *MAY_BE_EMPTY):
        text = values[name].strip()
        try:
            value = float(text) if text else None
        except ValueError:
            return f"{name} is no number"
        if value is not None and not (math.isfinite(value) and 0 <= value < _LARGEST_MIB):
            return f"{name} is NaN, negative or beyond all bounds"
        numbers[name] = value
    at_s, peak = numbers["at_s"], numbers["peak_mib"]
    if at_s is None:
        return "no at_s"
    if not peak:
        return f"no peak_mib of a run that {'completed' if words['state'] == COMPLETED else 'did not complete'}"
    found = signature(words["command"].encode(errors="surrogateescape"), (), 1, folder=_NOWHERE)
    return Row.made(number, found, words["gpu_model"], words["state"], at_s, peak, *(numbers[n] for n in MAY_BE_EMPTY))

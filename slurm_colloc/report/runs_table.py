# SPDX-License-Identifier: Apache-2.0
"""A table of past runs (CSV), as ``colloc evaluate`` replays it: one run a row, or one run on so many of the SMs."""

import csv
import io
import math
from collections import Counter
from collections.abc import Mapping
from difflib import get_close_matches
from typing import NamedTuple

from slurm_colloc.errors import InputError
from slurm_colloc.history.signature import signature
from slurm_colloc.model import COMPLETED
from slurm_colloc.report.cases import Row

COLUMNS = ("at_s", "command", "gpu_model", "state", "peak_mib")
MAY_BE_EMPTY = ("sm_active_pct", "dram_active_pct", "cpu_cores", "host_mem_mib", "gpu_util_pct")
# A column so much like one of these is misspelt; any other is not read.
_ALIKE = 0.75
# A table with this column holds each command several times, on so many percent of the SMs [tests/gpu/slowdowns.py].
_LIMIT, _SPEED, _USED = "limit_pct", "steps_per_s", "gpu_mem_used_mib"
# No folder of anybody: what the replay knows of a program is its name.
_NOWHERE = "/dev/null"
_LARGEST_MIB = 2.0**40
# Means of percentages may be a little above all of it.
_LARGEST_PCT = 100.01


class Table(NamedTuple):
    """Rows by time; ``rejected`` counts those that cannot be used by reason, ``clock_back`` those that came too late.

    ``rows_in`` = rows + rejected.
    """

    rows: tuple[Row, ...]
    rows_in: int
    rejected: Mapping[str, int]
    clock_back: int
    not_read: tuple[str, ...] = ()


def parse_table(text: str) -> Table:
    """Return the runs in a table with a header; the order of its columns is free.

    Raises:
        InputError: no header, a column that is missing or misspelt.
    """
    reader = csv.reader(io.StringIO(text.removeprefix("\ufeff")))
    try:
        header = [name.strip() for name in next(reader, [])]
        if _LIMIT in header:
            return _by_limit([dict(zip(header, line, strict=False)) for line in reader])
        not_read = _not_read(header)
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
    return Table(tuple(rows), len(lines), dict(rejected), clock_back, not_read)


_WIDTH = "not as many values as the header has names"


def _not_read(header: list[str]) -> tuple[str, ...]:
    known = (*COLUMNS, *MAY_BE_EMPTY)
    others = tuple(name for name in header if name not in known)
    for name in others:
        if near := get_close_matches(name, [one for one in known if one not in header], 1, _ALIKE):
            raise InputError(f"the table's column '{name}' is not known; the nearest that is: '{near[0]}'")
    if missing := [name for name in COLUMNS if name not in header]:
        raise InputError(f"the table lacks the column '{missing[0]}'; its first line must name {', '.join(COLUMNS)}")
    if len(set(header)) < len(header):
        raise InputError("the table names a column twice")
    return others


def _row(number: str, values: Mapping[str, str]) -> Row | str:
    """Return one run, or why it cannot be used."""
    words = {name: values[name].strip() for name in ("command", "gpu_model", "state")}
    for name, word in words.items():
        if not word:
            return f"no {name}"
    numbers: dict[str, float | None] = {}
    for name in ("at_s", "peak_mib", *MAY_BE_EMPTY):
        text = values.get(name, "").strip()
        try:
            value = float(text) if text else None
        except ValueError:
            return f"{name} is no number"
        if value is not None and not 0 <= value < (_LARGEST_PCT if name.endswith("_pct") else _LARGEST_MIB):
            return f"{name} is NaN, negative or beyond all bounds"
        numbers[name] = value
    at_s, peak = numbers["at_s"], numbers["peak_mib"]
    if at_s is None:
        return "no at_s"
    if not peak:
        return f"no peak_mib of a run that {'completed' if words['state'] == COMPLETED else 'did not complete'}"
    found = signature(words["command"].encode(errors="surrogateescape"), (), 1, folder=_NOWHERE)
    more = (numbers[name] for name in MAY_BE_EMPTY)
    return Row.made(number, found, words["gpu_model"], words["state"], at_s, peak, *more)


def _by_limit(lines: list[dict[str, str]]) -> Table:
    """Return a run of each command on all SMs, with how much longer it takes on fewer."""
    rejected: Counter[str] = Counter()
    speeds: dict[tuple[str, str], dict[float, float]] = {}
    whole: dict[tuple[str, str], dict[str, str]] = {}
    for line in lines:
        key = (line.get("command", ""), line.get("gpu_model", ""))
        try:
            limit, speed = float(line[_LIMIT]), float(line[_SPEED])
        except (KeyError, ValueError):
            limit = speed = math.nan
        if not (0 < limit <= 100 and 0 < speed < math.inf):
            rejected[f"no {_LIMIT} or {_SPEED}, or an impossible one"] += 1
            continue
        # Of several passes the fastest counts: what interferes only slows.
        of_key = speeds.setdefault(key, {})
        if limit == 100 and speed >= of_key.get(limit, 0.0):
            whole[key] = line
        of_key[limit] = max(speed, of_key.get(limit, 0.0))
    if alone := sum(len(speeds[key]) for key in speeds if key not in whole):
        rejected["not measured on all SMs"] += alone
    rows: list[Row] = []
    for number, (key, line) in enumerate(whole.items(), 1):
        values = {**line, "at_s": str(number), "peak_mib": line.get(_USED, "")}
        found = _row(str(number), values)
        if isinstance(found, str):
            rejected[found] += 1
            continue
        slowdowns = [(limit, speeds[key][100] / speed) for limit, speed in speeds[key].items()]
        rows.append(found._replace(slowdowns=tuple(sorted(slowdowns))))
    return Table(tuple(rows), len(lines), dict(rejected), 0)

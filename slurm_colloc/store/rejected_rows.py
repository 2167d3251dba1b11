# SPDX-License-Identifier: Apache-2.0
"""The most GPU-hours that rejected rows of sacct text may stand for."""

import re
from collections.abc import Sequence
from functools import lru_cache
from heapq import nlargest
from math import fsum
from typing import NamedTuple

from duckdb import DuckDBPyConnection

from slurm_colloc.core.errors import InputError
from slurm_colloc.core.units import whole
from slurm_colloc.core.usage_model import Lost
from slurm_colloc.slurm.gres import parse_tres_gres
from slurm_colloc.store.equivalents import gpu_equivalent

_MOST_NAMED = 5
_DEVICE = re.compile(r"gres/(?:gpu|mps|shard)[:=]")
_JOB = re.compile(r"(\d+(?:_\d+|\+\d+)?)(\.\w+)?")
# Epoch seconds have ten digits.
_LONGEST_S = 10**9
_HOUR_S = 3600
# In place of a reason, of a header among the rows.
HEADER = "header"


class LostRow(NamedTuple):
    """A row that cannot be used: None GPU-hours are of a row that names a GPU, and of which nobody can tell."""

    gpu_hours: float | None
    job_id: str
    reason: str


class LostRows:
    """Such rows, added up; of the largest it is kept which they are."""

    def __init__(self) -> None:
        self.gpu_hours = 0.0
        self.unknown_rows = 0
        self.largest: list[LostRow] = []

    def add(self, row: LostRow) -> None:
        """Add one."""
        self.gpu_hours += row.gpu_hours or 0
        self.unknown_rows += row.gpu_hours is None
        self.largest = nlargest(_MOST_NAMED, [*self.largest, row], key=_size)

    @property
    def named(self) -> tuple[str, ...]:
        """Return which jobs the largest of them are, and why they are rejected."""
        return tuple(f"job {row.job_id}: {row.reason}" for row in self.largest if row.job_id)


def _size(row: LostRow) -> float:
    return _LONGEST_S if row.gpu_hours is None else row.gpu_hours


def row_of_misfit(values: Sequence[str], fields: Sequence[str], reason: str) -> LostRow:
    """Return what a row may have been that has more or fewer columns than ``fields``.

    What stands before the name that broke it lies where it should, what stands after it as far from the end.
    """
    shift = len(values) - len(fields)

    def seen(name: str) -> list[str]:
        at = fields.index(name) if name in fields else len(values)
        return [values[place] for place in (at, at + shift) if 0 <= place < len(values)]

    ids = [found for name in ("JobID", "JobIDRaw") for found in map(_JOB.fullmatch, seen(name)) if found]
    job_id = ids[0][1] if ids else ""
    if (ids and ids[0][2]) or not any(map(_DEVICE.search, values)):
        return LostRow(0.0, job_id, reason)
    gpus = [count for text in seen("AllocTRES") if _DEVICE.search(text) and (count := _gpus(text)) is not None]
    lengths_s = [length_s for text in seen("ElapsedRaw") if (length_s := _number(text)) is not None]
    if not lengths_s:
        starts, ends = ([at_s for text in seen(name) if (at_s := _number(text))] for name in ("Start", "End"))
        lengths_s = [end_s - start_s for end_s in ends for start_s in starts if end_s > start_s]
    likely = [length_s for length_s in lengths_s if length_s < _LONGEST_S]
    return LostRow(max(gpus) * max(likely) / _HOUR_S if gpus and likely else None, job_id, reason)


def _number(text: str) -> int | None:
    return whole(text) if len(text) <= len(str(_LONGEST_S)) else None


@lru_cache
def _gpus(text: str) -> float | None:
    """Return the whole GPUs of an AllocTRES, None where that is not known."""
    try:
        return gpu_equivalent(parse_tres_gres(text), "", None).gpus
    except InputError:
        return None


def add_up_lost(database: DuckDBPyConnection, lost: LostRows, now_s: float) -> Lost:
    """Return what all rejected rows may have been: those ``lost`` already, and those in the table ``taken``.

    Its rows still have the reason why they cannot be used, and ``elapsed_s``; no run is longer than up to ``now_s``.
    """
    rejected = database.execute(
        """
        SELECT gres, CASE WHEN start_s <= $now THEN least(coalesce(elapsed_s, end_s - start_s), $now - start_s)
                          ELSE elapsed_s END, job_id_raw, reason
        FROM taken WHERE reason IS NOT NULL AND reason != $header
        """,
        {"now": now_s, "header": HEADER},
    )
    while rows := rejected.fetchmany(10_000):
        for gres, length_s, job_id, reason in rows:
            lost.add(LostRow(_gpu_hours(gres, length_s), job_id, reason))
    used = database.execute(
        """
        SELECT gres, sum(greatest(0, coalesce(end_s, ingested_s) - start_s - suspended_s)), count(*)
        FROM taken WHERE reason IS NULL AND start_s IS NOT NULL AND gres != '' GROUP BY gres
        """
    ).fetchall()
    hours = fsum(_gpu_hours(gres, length_s) or 0 for gres, length_s, _ in used)
    return Lost(lost.gpu_hours, lost.unknown_rows, hours, sum(count for *_, count in used))


def _gpu_hours(gres: str, length_s: float | None) -> float | None:
    gpus = _gpus(gres) if gres else 0.0
    return 0.0 if gpus == 0 else None if gpus is None or length_s is None or length_s < 0 else gpus * length_s / _HOUR_S

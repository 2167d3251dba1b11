# SPDX-License-Identifier: Apache-2.0
"""Validates rows of evidence that are read from files.

csub asks it of some hundred rows at a submission, so it costs a microsecond or two and not what ``kinds.fits`` does.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any, get_args

from slurm_colloc.core.clock import now
from slurm_colloc.core.model import Evidence, SharingMode

# No GPUs of one job hold 16 TiB, and no clocks differ by more than a day.
_MOST_MIB, _MOST_PCT, _MOST, _AHEAD_S = 2**24, 1e4, 1e12, 86400.0
_MODES = frozenset(SharingMode)
_KINDS = tuple(Evidence.__annotations__.values())


def latest_s() -> float:
    """Return the time after which no run can have ended, in seconds since 1970."""
    return now() + _AHEAD_S


def is_sound(row: Sequence[object], until_s: float) -> bool:
    """Return whether the fields of an Evidence, in its order, are of their kinds and within what can be.

    Args:
        row: as SQLite or JSON gave them, where a number that is whole may stand for any and 0 or 1 for a truth.
        until_s: ``latest_s()``, asked once for many rows.
    """
    if not _are_kinds(tuple(map(type, row))):
        return False
    # By hand: a loop over limits takes six times as long. No comparison holds for a NaN.
    fields: Any = row
    _, _, _, mode, _, peak, mean, q95, _, samples, sampled_s, ended_s, elapsed_s, dram, total, *rest = fields
    grew_s, count, _, cores, memory = rest
    return bool(
        mode in _MODES
        and 0 <= ended_s <= until_s
        and 0 <= sampled_s <= _MOST
        and 0 <= samples <= _MOST
        and 0 < count <= _MOST
        and (peak is None or 0 <= peak <= _MOST_MIB)
        and (total is None or 0 <= total <= _MOST_MIB)
        and (mean is None or 0 <= mean <= _MOST_PCT)
        and (q95 is None or 0 <= q95 <= _MOST_PCT)
        and (dram is None or 0 <= dram <= _MOST_PCT)
        and (elapsed_s is None or 0 <= elapsed_s <= _MOST)
        and (grew_s is None or 0 <= grew_s <= _MOST)
        and (cores is None or 0 <= cores <= _MOST)
        and (memory is None or 0 <= memory <= _MOST)
    )


@cache
def _are_kinds(kinds: tuple[type, ...]) -> bool:
    """Return whether fields of these types are an Evidence's; there are a few dozen combinations."""
    return len(kinds) == len(_KINDS) and all(map(_is_kind, kinds, _KINDS))


def _is_kind(kind: type, annotation: Any) -> bool:
    allowed = set(get_args(annotation)) or {annotation}
    return kind in allowed or (kind is int and not allowed.isdisjoint((float, bool)))

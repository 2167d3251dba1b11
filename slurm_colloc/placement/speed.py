# SPDX-License-Identifier: Apache-2.0
"""How much slower a job runs on a piece of a GPU than on the whole of it: pure functions, from measurements.

With ``a`` the job's mean SM activity on a whole GPU and ``b`` its busy time, the part of the time in which a kernel of
it runs at all, both from 0 to 1 and b no less than a, and ``k`` the SMs of the whole GPU over those of the piece:

    on a slice       with y = a (k - 1): 1 + y / 2 at the median, and as a bound
                     1 + max(0.8 y, y - 0.06) / (1.4 - 0.4 b)
    beside others    whose activities come to o: max(1 + b^2 o, a + o) expected, and as a bound 1 + b^2 o / 0.64, while
                     all activities on the GPU come to no more than _TOGETHER
    in turns         the sum of b does (_IN_TURNS)

A b that is not known is taken for 1 on a slice and for sqrt(a) as expected beside others, where nothing but the sum
then bounds, and in turns for what few exceed.

A job of many small kernels leaves SMs idle between them: less of a slice's lack reaches it, and on a shared GPU it
waits the less for others' kernels the more seldom its own run. The first is from 39 public placements of ten trainings
on slices of an A100 (tests/recorded/mig-slices), from 66 jobs on four parts of the SMs of an H100 and an H200
(tests/gpu/slowdowns_*.csv) and twelve programs on two (tests/gpu/neighbours_h200.csv). The second is from 90 mixes
under MPS on an H100 and an H200 (tests/gpu/mixes_h100.csv, neighbours_h200.csv): a + o says that together they cannot
do more than the SMs can. The third holds between daemons of several users, whose kernels do not run together: a model,
and a quarter more for what tests/gpu/users_h100 exceeded it by. All are checked in docs/explanation/estimate-rules.md.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

_EXPECTED = 0.5
# A job hides a fifth of what a slice lacks, and no more than this; and more by so much of the time without a kernel.
_UPPER, _MOST_HIDDEN, _MORE_HIDDEN = 0.8, 0.06, 0.4
# The SM activity that may run beside a job that always has a kernel, for each part of its time that it may lose.
_BESIDE = 0.64
# The slowdown as a bound, and what the SM activities of all jobs on the GPU may come to, in percent.
_TOGETHER = ((1.0, 0.0), (1.1, 50.0), (1.25, 80.0), (1.4, 82.0), (1.6, 105.0))
# The same for the parts of time, in percent, in which each keeps the GPU busy, if more than one user does.
_IN_TURNS = ((1.0, 0.0), (1.1, 56.0), (1.25, 89.0), (1.6, 138.0))
# That part of time, if it was not measured, by SM activity in percent: tests/gpu/slowdowns_*.csv has 2 of 143 jobs that
# exceed it.
_BUSY_AT_LEAST_PCT, _BUSY_BY_SM = 20.0, 1.2


class Slowdown(NamedTuple):
    """How many times as long as on a whole GPU a job takes: at the median, and as few jobs exceed."""

    expected: float
    upper: float


def on_slice(sm_active_pct: float, whole_over_own: float, busy_pct: float | None = None) -> Slowdown:
    """Return how much slower a job is on a part of the SMs that nobody else uses.

    The lack of SMs counts for that of the memory's bandwidth: a slice has no smaller part of that, and no job measured
    so far keeps memory busier than SMs.

    Args:
        sm_active_pct: its mean SM activity on a whole GPU, in percent.
        whole_over_own: SMs of the whole GPU over those of the piece.
        busy_pct: the percent of the time in which a kernel of it runs there.
    """
    lacking = sm_active_pct / 100 * (max(1.0, whole_over_own) - 1)
    hides = 1.0 if busy_pct is None else 1 + _MORE_HIDDEN * (1 - busy_pct / 100)
    return Slowdown(1 + _EXPECTED * lacking, 1 + max(_UPPER * lacking, lacking - _MOST_HIDDEN) / hides)


def upper_on_slice_sql(sm_active_pct: str, own_over_whole: str) -> str:
    """Return SQL for the same upper end; both are SQL for numbers, the second for the piece's part of the SMs."""
    lacking = f"{sm_active_pct} / 100 * (1 / {own_over_whole} - 1)"
    return f"1 + greatest({_UPPER} * {lacking}, {lacking} - {_MOST_HIDDEN})"


def most_on_slice(max_slowdown: float, whole_over_own: float) -> float:
    """Return the SM activity in percent of a whole GPU, up to 100, that such a part slows no more than so.

    It is that of a job whose busy time is not known.
    """
    if whole_over_own <= 1:
        return 100.0
    lacking = min((max_slowdown - 1) / _UPPER, max_slowdown - 1 + _MOST_HIDDEN)
    return min(100.0, 100 * lacking / (whole_over_own - 1))


def _most_beside(sm_active_pct: float, max_slowdown: float, busy_pct: float | None) -> float:
    """Return the SM activity that may run beside a job, in percent."""
    rest_pct = max(0.0, between(_TOGETHER, max_slowdown) - sm_active_pct)
    lost = min(max_slowdown, _TOGETHER[-1][0]) - 1
    return min(rest_pct, 1e6 * _BESIDE * lost / busy_pct**2) if busy_pct else rest_pct


def beside(sm_active_pct: float, others_pct: float, busy_pct: float | None = None) -> Slowdown:
    """Return how much slower a job is under MPS than alone beside others, whose SM activities come to so many percent.

    The bound is by the sum of activities alone.
    """
    own, others, waits = sm_active_pct / 100, others_pct / 100, sm_active_pct if busy_pct is None else busy_pct**2 / 100
    expected, together = max(1 + waits / 100 * others, own + others), sm_active_pct + others_pct
    slowest, most = _TOGETHER[-1]
    # The first is 1.1: two measurements of a small job alone differ by so much.
    upper = next((bound for bound, held in _TOGETHER[1:] if together <= held), slowest * together / most)
    return Slowdown(expected, max(upper, expected) if others else 1.0)


def on_share(
    sm_active_pct: float, max_slowdown: float, busy_pct: float | None = None, *, in_turns: bool = False
) -> Slowdown:
    """Return how much slower a job is on a GPU whose other jobs take what may run beside it: expected, and at most.

    The flag ``in_turns`` is as in ``part_needed``; the median is not known there, so it is taken for the worst.
    """
    upper = min(max_slowdown, _TOGETHER[-1][0])
    if in_turns:
        return Slowdown(upper, upper)
    rest_pct = _most_beside(sm_active_pct, max_slowdown, busy_pct)
    return Slowdown(min(beside(sm_active_pct, rest_pct, busy_pct).expected, upper), upper)


def part_needed(
    sm_active_pct: float, max_slowdown: float, busy_pct: float | None = None, *, in_turns: bool = False
) -> float:
    """Return the part of a GPU's shares that a job needs for its SM activity; above 1 where no share is enough.

    A job's part is no less than its part of what all may come to, and leaves others no more than may run beside it.
    Each has no more beside it than it bears, then, whatever jobs fill a GPU by such parts.

    Args:
        sm_active_pct: its mean SM activity on a whole GPU, in percent.
        max_slowdown: how much slower it may be.
        busy_pct: the percent of the time in which a kernel of it runs there.
        in_turns: its neighbours may be clients of other daemons.
    """
    most = between(_IN_TURNS if in_turns else _TOGETHER, max_slowdown)
    if not in_turns:
        needed = max(sm_active_pct, most - _most_beside(sm_active_pct, max_slowdown, busy_pct))
    else:
        needed = _BUSY_AT_LEAST_PCT + _BUSY_BY_SM * sm_active_pct if busy_pct is None else busy_pct
    return needed / most if most else math.inf


def most_in_part(part: float, max_slowdown: float, *, in_turns: bool = False) -> float:
    """Return the SM activity in percent of a whole GPU, 0 or more, for which such a part of its shares is enough.

    It is that of a job whose busy time is not known.
    """
    if in_turns:
        return max(0.0, (between(_IN_TURNS, max_slowdown) * part - _BUSY_AT_LEAST_PCT) / _BUSY_BY_SM)
    return min(100.0, between(_TOGETHER, max_slowdown) * part)


def between(points: Sequence[tuple[float, float]], at: float) -> float:
    """Return the value at a place between points, and beyond the last of them its value."""
    for (low, low_value), (high, high_value) in pairwise(points):
        if at <= high:
            return low_value + (high_value - low_value) * (at - low) / (high - low)
    return points[-1][1]

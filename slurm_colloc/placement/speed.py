# SPDX-License-Identifier: Apache-2.0
"""How much slower a job runs on a piece of a GPU than on the whole of it: pure functions, from measurements.

With ``a`` the job's mean SM activity on a whole GPU, from 0 to 1, and ``k`` the SMs of that over those of the piece:

    on a slice       with y = a (k - 1): 1 + y / 2 at the median, 1 + max(0.8 y, y - 0.06) as what few exceed
    beside others    whose activities come to o: max(1 + a o, a + o) expected; the sum of what each job on the GPU
                     counts for tells what few exceed (_COUNTS, _TOGETHER)
    in turns         with b the part of time in which a job keeps the GPU busy at all, the sum of b does (_IN_TURNS)

The first is from 39 public placements of ten trainings on slices of an A100 (tests/recorded/mig-slices) and from 66
jobs on four parts of the SMs of an H100 and an H200 (tests/gpu/slowdowns_*.csv): a job whose kernels alone would take
1 + y times as long hides some of it behind its work on the host. The second is from 67 mixes under MPS on an H100
(tests/gpu/mixes_h100.csv, tests/recorded/h100-mps-slowdowns.json): 1 + a o is the chance that both want the SMs at one
time, and a + o says that together they cannot do more than the SMs can. The third holds between daemons of several
users, whose kernels do not run together: a model, and a quarter more for what tests/gpu/users_h100 exceeded it by. What
they keep is in docs/explanation/estimate.md.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

_EXPECTED = 0.5
# Of what a slice lacks a job hides a fifth, and no more than this.
_UPPER, _MOST_HIDDEN = 0.8, 0.06
# What a job counts for among those that share a GPU, by its SM activity alone, both in percent. One that keeps most of
# the SMs busy is slowed little by light ones and slows them little, until it leaves them hardly any: then they wait.
_COUNTS = ((0.0, 0.0), (40.0, 40.0), (75.0, 60.0), (90.0, 90.0), (100.0, 110.0))
# The slowdown that few jobs exceed, and what all jobs on the GPU count for.
_TOGETHER = ((1.0, 0.0), (1.1, 50.0), (1.25, 80.0), (1.4, 82.0), (1.6, 105.0))
# The same for the parts of time, in percent, in which each keeps the GPU busy: where it is more than one user's.
_IN_TURNS = ((1.0, 0.0), (1.1, 56.0), (1.25, 89.0), (1.6, 138.0))
# That part of time, by SM activity in percent: 2 of 143 jobs of tests/gpu/slowdowns_*.csv exceed it.
_BUSY_AT_LEAST_PCT, _BUSY_BY_SM = 20.0, 1.2


class Slowdown(NamedTuple):
    """How many times as long as on a whole GPU a job takes: at the median, and as few jobs exceed."""

    expected: float
    upper: float


def on_slice(sm_active_pct: float, whole_over_own: float) -> Slowdown:
    """Return how much slower a job is on a part of the SMs that nobody else uses.

    What a slice lacks of the memory's bandwidth is in what it lacks of SMs: it has no smaller part of that, and no job
    measured so far keeps memory busier than SMs.

    Args:
        sm_active_pct: its mean SM activity on a whole GPU, in percent.
        whole_over_own: SMs of the whole GPU over those of the piece.
    """
    lacking = sm_active_pct / 100 * (max(1.0, whole_over_own) - 1)
    return Slowdown(1 + _EXPECTED * lacking, 1 + max(_UPPER * lacking, lacking - _MOST_HIDDEN))


def upper_on_slice_sql(sm_active_pct: str, own_over_whole: str) -> str:
    """Return SQL for the same upper end; both are SQL for numbers, the second for the piece's part of the SMs."""
    lacking = f"{sm_active_pct} / 100 * (1 / {own_over_whole} - 1)"
    return f"1 + greatest({_UPPER} * {lacking}, {lacking} - {_MOST_HIDDEN})"


def most_on_slice(max_slowdown: float, whole_over_own: float) -> float:
    """Return the SM activity in percent of a whole GPU, up to 100, that such a part slows no more than so."""
    if whole_over_own <= 1:
        return 100.0
    lacking = min((max_slowdown - 1) / _UPPER, max_slowdown - 1 + _MOST_HIDDEN)
    return min(100.0, 100 * lacking / (whole_over_own - 1))


def counts_for(sm_active_pct: float) -> float:
    """Return what a job counts for among those that share a GPU."""
    return between(_COUNTS, sm_active_pct)


def most_together(max_slowdown: float) -> float:
    """Return what jobs under MPS may count for together, for few to be slowed more than so."""
    return between(_TOGETHER, max_slowdown)


def beside(sm_active_pct: float, others_pct: Sequence[float]) -> Slowdown:
    """Return how much slower a job is under MPS beside others than alone; each by its SM activity alone, in percent."""
    if not others_pct:
        return Slowdown(1.0, 1.0)
    expected = _expected_beside(sm_active_pct, sum(others_pct))
    together = counts_for(sm_active_pct) + sum(map(counts_for, others_pct))
    slowest, most = _TOGETHER[-1]
    # The first is 1.1: by so much two measurements of a small job alone differ.
    upper = next((bound for bound, held in _TOGETHER[1:] if together <= held), slowest * together / most)
    return Slowdown(expected, max(upper, expected))


def _expected_beside(sm_active_pct: float, others_pct: float) -> float:
    own, others = sm_active_pct / 100, others_pct / 100
    return max(1 + own * others, own + others)


def on_share(sm_active_pct: float, max_slowdown: float, *, in_turns: bool = False) -> Slowdown:
    """Return how much slower a job is on a GPU whose other jobs take what may run beside it: expected, and at most.

    ``in_turns`` is as in ``part_needed``; of the median nothing is known there, so it is taken for the worst.
    """
    upper = min(max_slowdown, _TOGETHER[-1][0])
    if in_turns:
        return Slowdown(upper, upper)
    rest_pct = max(0.0, most_together(max_slowdown) - counts_for(sm_active_pct))
    return Slowdown(min(_expected_beside(sm_active_pct, rest_pct), upper), upper)


def part_needed(sm_active_pct: float, max_slowdown: float, *, in_turns: bool = False) -> float:
    """Return the part of a GPU's shares that a job needs for its SM activity; above 1 where no share is enough.

    Args:
        sm_active_pct: its mean SM activity on a whole GPU, in percent.
        max_slowdown: how much slower few may be.
        in_turns: its neighbours may be clients of other daemons.
    """
    if in_turns:
        needed, most = _BUSY_AT_LEAST_PCT + _BUSY_BY_SM * sm_active_pct, between(_IN_TURNS, max_slowdown)
    else:
        needed, most = counts_for(sm_active_pct), most_together(max_slowdown)
    return needed / most if most else math.inf


def most_in_part(part: float, max_slowdown: float, *, in_turns: bool = False) -> float:
    """Return the SM activity in percent of a whole GPU, 0 or more, for which such a part of its shares is enough."""
    if in_turns:
        return max(0.0, (between(_IN_TURNS, max_slowdown) * part - _BUSY_AT_LEAST_PCT) / _BUSY_BY_SM)
    return between([(count, active_pct) for active_pct, count in _COUNTS], most_together(max_slowdown) * part)


def between(points: Sequence[tuple[float, float]], at: float) -> float:
    """Return the value at a place between points, and beyond the last of them its value."""
    for (low, low_value), (high, high_value) in pairwise(points):
        if at <= high:
            return low_value + (high_value - low_value) * (at - low) / (high - low)
    return points[-1][1]

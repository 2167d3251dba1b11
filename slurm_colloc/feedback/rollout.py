# SPDX-License-Identifier: Apache-2.0
"""Compares the jobs of a rollout rule that were placed with those that were only recorded, and shows those placed late.

That was decided in both arms in the same way, before anything was known of the outcome. Drawn is a job of a user for a
day, so that a mean's interval is that of a ratio over draws: jobs of one draw hang together.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from math import sqrt
from typing import NamedTuple

from slurm_colloc.core.model import COMPLETED, CONTROL, GPU_OOM, LATE, PLACED
from slurm_colloc.core.sharing_model import ArmFigure
from slurm_colloc.estimate.harm import Harm
from slurm_colloc.feedback.harm import JudgedRun, rate

# A normal distribution has 95 % within so many standard deviations of its mean; fewer draws make no such one.
_DEVIATIONS, _LEAST_DRAWS = 1.96, 10
_DAY_S, _HOUR_S = 86400, 3600.0
_MEMORY = (GPU_OOM, "OUT_OF_MEMORY")
# Ended by somebody, not by what it had.
_STOPPED = ("CANCELLED", "PREEMPTED", "REQUEUED", "REVOKED", "DEADLINE")


class _Part(NamedTuple):
    """Which runs a part is of, and which of them count."""

    covers: Callable[[JudgedRun], bool]
    counts: Callable[[JudgedRun], bool]


def _hours_to(run: JudgedRun, until_s: float) -> float | None:
    return None if run.submit_s is None else (until_s - run.submit_s) / _HOUR_S


_MEANS: dict[str, Callable[[JudgedRun], float | None]] = {
    "wait_h": lambda run: _hours_to(run, run.start_s),
    "turnaround_h": lambda run: _hours_to(run, run.run.ended_s) if run.run.state == COMPLETED else None,
    "gpu_hours": lambda run: run.gpu_hours,
}
_PARTS = {
    # Why a run failed nobody knows, but of those that ran out of memory by a word of Slurm's, or of csub's block.
    "out_of_memory": _Part(
        lambda run: run.run.state not in ("FAILED", *_STOPPED), lambda run: run.run.state in _MEMORY
    ),
    "not_completed": _Part(lambda run: run.run.state not in _STOPPED, lambda run: run.run.state != COMPLETED),
    "slower": _Part(
        lambda run: run.run.state == COMPLETED and run.harm is not None, lambda run: run.harm is Harm.SLOWER
    ),
}


def arm_figures(runs: Iterable[JudgedRun]) -> list[ArmFigure]:
    """Return each measure of each arm of each rule, of those runs of which it is known.

    Jobs that are placed late are not drawn: their arm is of no rule, and has none beside it.
    """
    of_arm: dict[tuple[str, str], list[JudgedRun]] = defaultdict(list)
    for run in runs:
        if run.arm in (PLACED, CONTROL) and run.offered:
            of_arm[run.rule, run.arm].append(run)
        elif run.arm == LATE and run.on_piece:
            of_arm["", LATE].append(run)
    drawn = sorted({rule for rule, arm in of_arm if arm != LATE})
    late = [("", (LATE,))] if of_arm["", LATE] else []
    return [
        _figure(rule, arm, measure, of_arm[rule, arm])
        for rule, arms in (*((rule, (PLACED, CONTROL)) for rule in drawn), *late)
        for measure in (*_MEANS, *_PARTS)
        for arm in arms
    ]


def _figure(rule: str, arm: str, measure: str, runs: Sequence[JudgedRun]) -> ArmFigure:
    if measure in _MEANS:
        values = [(run, value) for run in runs if (value := _MEANS[measure](run)) is not None]
        return ArmFigure(rule, arm, measure, *_mean(values), len(values), len({_draw(run) for run, _ in values}))
    judged = [run for run in runs if _PARTS[measure].covers(run)]
    share = rate(measure, sum(map(_PARTS[measure].counts, judged)), len(judged))
    draws = len({_draw(run) for run in judged})
    return ArmFigure(rule, arm, measure, share.part, share.low, share.high, share.known, draws)


def _draw(run: JudgedRun) -> tuple[str, str, int]:
    """Return which draw put a job into its arm."""
    return run.user, run.run.signature, (run.start_s if run.submit_s is None else run.submit_s) // _DAY_S


def _mean(values: Sequence[tuple[JudgedRun, float]]) -> tuple[float | None, float | None, float | None]:
    """Return a mean over jobs, and between what the true one lies with 95 % where there are draws enough to say it."""
    if not values:
        return None, None, None
    mean = sum(value for _, value in values) / len(values)
    off: dict[tuple[str, str, int], float] = defaultdict(float)
    for run, value in values:
        off[_draw(run)] += value - mean
    if len(off) < _LEAST_DRAWS:
        return mean, None, None
    variance = sum(value**2 for value in off.values()) * len(off) / (len(off) - 1) / len(values) ** 2
    return mean, mean - _DEVIATIONS * sqrt(variance), mean + _DEVIATIONS * sqrt(variance)

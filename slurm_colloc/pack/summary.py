# SPDX-License-Identifier: Apache-2.0
"""What a pack says at its end."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import NamedTuple

from slurm_colloc.gpu.failure import Outcome
from slurm_colloc.units import clock_time, counted, spans


class Result(NamedTuple):
    """How a pack went: ``tasks`` are their numbers, ``outcomes`` the last ones, ``run_s`` the sum of all attempts."""

    job_id: str
    node: str
    tasks: Collection[int]
    done_before: int
    at_once: int
    outcomes: Mapping[int, Outcome]
    again: int
    run_s: float
    wall_s: float
    with_gpu: bool


def summary(result: Result) -> str:
    """Return lines for people, each with its end."""
    by_outcome: dict[Outcome, list[int]] = defaultdict(list)
    for number, outcome in result.outcomes.items():
        by_outcome[outcome].append(number)
    done = len(by_outcome.pop(Outcome.DONE, []))
    went = f"{counted(len(result.tasks), 'task')}: {done} succeeded"
    if result.done_before:
        went += f" ({result.done_before} more had done so before)"
    lines = [f"pack of job {result.job_id} on {result.node}: {went}"]
    lines += [f"  {outcome.value}: {spans(numbers)}" for outcome, numbers in sorted(by_outcome.items())]
    if left := set(result.tasks) - result.outcomes.keys():
        lines.append(f"  not run: {spans(left)}")
    if result.again:
        lines.append(f"  {counted(result.again, 'attempt')} repeated")
    per_hour = 3600 * done / result.wall_s if result.wall_s else 0.0
    lines.append(f"  {clock_time(result.wall_s)}, {per_hour:.4g} tasks per hour, {result.at_once} at a time at most")
    if result.with_gpu:
        held, alone = result.wall_s / 3600, result.run_s / 3600
        lines.append(
            f"  {held:.4g} GPU-hours; one task per GPU would have held {alone:.4g} at the speed measured here, which is"
            " an upper bound, since tasks slow each other down"
        )
    return "".join(f"{line}\n" for line in lines)

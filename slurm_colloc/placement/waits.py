# SPDX-License-Identifier: Apache-2.0
"""Estimates wait and end of a job on each piece and on a whole GPU, and chooses the earliest end: pure functions.

    turnaround = wait + run time on a whole GPU x slowdown

The wait is 0 where enough is free now, else the median of what jobs that got the same waited last week; where neither
is known nothing is weighed (docs/explanation/estimate.md).
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.model import Placement, Reason, Weighed, because
from slurm_colloc.slurm.free_gpus import Free

# Fewer waits say nothing of the next.
LEAST_RUNS = 5
SPAN_S = 7 * 86400.0
# An ingest that has not come round for so long leaves "last week" behind.
MOST_AGE_S = 2 * 86400.0
# A choice: a whole GPU for a job that needs a part of it costs others.
_KEEP_FACTOR = 1.5


class Wait(NamedTuple):
    """How long jobs waited from submission to start: median, 90th percentile, and how many began in the week."""

    median_s: float
    p90_s: float
    runs: int


class Waits(NamedTuple):
    """Waits by (partition, kind of gres), counted at ``at_s`` over the week before."""

    at_s: float
    measured: Mapping[tuple[str, str], Wait]


class QueueEstimate(NamedTuple):
    """Where a choice looks up waits; both may be asked once, and neither when there is nothing to choose.

    ``free`` answers what is free now, or why that is not known; it is asked only where the answer may change the
    choice, or where ``wanted`` says that somebody wants to see it.
    """

    waits: Callable[[], Waits]
    free: Callable[[], Free | Reason]
    wanted: bool = False


class Option(NamedTuple):
    """Something a job may get: ``units`` of a ``kind`` in whichever of the partitions has it first.

    The partitions have room for ``at_once`` such jobs when they are empty; None: not known.
    """

    name: str
    kind: str
    partitions: tuple[str, ...]
    units: int
    slowdown: float
    at_once: int | None = None


def at_once(option: Option, config: SiteConfig) -> int:
    """Return how many jobs the site has such an option for, when it is empty; 0 where site.toml does not say.

    Of gpus without a type those are all, slices among them.
    """
    # 20 ms, and of arrays alone.
    from slurm_colloc.slurm.hostlist import count

    name, _, gpu_type = option.kind.partition(":")
    room = 0
    for pool in config.pool:
        if not set(pool.partitions) & set(option.partitions):
            continue
        of_gpu = {"mps": pool.mps_per_gpu, "shard": pool.shards_per_gpu}.get(name, gpu_type in ("", pool.gpu_type))
        of_node = pool.gpus_per_node * (of_gpu // option.units)
        of_node += sum(part.quantity for part in pool.slice if name == "gpu" and gpu_type in ("", part.type))
        room += of_node * count(pool.nodes)
    return room


def weigh(option: Option, run_s: float | None, waits: Waits, free: Free | None, tasks: int = 1) -> Weighed:
    """Return what is expected of one option; a job that names several partitions starts in the first that has it.

    An array's ``tasks`` that the site has no room for at once run after each other, and it is free for all or for none.
    """
    together = min(tasks, option.at_once or tasks)
    rounds = math.ceil(tasks / together)
    keys = [(partition, option.kind) for partition in option.partitions]
    known = [waits.measured[key] for key in keys if key in waits.measured]
    wait = min(known, key=lambda one: one.median_s, default=None)
    left = [free.units[key] for key in keys if key in free.units] if free else []
    # Shares are of one GPU, and of the others nobody is asked.
    wanted = option.units * (together if option.kind.startswith("gpu") else 1)
    is_free = any(units >= wanted for units in left) if left else None
    wait_s = 0.0 if is_free else wait.median_s if wait else None
    ends_s = None if wait_s is None or run_s is None else wait_s + run_s * option.slowdown * rounds
    return Weighed(
        option=option.name,
        free_now=is_free,
        waited_median_s=wait.median_s if wait else None,
        waited_p90_s=wait.p90_s if wait else None,
        waited_runs=wait.runs if wait else 0,
        slowdown=option.slowdown,
        run_s=run_s,
        turnaround_s=ends_s,
        rounds=rounds,
    )


def free_matters(pieces: Sequence[Weighed], whole: Weighed | None) -> bool:
    """Return whether knowing what is free now can change the choice that is made without: else nobody is asked."""
    run_s = pieces[0].run_s
    others = [*pieces[1:], *([whole] if whole else [])]
    if not others:
        return False
    if run_s is None or pieces[0].waited_median_s is None:  # it may be a long wait for a short job
        return True
    at_worst_s = pieces[0].waited_median_s + run_s * _times(pieces[0])
    return at_worst_s > _KEEP_FACTOR * min(run_s * _times(other) for other in others)


def _times(weighed: Weighed) -> float:
    """Return how many times as long as one run on a whole GPU a job, or all of an array, runs."""
    return weighed.slowdown * weighed.rounds


def choose(pieces: Sequence[Weighed], whole: Weighed | None) -> int | None:
    """Return which of the pieces the job gets; None: the whole GPU.

    The first is what the site's order and the smallest that fits come to. Another piece, and then the whole GPU, is
    taken only where the job would end more than _KEEP_FACTOR times as soon; what is not known is not taken. Nor is a
    piece that is not free, and that nobody knows the wait for, while something else is free; nor for an array a piece
    of which the site has so few that its tasks would end later after each other.
    """
    taken, ends_s = 0, pieces[0].turnaround_s
    if pieces[0].rounds > 1 and (ends_s is None or (whole is not None and whole.turnaround_s is None)):
        quickest = min(range(len(pieces)), key=lambda index: _times(pieces[index]))
        taken = quickest if _times(pieces[0]) > _KEEP_FACTOR * _times(pieces[quickest]) else 0
        return None if whole is not None and _times(pieces[taken]) > _KEEP_FACTOR * _times(whole) else taken
    if ends_s is None:
        free = next((index for index, piece in enumerate(pieces) if piece.free_now), None)
        if pieces[0].free_now is False and free is None and whole is not None and whole.free_now:
            return None
        return free if free is not None and pieces[0].free_now is False else 0
    known = [(piece.turnaround_s, index) for index, piece in enumerate(pieces) if piece.turnaround_s is not None]
    quickest_s, quickest = min(known)
    if ends_s > _KEEP_FACTOR * quickest_s:
        taken, ends_s = quickest, quickest_s
    if whole is not None and whole.turnaround_s is not None and ends_s > _KEEP_FACTOR * whole.turnaround_s:
        return None
    return taken


def wait_for(placement: Placement) -> tuple[float | None, int | None]:
    """Return how long a job may wait for what it is given, in seconds, and of how many jobs that is the median.

    0 s of no job where enough is free now; None where it is not known, or where two options bear the name.
    """
    of = [one for one in placement.weighed if one.option == placement.given]
    if len(of) != 1:
        return None, None
    if of[0].free_now:
        return 0.0, 0
    return of[0].waited_median_s, of[0].waited_runs or None


def queue_estimate_of(weighed: Weighed) -> Reason | None:
    """Return whether an option is free now, or how long jobs waited for it; None where neither is known."""
    if weighed.free_now:
        return because("free-now", option=weighed.option)
    if weighed.waited_median_s is not None:
        return because("waited", option=weighed.option, wait_s=weighed.waited_median_s, runs=weighed.waited_runs)
    return because("not-free", option=weighed.option) if weighed.free_now is False else None


def waits_path(state_folder: str) -> str:
    """Return where the waits lie: beside the users' histories, which everybody may enter."""
    return os.path.join(state_folder, "history", "waits.json")


def to_json(waits: Waits) -> object:
    """Return what ``value_types.read_as`` makes Waits of again."""
    return waits.at_s, [*waits.measured.items()]

# SPDX-License-Identifier: Apache-2.0
"""Chooses among the pieces that hold a job, and the whole GPU, by what is free now: pure functions.

Rounds count instead for an array whose tasks the site has no room for at once (docs/explanation/estimate-rules.md).
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.model import Placement, Reason, Weighed, because
from slurm_colloc.slurm.free_gpus import Free

# A choice: a whole GPU for a job that needs a part of it costs others.
_KEEP_FACTOR = 1.5


class FreeNow(NamedTuple):
    """A look at what is free now, or why that is not known.

    It is asked once, and only where the answer may change the choice, or ``wanted`` says that somebody wants to see it.
    """

    ask: Callable[[], Free | Reason]
    wanted: bool = False


class Option(NamedTuple):
    """A thing that a job may get: ``units`` of a ``kind`` in whichever of the partitions has it first.

    The partitions have room for ``at_once`` such jobs when they are empty; None: not known.
    """

    name: str
    kind: str
    partitions: tuple[str, ...]
    units: int
    slowdown: float
    at_once: int | None = None


def at_once(option: Option, config: SiteConfig) -> int:
    """Return how many jobs the site has such an option for, when it is empty; none if site.toml does not say.

    GPUs without a type are all, slices among them.
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


def weigh(option: Option, free: Free | None, tasks: int = 1) -> Weighed:
    """Return what is expected of one option, in whichever of its partitions.

    An array's ``tasks`` that the site has no room for at once run after each other, and it is free for all or for none.
    """
    together = min(tasks, option.at_once or tasks)
    keys = [(partition, option.kind) for partition in option.partitions]
    free_units = [free.units[key] for key in keys if key in free.units] if free else []
    # Shares are of one GPU, and nobody is asked for those of others.
    needed_units = option.units * (together if option.kind.startswith("gpu") else 1)
    is_free = any(units >= needed_units for units in free_units) if free_units else None
    return Weighed(option.name, is_free, option.slowdown, math.ceil(tasks / together))


def _times(weighed: Weighed) -> float:
    """Return how many times as long as one run on a whole GPU a job, or all of an array, runs."""
    return weighed.slowdown * weighed.rounds


def choose(pieces: Sequence[Weighed], whole_gpu: Weighed | None) -> int | None:
    """Return which of the pieces the job gets; None: the whole GPU.

    The first is the smallest that fits in the site's order. It is left for another piece, or else a whole GPU, that is
    free now if it is not. An array whose tasks would run after each other gets another piece, or then the whole GPU,
    only where all of them would end more than _KEEP_FACTOR times as soon.
    """
    if pieces[0].rounds > 1:
        quickest = min(range(len(pieces)), key=lambda index: _times(pieces[index]))
        best = quickest if _times(pieces[0]) > _KEEP_FACTOR * _times(pieces[quickest]) else 0
        return None if whole_gpu is not None and _times(pieces[best]) > _KEEP_FACTOR * _times(whole_gpu) else best
    if pieces[0].free_now is not False:
        return 0
    free = next((index for index, piece in enumerate(pieces) if piece.free_now), None)
    return None if free is None and whole_gpu is not None and whole_gpu.free_now else free or 0


def is_free(placement: Placement) -> bool:
    """Return whether a job's piece was seen to be free; no piece is whose name two options bear."""
    return [option.free_now for option in placement.weighed if option.option == placement.given] == [True]


def free_in_words(weighed: Weighed) -> Reason | None:
    """Return whether an option is free now; None where that is not known."""
    if weighed.free_now is None:
        return None
    return because("free-now" if weighed.free_now else "not-free", option=weighed.option)

# SPDX-License-Identifier: Apache-2.0
"""The policy for a job, or a task of a pack, that ran out of GPU memory: pure functions.

It is run again with more, twice at most. The memory was its own on a slice. A neighbour may have had it on a share
(MPS, shard): a job that had, with what it tried to get, no more than it was counted for is a victim, and its run
teaches nothing.
"""

from collections.abc import Sequence

from slurm_colloc.core.config import Pool
from slurm_colloc.core.model import Gres, SharingMode

MOST_RETRIES = 2


def is_share(gres: Gres) -> bool:
    """Return whether it is a part of a GPU whose size is free, beside neighbours."""
    return gres.name in (SharingMode.MPS, SharingMode.SHARD)


def mode_of(gres: Gres) -> SharingMode:
    """Return how a job holds its GPU that has a share or a slice."""
    return SharingMode(gres.name) if is_share(gres) else SharingMode.MIG


def held_mib(gres: Gres | None, budget_mib: int, pools: Sequence[Pool]) -> int | None:
    """Return the GPU memory that a job could count on; None on a whole GPU, or what is none that is known.

    ``budget_mib`` is what it was counted for, where it had a share.
    """
    if gres is None:
        return None
    if is_share(gres):
        return budget_mib
    return next((part.mem_mib for pool in pools for part in pool.slice if part.type == gres.type), None)


def is_offender(gres: Gres, held: int, peak_mib: int | None, tried_mib: int | None) -> bool:
    """Return whether it ran out by its own doing: always on a slice, on a share if it went beyond what it held."""
    return not is_share(gres) or (peak_mib is not None and peak_mib + (tried_mib or 0) > held)


def more_mib(held: int, peak_mib: int = 0, *, sizes_are_free: bool = True) -> int:
    """Return the memory to ask for next: twice as much, or more than a slice holds, of which there are few sizes."""
    return max(2 * held if sizes_are_free else held + 1, peak_mib + 1)

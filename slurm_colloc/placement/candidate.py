# SPDX-License-Identifier: Apache-2.0
"""A job that may get a piece of a GPU, with what follows from its request at this site."""

import math
from collections.abc import Iterable
from typing import NamedTuple

from slurm_colloc.core.config import Partition, Pool, SiteConfig
from slurm_colloc.core.model import Footprint, Gres, JobRequest, Reason, because
from slurm_colloc.slurm.free_gpus import kind_of
from slurm_colloc.slurm.limits import Limits


class Access(NamedTuple):
    """The user's limits in the accounting (None: none are enforced), or why they are not known."""

    limits: Limits | None = None
    unknown: Reason | None = None
    groups: tuple[str, ...] = ()


class Candidate(NamedTuple):
    """A job and the site, and what follows from both: the partitions that the job asks for and its time limit as asked.

    ``more`` are the partitions to which it may be moved. ``gpu_type`` is the type that it names, empty for any, and
    ``whole_kind`` the kind of gres of a whole GPU that it gets as asked, empty where it may get something else. A piece
    has to hold ``memory_mib``, which is with the site's headroom, and the mean SM activity; a kernel of the job runs in
    ``busy_pct`` of the time (None: not known).
    """

    request: JobRequest
    footprint: Footprint
    config: SiteConfig
    access: Access
    gpu_type: str
    whole_kind: str
    names: tuple[str, ...]
    partitions: tuple[Partition, ...]
    more: tuple[Partition, ...]
    limit_min: float | None
    memory_mib: int
    sm_active_pct: float
    busy_pct: float | None


class Target(NamedTuple):
    """A pool, the partition in which the job would use it, and whether that is another than those asked for.

    ``partitions`` are all in which Slurm may then start the job.
    """

    pool: Pool
    partition: Partition
    moved: bool
    partitions: tuple[Partition, ...]

    @property
    def named(self) -> str:
        """Return the partition to ask for; empty where it is the job's own."""
        return self.partition.name if self.moved else ""


def candidate_of(request: JobRequest, footprint: Footprint, config: SiteConfig, access: Access) -> Candidate | None:
    """Return the candidate that a job is at a site; None of a job whose need is not known."""
    memory, active, busy = footprint.gpu_mem_peak_mib, footprint.sm_active_pct, footprint.busy_pct
    if memory is None or active is None:
        return None
    gpu_type = next((gres.type for gres in request.gres if gres.name == "gpu"), "")
    names = partition_names(request, config)
    partitions = described(names, config)
    more = dict.fromkeys(name for partition in partitions for name in partition.pieces_in if name not in names)
    return Candidate(
        *(request, footprint, config, access, gpu_type, _whole_kind(gpu_type, names, config), names, partitions),
        more=described(more, config),
        limit_min=_limit_min(request, partitions),
        memory_mib=math.ceil(memory.q99) + config.sharing.headroom_mib,
        sm_active_pct=active.q95,
        # No SM is active without a kernel, whatever two counters say.
        busy_pct=max(busy.q95, active.q95) if busy else None,
    )


def _whole_kind(gpu_type: str, names: tuple[str, ...], config: SiteConfig) -> str:
    pools = [pool for pool in config.pool if not set(names).isdisjoint(pool.partitions)]
    # A job without a type may land on any slice, whose wait and memory are others'.
    if not gpu_type and any(part.quantity for pool in pools for part in pool.slice):
        return ""
    types = {pool.gpu_type for pool in pools if pool.gpus_per_node and gpu_type in ("", pool.gpu_type)}
    return kind_of(Gres("gpu", types.pop(), 1)) if len(types) == 1 else ""


def partition_names(request: JobRequest, config: SiteConfig) -> tuple[str, ...]:
    """Return the partitions that a job names, or the default one."""
    return request.partitions or (config.default_partition,)


def described(names: Iterable[str], config: SiteConfig) -> tuple[Partition, ...]:
    """Return partitions as site.toml describes them; those that it does not have their name alone."""
    partitions = {partition.name: partition for partition in config.partition}
    return tuple(partitions.get(name, Partition(name)) for name in names)


def asked_partitions(request: JobRequest, config: SiteConfig) -> tuple[Partition, ...]:
    """Return the partitions that a job names, or the default one, as site.toml describes them."""
    return described(partition_names(request, config), config)


def asked_limit_min(request: JobRequest, config: SiteConfig) -> float | None:
    """Return the time limit that the job would get as asked; None where it is unlimited or not known."""
    return _limit_min(request, asked_partitions(request, config))


def _limit_min(request: JobRequest, partitions: tuple[Partition, ...]) -> float | None:
    if request.time_limit_min is not None:
        return None if math.isinf(request.time_limit_min) else request.time_limit_min
    limits = [default_limit_min(partition) for partition in partitions]
    return None if None in limits else min(limit for limit in limits if limit is not None)


def default_limit_min(partition: Partition) -> float | None:
    """Return the time limit that a job without one gets in a partition; None where it is unlimited or not known."""
    return partition.max_time_min if partition.default_time_min is None else partition.default_time_min


def suspending(partitions: Iterable[Partition]) -> Reason | None:
    """Return why GPU memory must not be shared in all of these partitions; None when it may."""
    name = next((partition.name for partition in partitions if partition.suspends), None)
    return None if name is None else because("partition-suspends", partition=name)


def other_card(gpu_model: str, pool: Pool) -> Reason | None:
    """Return why a measurement on a model of GPU (empty: any) may not hold for those of a pool; None when it does."""
    if gpu_model in ("", pool.gpu_model):
        return None
    if not pool.gpu_model:
        return because("pool-lacks-model", pool=pool.name, measured_on=gpu_model)
    return because("other-gpu-model", measured_on=gpu_model, pool_has=pool.gpu_model)

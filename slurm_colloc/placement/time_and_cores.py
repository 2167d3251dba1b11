# SPDX-License-Identifier: Apache-2.0
"""Time limit, CPU cores and host memory of a job that gets a piece of a GPU."""

import math
from collections.abc import Iterable
from typing import NamedTuple

from slurm_colloc.core.config import Partition, Pool, SiteConfig
from slurm_colloc.core.model import Footprint, JobRequest, Reason, because
from slurm_colloc.core.units import asked_mib

_UNCLEAR = because("cores-unclear")


class Time(NamedTuple):
    """The time limit to ask for (None: as it is), or why there is not enough time."""

    limit_min: int | None
    too_little: Reason | None = None


class Part(NamedTuple):
    """How much of a GPU a piece is, from 0 to 1, and what the job needs of the host; None where that is not known."""

    of_gpu: float
    cpu_cores: int | None = None
    host_mem_mib: int | None = None


class Kept(NamedTuple):
    """What must be said of cores and host memory with a piece of a GPU: options, or why they cannot be said.

    ``cpus`` is how many cores that comes to; 0 where it is not known.
    """

    cpu_option: str
    mem: str
    impossible: Reason | None = None
    cpus: int = 0


def other_card(footprint: Footprint, pool: Pool) -> Reason | None:
    """Return why what was measured is not known to hold for the GPUs of a pool; None when it does."""
    if not footprint.gpu_model or footprint.gpu_model == pool.gpu_model:
        return None
    if not pool.gpu_model:
        return because("pool-lacks-model", pool=pool.name, measured_on=footprint.gpu_model)
    return because("other-gpu-model", measured_on=footprint.gpu_model, pool_has=pool.gpu_model)


def asked_partitions(request: JobRequest, config: SiteConfig) -> list[Partition]:
    """Return the partitions that the job names, or the default one, as site.toml describes them."""
    known = {partition.name: partition for partition in config.partition}
    return [known.get(name, Partition(name)) for name in request.partitions or (config.default_partition,)]


def suspending(partitions: Iterable[Partition]) -> Reason | None:
    """Return why GPU memory must not be shared in all of these partitions; None when it may."""
    name = next((item.name for item in partitions if item.suspends), None)
    return None if name is None else because("partition-suspends", partition=name)


def without_mps(partitions: Iterable[Partition]) -> Reason | None:
    """Return why a job may not have gres/mps in all of these partitions; None when it may."""
    name = next((item.name for item in partitions if not item.mps_users), None)
    return None if name is None else because("partition-lacks-mps-users", partition=name)


def asked_limit_min(request: JobRequest, config: SiteConfig) -> float | None:
    """Return the time limit that the job would get as asked; None where it is unlimited or not known."""
    if request.time_limit_min is not None:
        return None if math.isinf(request.time_limit_min) else request.time_limit_min
    limits = [_default_min(item) for item in asked_partitions(request, config)]
    return None if None in limits else min(limit for limit in limits if limit is not None)


def _default_min(partition: Partition) -> float | None:
    return partition.max_time_min if partition.default_time_min is None else partition.default_time_min


def time_needed(
    request: JobRequest, run_time_min: float | None, slowdown: float, moved_to: Partition | None, config: SiteConfig
) -> Time:
    """Return the time limit for a piece on which the job is ``slowdown`` times as slow as on a whole GPU.

    Args:
        request: the job.
        run_time_min: what it needs on a whole GPU, with a margin; None where nobody knows.
        slowdown: 1 on a piece that holds all SMs that it uses.
        moved_to: the partition of the piece, where that is another than those asked for.
        config: the site.
    """
    limit_min = asked_limit_min(request, config)
    if limit_min is None:
        if moved_to is not None and moved_to.default_time_min is not None and request.time_limit_min is None:
            return Time(None, because("partition-limits-time", partition=moved_to.name))
        return Time(None)
    # What was left to the partition's default must not become another partition's.
    unchanged = Time(math.ceil(limit_min) if moved_to is not None and request.time_limit_min is None else None)
    # A job whose run time nobody knows may need all of its time limit; one that nothing slows needs what it was given.
    needed_min = (limit_min if run_time_min is None else run_time_min) * slowdown
    if request.time_limit_min is None and len({_default_min(item) for item in asked_partitions(request, config)}) > 1:
        return Time(None, because("time-limits-differ") if slowdown > 1 or moved_to else None)
    if slowdown <= 1 or needed_min <= limit_min:
        return unchanged
    most_min = limit_min * config.sharing.max_slowdown
    for partition in [moved_to] if moved_to is not None else asked_partitions(request, config):
        if partition.max_time_min is not None:
            most_min = min(most_min, partition.max_time_min)
    if needed_min > most_min:
        times = {"needed_min": needed_min, "limit_min": limit_min, "most_min": most_min}
        code = "time-limit-too-short" if run_time_min is None else "runs-too-long"
        return Time(None, Reason(code, {"slowdown": slowdown, **times}))
    return Time(math.ceil(needed_min))


def kept_with_share(
    request: JobRequest, moved_to: Partition | None, part: Part, pool: Pool, config: SiteConfig
) -> Kept:
    """Return the cores and host memory that follow from the GPU and would be lost with it, or the share's part."""
    described = {partition.name for partition in config.partition}
    found: set[tuple[int, str]] = set()
    for partition in asked_partitions(request, config):
        if partition.name not in described:
            return Kept("", "", because("partition-not-described", partition=partition.name))
        had = 0 if request.cpus_given else partition.cpus_per_gpu
        cpus = request.cpus_per_gpu or _cores(had, part, request)
        mem = _memory(request, partition, moved_to, (had, cpus), part, pool, config)
        if mem is None and moved_to:
            return Kept("", "", because("partition-other-memory", partition=moved_to.name))
        found.add((cpus, request.mem_per_gpu or mem or ""))
    if len(found) > 1:
        return Kept("", "", because("hosts-differ"))
    [(cpus, mem)] = found
    if cpus and request.cores_unclear:
        return Kept("", "", _UNCLEAR)
    # Measured: a job has the cores of its tasks or those per GPU, whichever are more, and --mincpus is not heard where
    # the number of tasks is given.
    if request.tasks is None:
        return Kept(f"mincpus={max(cpus, request.min_cpus)}" if cpus else "", mem, cpus=max(cpus, request.min_cpus))
    if cpus <= request.tasks:
        return Kept("", mem, cpus=request.tasks)
    if request.min_cpus or cpus % request.tasks:
        return Kept("", "", because("cores-not-divisible", tasks=request.tasks, cores=cpus))
    return Kept(f"cpus-per-task={cpus // request.tasks}", mem, cpus=cpus)


def kept_with_slice(request: JobRequest, part: Part, pool: Pool, config: SiteConfig) -> Kept:
    """Return the slice's part of the cores and host memory that Slurm would give with it as with a whole GPU."""
    found: set[tuple[int, int, str]] = set()
    for partition in asked_partitions(request, config):
        had = 0 if request.cpus_given or request.cpus_per_gpu else partition.cpus_per_gpu
        cpus = _cores(had, part, request)
        mem = _memory(request, partition, None, (had, cpus), part, pool, config) or ""
        found.add((had, cpus, "" if mem == f"{partition.mem_per_gpu_mib}M" else mem))
    if len(found) > 1 or request.cores_unclear:
        return Kept("", "")
    [(had, cpus, mem)] = found
    return Kept(f"cpus-per-gpu={cpus}" if cpus != had else "", mem, cpus=max(cpus, request.tasks or 0))


def kept_when_moved(request: JobRequest, target: Partition, part: Part, pool: Pool, config: SiteConfig) -> Kept:
    """Return the cores and host memory of a slice in another partition than the job's own, where that gives others."""
    cores, memory = set(), set()
    for own in asked_partitions(request, config):
        wanted = _cores(own.cpus_per_gpu, part, request) or request.tasks or 1
        as_said = request.cpus_given or request.cpus_per_gpu or wanted == target.cpus_per_gpu
        cores.add(None if as_said or own.cpus_per_gpu == target.cpus_per_gpu == 0 else wanted)
        mem = _memory(request, own, target, (own.cpus_per_gpu, wanted), part, pool, config)
        if mem is None:
            return Kept("", "", because("partition-other-memory", partition=target.name))
        memory.add("" if mem == f"{target.mem_per_gpu_mib}M" or request.mem_per_gpu else mem)
    if len(cores) > 1 or len(memory) > 1:
        return Kept("", "", because("hosts-differ"))
    [cpus], [mem] = cores, memory
    if cpus is None:
        return Kept("", mem, cpus=0 if request.cpus_given or request.cpus_per_gpu else target.cpus_per_gpu)
    if request.cores_unclear:
        return Kept("", "", _UNCLEAR)
    # --cpus-per-task, not --mincpus: it also keeps the other partition's own default away.
    tasks = request.tasks or 1
    if cpus % tasks or request.min_cpus:
        return Kept("", "", because("cores-not-divisible", tasks=tasks, cores=cpus))
    return Kept(f"cpus-per-task={cpus // tasks}", mem, cpus=cpus)


def _cores(had: int, part: Part, request: JobRequest) -> int:
    """Return the cores that go with a piece, of ``had`` that go with a GPU: its part, or what the job needs."""
    if not had:
        return had
    # From 24.11 on a job with more in --mincpus than in --cpus-per-gpu never begins.
    cores = max(1, math.floor(had * part.of_gpu), part.cpu_cores or 0, request.min_cpus)
    if request.mem_per_cpu:  # fewer cores bring less of what it asks for
        each_mib = asked_mib(request.mem_per_cpu)
        if not each_mib or part.host_mem_mib is None:
            return had
        cores = max(cores, math.ceil(part.host_mem_mib / each_mib))
    tasks = request.tasks or 1
    return min(had, -(-cores // tasks) * tasks)


def _memory(
    request: JobRequest,
    own: Partition,
    moved_to: Partition | None,
    cpus: tuple[int, int],
    part: Part,
    pool: Pool,
    config: SiteConfig,
) -> str | None:
    """Return the host memory to ask for, as --mem takes it; empty: what Slurm gives by itself; None: nobody knows.

    A job of which nobody knows what it needs keeps all that it would have had: with less it might be killed.
    ``cpus`` are the cores that it would have had and those that it gets.
    """
    if request.mem_given or request.mem_per_gpu:
        return ""
    scaled = part.host_mem_mib is not None

    def of(had_mib: int) -> str:
        needed = max(math.floor(had_mib * part.of_gpu), part.host_mem_mib or 0) if scaled else had_mib
        return f"{min(had_mib, needed)}M"

    if own.mem_per_gpu_mib:
        return of(own.mem_per_gpu_mib)
    if moved_to and (moved_to.mem_per_gpu_mib or moved_to.default_mem != own.default_mem):
        return None
    kind, _, amount = (own.default_mem or config.default_mem).partition("=")
    if kind == "DefMemPerCPU":
        # 0 is no default, and --mem=0 would be all of the node's.
        return of(int(amount) * cpus[0]) if cpus[1] < cpus[0] and int(amount) else ""
    each = int(amount) if kind == "DefMemPerNode" else pool.mem_per_node_mib
    return of(each) if scaled and each else ""


def mem_mib_of(
    request: JobRequest, partitions: Iterable[Partition], mem: str, cpus: int, config: SiteConfig
) -> int | None:
    """Return how much host memory of a node a job has, said or by Slurm's defaults; None where that is not known."""
    if mem or request.mem_per_gpu:
        return asked_mib(mem or request.mem_per_gpu)
    if request.mem_per_cpu:
        return (asked_mib(request.mem_per_cpu) or 0) * cpus or None
    if request.mem_given:
        return request.mem_asked_mib
    found = set()
    for partition in partitions:
        kind, _, amount = (partition.default_mem or config.default_mem).partition("=")
        found.add(partition.mem_per_gpu_mib or int(amount or 0) * (cpus if kind == "DefMemPerCPU" else 1))
    return found.pop() or None if len(found) == 1 else None

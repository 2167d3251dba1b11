# SPDX-License-Identifier: Apache-2.0
"""What follows from giving a job a piece of a GPU: its time limit, and the cores and memory that came with the GPU."""

import math
from collections.abc import Iterable
from typing import NamedTuple

from slurm_colloc.config import Partition, Pool, SiteConfig
from slurm_colloc.model import Footprint, JobRequest

_UNCLEAR = "how many cores it would have had depends on too many of its options"


class Time(NamedTuple):
    """The time limit to ask for (None: as it is), or why there is not enough time."""

    limit_min: int | None
    too_little: str = ""


class Kept(NamedTuple):
    """What must be said because it no longer follows from a GPU: an option for cores, host memory; or why it cannot."""

    cpu_option: str
    mem: str
    impossible: str = ""


def other_card(footprint: Footprint, pool: Pool) -> str:
    """Return why what was measured is not known to hold for the GPUs of a pool; empty when it does."""
    if not footprint.gpu_model or footprint.gpu_model == pool.gpu_model:
        return ""
    if not pool.gpu_model:
        return (
            f"site.toml does not give its gpu_model, and the footprint was measured on {footprint.gpu_model}: write "
            f"gpu_model into pool '{pool.name}'"
        )
    return f"the footprint was measured on {footprint.gpu_model}"


def asked_partitions(request: JobRequest, config: SiteConfig) -> list[Partition]:
    """Return the partitions that the job names, or the default one, as site.toml describes them."""
    known = {partition.name: partition for partition in config.partition}
    return [known.get(name, Partition(name)) for name in request.partitions or (config.default_partition,)]


def suspending(partitions: Iterable[Partition]) -> str:
    """Return why GPU memory must not be shared in all of these partitions; empty when it may."""
    name = next((item.name for item in partitions if item.suspends), None)
    return "" if name is None else f"partition '{name}' suspends jobs, which then keep their GPU memory"


def of_many_users(partitions: Iterable[Partition], config: SiteConfig) -> str:
    """Return why a GPU of these partitions may come to serve two users; empty when it may not."""
    name = "" if config.sharing.mps_single_user else next((item.name for item in partitions if not item.one_user), "")
    return f"partition '{name}' gives a node to several users (no ExclusiveUser), MPS serves one" if name else ""


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
            return Time(None, f"partition '{moved_to.name}' would limit its time, which its own does not")
        return Time(None)
    # What was left to the partition's default must not become another partition's.
    unchanged = Time(math.ceil(limit_min) if moved_to is not None and request.time_limit_min is None else None)
    # A job whose run time nobody knows may need all of its time limit; one that nothing slows needs what it was given.
    needed_min = (limit_min if run_time_min is None else run_time_min) * slowdown
    if request.time_limit_min is None and len({_default_min(item) for item in asked_partitions(request, config)}) > 1:
        return Time(None, "its partitions give it different time limits" if slowdown > 1 or moved_to else "")
    if slowdown <= 1 or needed_min <= limit_min:
        return unchanged
    most_min = limit_min * config.sharing.max_time_stretch
    for partition in [moved_to] if moved_to is not None else asked_partitions(request, config):
        if partition.max_time_min is not None:
            most_min = min(most_min, partition.max_time_min)
    if needed_min > most_min:
        how = "if it uses its time limit" if run_time_min is None else "as it ran before"
        return Time(
            None,
            f"slowed {slowdown:.2f}x it would take {needed_min:.0f} min {how}; "
            f"the limit is {limit_min:g} min and may become {most_min:g}",
        )
    return Time(math.ceil(needed_min))


def kept_with_share(request: JobRequest, moved_to: Partition | None, config: SiteConfig) -> Kept:
    """Return the cores and host memory that follow from the GPU and would be lost with it."""
    described = {partition.name for partition in config.partition}
    found: set[tuple[int, str]] = set()
    for partition in asked_partitions(request, config):
        if partition.name not in described:
            return Kept("", "", f"site.toml does not say what partition '{partition.name}' gives with a GPU")
        cpus = request.cpus_per_gpu or (0 if request.cpus_given else partition.cpus_per_gpu)
        mem = request.mem_per_gpu
        if not mem and not request.mem_given and partition.mem_per_gpu_mib:
            mem = f"{partition.mem_per_gpu_mib}M"
        if not mem and not request.mem_given and moved_to and moved_to.default_mem != partition.default_mem:
            return Kept("", "", f"partition '{moved_to.name}' would give it another amount of host memory")
        found.add((cpus, mem))
    if len(found) > 1:
        return Kept("", "", "its partitions give different cores or memory with a GPU")
    [(cpus, mem)] = found
    if cpus and request.cores_unclear:
        return Kept("", "", _UNCLEAR)
    # Measured: a job has the cores of its tasks or those per GPU, whichever are more, and --mincpus is not heard where
    # the number of tasks is given.
    if request.tasks is None:
        return Kept(f"mincpus={max(cpus, request.min_cpus)}" if cpus else "", mem)
    if cpus <= request.tasks:
        return Kept("", mem)
    if request.min_cpus or cpus % request.tasks:
        return Kept("", "", f"its {request.tasks} tasks cannot be given the {cpus} cores that come with the GPU")
    return Kept(f"cpus-per-task={cpus // request.tasks}", mem)


def kept_when_moved(request: JobRequest, target: Partition, config: SiteConfig) -> Kept:
    """Return the cores and host memory that a job would have had in its own partition and would not in another."""
    cores, memory = set(), set()
    for own in asked_partitions(request, config):
        wanted = own.cpus_per_gpu or request.tasks or 1
        cores.add(
            None if request.cpus_given or request.cpus_per_gpu or own.cpus_per_gpu == target.cpus_per_gpu else wanted
        )
        if request.mem_given or request.mem_per_gpu or own.mem_per_gpu_mib == target.mem_per_gpu_mib != 0:
            memory.add("")
        elif own.mem_per_gpu_mib:
            memory.add(f"{own.mem_per_gpu_mib}M")
        elif target.mem_per_gpu_mib or own.default_mem != target.default_mem:
            return Kept("", "", f"partition '{target.name}' would give it another amount of host memory")
        else:
            memory.add("")
    if len(cores) > 1 or len(memory) > 1:
        return Kept("", "", "its partitions give different cores or memory")
    [cpus], [mem] = cores, memory
    if cpus is None:
        return Kept("", mem)
    if request.cores_unclear:
        return Kept("", "", _UNCLEAR)
    # --cpus-per-task, not --mincpus: it also keeps the other partition's own default away.
    tasks = request.tasks or 1
    if cpus % tasks or request.min_cpus:
        return Kept("", "", f"its {tasks} tasks cannot be given the {cpus} cores that they would have had")
    return Kept(f"cpus-per-task={cpus // tasks}", mem)

# SPDX-License-Identifier: Apache-2.0
"""Time limit, CPU cores and host memory of a job that gets a piece of a GPU."""

import math
from typing import NamedTuple

from slurm_colloc.core.config import Partition
from slurm_colloc.core.model import Reason, because
from slurm_colloc.core.units import asked_mib
from slurm_colloc.placement.candidate import Candidate, Target, default_limit_min


class Time(NamedTuple):
    """The time limit to ask for (None: as it is), or why there is not enough time."""

    limit_min: int | None
    too_little: Reason | None = None


class Host(NamedTuple):
    """Cores and host memory to ask for with a piece of a GPU: options, or why they cannot be said.

    ``cpus`` is the number of cores that these come to, 0 for one that is not known.
    """

    cpu_option: str = ""
    mem: str = ""
    impossible: Reason | None = None
    cpus: int = 0


_UNCLEAR = Host(impossible=because("cores-unclear"))
_DIFFER = Host(impossible=because("hosts-differ"))


def time_needed(job: Candidate, slowdown: float, target: Target) -> Time:
    """Return the time limit for a piece on which the job is ``slowdown`` times as slow as on a whole GPU."""
    limit_min, run_time_s, by_default = job.limit_min, job.footprint.run_time_s, job.request.time_limit_min is None
    if limit_min is None:
        if target.moved and target.partition.default_time_min is not None and by_default:
            return Time(None, because("partition-limits-time", partition=target.named))
        return Time(None)
    # A job whose run time nobody knows may need all of its time limit; one that nothing slows needs what it was given.
    needed_min = (limit_min if run_time_s is None else run_time_s.q99 / 60) * slowdown
    if by_default and len({default_limit_min(partition) for partition in job.partitions}) > 1:
        return Time(None, because("time-limits-differ") if slowdown > 1 or target.moved else None)
    if slowdown <= 1 or needed_min <= limit_min:
        # The default of the job's own partition must not become that of another.
        return Time(math.ceil(limit_min) if target.moved and by_default else None)
    longest_min = [partition.max_time_min for partition in target.partitions if partition.max_time_min is not None]
    most_min = min([limit_min * job.config.sharing.max_slowdown, *longest_min])
    if needed_min > most_min:
        times = {"needed_min": needed_min, "limit_min": limit_min, "most_min": most_min}
        code = "time-limit-too-short" if run_time_s is None else "runs-too-long"
        return Time(None, Reason(code, {"slowdown": slowdown, **times}))
    return Time(math.ceil(needed_min))


def host_with_share(job: Candidate, target: Target, of_gpu: float) -> Host:
    """Return the cores and host memory that follow from the GPU and would be lost with it, or the share's part."""
    request = job.request
    hosts: set[tuple[int, str]] = set()
    for partition in job.partitions:
        if partition not in job.config.partition:
            return Host(impossible=because("partition-not-described", partition=partition.name))
        before = 0 if request.cpus_given else partition.cpus_per_gpu
        cpus = request.cpus_per_gpu or _cores(job, before, of_gpu)
        mem = _memory(job, target, partition, (before, cpus), of_gpu)
        if mem is None:
            return Host(impossible=because("partition-other-memory", partition=target.named))
        hosts.add((cpus, request.mem_per_gpu or mem))
    if len(hosts) > 1:
        return _DIFFER
    [(cpus, mem)] = hosts
    if cpus and request.cores_unclear:
        return _UNCLEAR
    # Measured: a job has the cores of its tasks or those per GPU, whichever are more, and --mincpus is not heard where
    # the number of tasks is given.
    if request.tasks is None:
        return Host(f"mincpus={max(cpus, request.min_cpus)}" if cpus else "", mem, cpus=max(cpus, request.min_cpus))
    if cpus <= request.tasks:
        return Host("", mem, cpus=request.tasks)
    return _per_task(job, cpus, mem)


def host_with_slice(job: Candidate, target: Target, of_gpu: float) -> Host:
    """Return the slice's part of the cores and host memory that Slurm would give with it as with a whole GPU."""
    request = job.request
    hosts: set[tuple[int, int, str]] = set()
    for partition in job.partitions:
        before = 0 if request.cpus_given or request.cpus_per_gpu else partition.cpus_per_gpu
        cpus = _cores(job, before, of_gpu)
        mem = _memory(job, target, partition, (before, cpus), of_gpu) or ""
        hosts.add((before, cpus, "" if mem == f"{partition.mem_per_gpu_mib}M" else mem))
    if len(hosts) > 1 or request.cores_unclear:
        return Host()
    [(before, cpus, mem)] = hosts
    return Host(f"cpus-per-gpu={cpus}" if cpus != before else "", mem, cpus=max(cpus, request.tasks or 0))


def host_when_moved(job: Candidate, target: Target, of_gpu: float) -> Host:
    """Return the cores and host memory of a slice in another partition, as far as it gives others."""
    request, destination = job.request, target.partition
    cores, memory = set(), set()
    for partition in job.partitions:
        cpus = _cores(job, partition.cpus_per_gpu, of_gpu) or request.tasks or 1
        as_said = request.cpus_given or request.cpus_per_gpu or cpus == destination.cpus_per_gpu
        cores.add(None if as_said or partition.cpus_per_gpu == destination.cpus_per_gpu == 0 else cpus)
        mem = _memory(job, target, partition, (partition.cpus_per_gpu, cpus), of_gpu)
        if mem is None:
            return Host(impossible=because("partition-other-memory", partition=destination.name))
        memory.add("" if mem == f"{destination.mem_per_gpu_mib}M" or request.mem_per_gpu else mem)
    if len(cores) > 1 or len(memory) > 1:
        return _DIFFER
    [changed], [mem] = cores, memory
    if changed is None:
        return Host("", mem, cpus=0 if request.cpus_given or request.cpus_per_gpu else destination.cpus_per_gpu)
    # --cpus-per-task, not --mincpus: it also keeps the other partition's own default away.
    return _UNCLEAR if request.cores_unclear else _per_task(job, changed, mem)


def _per_task(job: Candidate, cpus: int, mem: str) -> Host:
    """Return so many cores in all, asked for by --cpus-per-task."""
    tasks = job.request.tasks or 1
    if cpus % tasks or job.request.min_cpus:
        return Host(impossible=because("cores-not-divisible", tasks=tasks, cores=cpus))
    return Host(f"cpus-per-task={cpus // tasks}", mem, cpus=cpus)


def _cores(job: Candidate, before: int, of_gpu: float) -> int:
    """Return the cores that go with a piece, of ``before`` that go with a GPU: its part, or the job's need."""
    if not before:
        return before
    request, footprint = job.request, job.footprint
    # A job with more in --mincpus than in --cpus-per-gpu never begins, from 24.11 on.
    cores = max(1, math.floor(before * of_gpu), footprint.cpu_cores or 0, request.min_cpus)
    if request.mem_per_cpu:  # fewer cores bring less of what it asks for
        each_mib = asked_mib(request.mem_per_cpu)
        if not each_mib or footprint.host_mem_mib is None:
            return before
        cores = max(cores, math.ceil(footprint.host_mem_mib / each_mib))
    tasks = request.tasks or 1
    return min(before, -(-cores // tasks) * tasks)


def _memory(job: Candidate, target: Target, partition: Partition, cpus: tuple[int, int], of_gpu: float) -> str | None:
    """Return the host memory to ask for, as --mem takes it; empty: Slurm's own default; None: nobody knows.

    A job of unknown need keeps all that it would have had: with less it might be killed. ``cpus`` are the cores that it
    would have had and those that it gets.
    """
    request, need_mib = job.request, job.footprint.host_mem_mib
    if request.mem_given or request.mem_per_gpu:
        return ""

    def part_of(mib: int) -> str:
        needed = mib if need_mib is None else max(math.floor(mib * of_gpu), need_mib)
        return f"{min(mib, needed)}M"

    if partition.mem_per_gpu_mib:
        return part_of(partition.mem_per_gpu_mib)
    destination = target.partition
    if target.moved and (destination.mem_per_gpu_mib or destination.default_mem != partition.default_mem):
        return None
    kind, _, amount = (partition.default_mem or job.config.default_mem).partition("=")
    if kind == "DefMemPerCPU":
        # 0 is no default, and --mem=0 would be all of the node's.
        return part_of(int(amount) * cpus[0]) if cpus[1] < cpus[0] and int(amount) else ""
    node_mib = int(amount) if kind == "DefMemPerNode" else target.pool.mem_per_node_mib
    return part_of(node_mib) if need_mib is not None and node_mib else ""


def mem_mib_of(job: Candidate, target: Target, mem: str, cpus: int) -> int | None:
    """Return how much host memory of a node a job has, said or by Slurm's defaults; None is not known."""
    request = job.request
    if mem or request.mem_per_gpu:
        return asked_mib(mem or request.mem_per_gpu)
    if request.mem_per_cpu:
        return (asked_mib(request.mem_per_cpu) or 0) * cpus or None
    if request.mem_given:
        return request.mem_asked_mib
    sizes = set()
    for partition in target.partitions:
        kind, _, amount = (partition.default_mem or job.config.default_mem).partition("=")
        sizes.add(partition.mem_per_gpu_mib or int(amount or 0) * (cpus if kind == "DefMemPerCPU" else 1))
    return sizes.pop() or None if len(sizes) == 1 else None

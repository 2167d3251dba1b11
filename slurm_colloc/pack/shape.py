# SPDX-License-Identifier: Apache-2.0
"""The size of a pack: tasks at a time, jobs, cores, memory and time.

All that one task was given as a job of its own it is given in the pack, as far as that can be told; there
is no pack where it cannot.
"""

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from slurm_colloc.core.config import MigSlice, Pool, SiteConfig
from slurm_colloc.core.errors import UnsureError
from slurm_colloc.core.model import PACK, Footprint, JobRequest, Load, Reason, Room, because
from slurm_colloc.pack.time_limits import time_of, within_limits
from slurm_colloc.placement.candidate import asked_partitions
from slurm_colloc.placement.out_of_memory import MOST_RETRIES
from slurm_colloc.placement.packing import Packing, of_equal, tasks_at_a_time
from slurm_colloc.slurm.directives import Script, without_options
from slurm_colloc.slurm.options import CommandLine, Given, count_of, value_of
from slurm_colloc.submit.own_options import option_table
from slurm_colloc.submit.plan import NotPackedError, Slurm
from slurm_colloc.submit.reasons import reasons_against_pack

_SIZED_PER_PIECE = frozenset({"mem-per-cpu", "mem-per-gpu"})
_MEM = re.compile(r"(\d+)([KMGTkmgt]?)[Bb]?", re.ASCII)


class PackOptions(NamedTuple):
    """The user's words on the pack; None where nothing was said."""

    at_once: int | None
    jobs: int | None
    retries: int | None
    together: bool


class Tasks(NamedTuple):
    """The tasks to be run: those of an array by the script ``text``, or ``commands``, lines of sh.

    With commands ``text`` stands for all of them: its directives count, it tells their pack from others, and it goes
    into no job. ``name`` is what the job is called unless told otherwise, ``argv`` how csub was called. ``only`` are
    the numbers of the tasks to run, those that are missing of the job ``resumes`` (whose --array was ``array``);
    empty: all of them.
    """

    text: bytes
    commands: tuple[str, ...]
    name: str
    argv: tuple[str, ...] = ()
    script_args: tuple[str, ...] = ()
    array: str = ""
    only: tuple[int, ...] = ()
    resumes: str = ""

    @property
    def is_array(self) -> bool:
        """Return whether these are the tasks of an array that sbatch can be handed as it is."""
        return not self.commands and not self.only


class PackRequest(NamedTuple):
    """One submission as sbatch would understand it, and the footprint of one task."""

    command_line: CommandLine
    environ: Mapping[str, str]
    in_force: Mapping[str, Given]
    script: Script
    request: JobRequest
    footprint: Footprint
    switched_off: Reason | None
    tasks: Tasks
    options: PackOptions


class Cores(NamedTuple):
    """Cores of one task, and those to ask for (None: they come with the GPU)."""

    per_task: int
    to_ask: int | None


class Shape(NamedTuple):
    """The pack as decided."""

    tasks: int
    jobs: int
    room: Room
    load: Load
    cores: Cores
    mem: str
    time_min: int | None
    limit_min: float | None
    reasons: tuple[Reason, ...]


def array_of(options: Mapping[str, Given]) -> tuple[str, int]:
    """Return the tasks that --array names, and how many of them may run at a time; 0: any number.

    Raises:
        UnsureError: that is no number.
    """
    numbers, percent, most = value_of(options, "array").partition("%")
    if percent and not (most.isascii() and most.isdigit() and len(most) < 10):
        raise UnsureError(f"--array='{value_of(options, 'array')}' is not understood")
    return numbers, int(most or 0)


def shape_of(pack: PackRequest, tasks: int, most: int, config: SiteConfig, slurm: Slurm) -> Shape:
    """Return how the tasks are packed; ``most`` of them may run at a time, 0: any number.

    Raises:
        NotPackedError: they are not.
    """
    request, options = pack.request, pack.in_force
    _refuse(pack, config)
    packing = _least(request, pack.footprint, pack.options.at_once, config)
    jobs = min(pack.options.jobs or 1, tasks, most or tasks)
    at_once = min(packing.at_once, -(-tasks // jobs), most // jobs if most else packing.at_once)
    if at_once < 2 and tasks > 1 and pack.tasks.is_array:
        raise NotPackedError(because("one-at-a-time" if most == 1 else "no-two-fit"))
    packing = _of_fewer(packing, at_once)
    time = time_of(request, tasks, jobs, at_once, most, packing.slowdown.upper, config)
    jobs, at_once = time.jobs, time.at_once
    if jobs > 1 and re.search(rb"\bsrun\b", pack.tasks.text):
        raise NotPackedError(because("srun-gets-array"))
    cores = _cores(options, request, at_once, config)
    try:
        mem = _mem(options, request, cores, at_once, config)
        if mem:  # it has to stand alone
            table = option_table(config.slurm_release, config)
            without_options(pack.tasks.text, table, config.slurm_release, sized_otherwise(options))
    except UnsureError as error:
        raise NotPackedError(because("not-understood", error=str(error))) from error
    spare_min = time.spare_min if retries_of(pack) else 0
    kind = _kind(request)
    tres = {"gres/gpu": 1, "cpu": cores.to_ask or 1} | ({f"gres/gpu:{kind}": 1} if kind else {})
    time_min, cut = within_limits(request, tres, time.time_min, spare_min, config, slurm)
    reasons = [_pack_of(at_once, tasks, jobs, request, config), *packing.reasons]
    reasons += filter(None, [_shared_mem(request, at_once, config)])
    if time_min is not None:
        reasons.append(because("time-limit", limit_min=time_min))
        reasons += [because("no-time-for-retries"), cut] if cut else []
    room = packing.room._replace(tasks=at_once)
    return Shape(tasks, jobs, room, packing.load, cores, mem, time_min, time.limit_min, tuple(reasons))


def _refuse(pack: PackRequest, config: SiteConfig) -> None:
    """Refuse tasks that may not be packed, whatever they need."""
    against = [pack.switched_off]
    against += reasons_against_pack(pack.in_force, pack.request, pack.tasks.text, config, bool(pack.tasks.commands))
    if config.policy == "shadow" and not pack.tasks.is_array:
        against.append(because("policy-shadow"))
    if reason := next(filter(None, against), None):
        raise NotPackedError(reason)


def _of_fewer(packing: Packing, at_once: int) -> Packing:
    """Return the packing with so many tasks at a time, where more would fit."""
    if at_once == packing.at_once:
        return packing
    slowdown = of_equal(at_once, packing.load.sm_active_pct)
    reasons = (
        because("more-would-fit", tasks=packing.at_once),
        because("task-slowdown", expected=slowdown.expected, upper=slowdown.upper),
    )
    return packing._replace(slowdown=slowdown, reasons=reasons)


def retries_of(pack: PackRequest) -> int:
    """Return how often a task is run again: as wished, else not where it is none without the others, or no requeue."""
    if pack.options.retries is not None:
        return pack.options.retries
    return 0 if pack.options.together or "no-requeue" in pack.in_force else MOST_RETRIES


def one_at_a_time(pack: PackRequest, tasks: int, most: int, config: SiteConfig) -> Shape:
    """Return the pack that runs one task at a time on the whole GPU, which shares nothing.

    Raises:
        NotPackedError: there is not so much time.
    """
    jobs = min(pack.options.jobs or 1, tasks, most or tasks)
    time = time_of(pack.request, tasks, jobs, 1, most, 1.0, config)
    cores = _cores(pack.in_force, pack.request, 1, config)
    reasons = (_pack_of(1, tasks, time.jobs, pack.request, config),)
    return Shape(tasks, time.jobs, Room(0, 100.0, 1), Load(0, 0.0), cores, "", time.time_min, time.limit_min, reasons)


def _pack_of(at_once: int, tasks: int, jobs: int, request: JobRequest, config: SiteConfig) -> Reason:
    """Return what the pack is, and on what its tasks run."""
    units = {"GPU" if part is None else "slice" for _, part in _devices(request, config)}
    return because(PACK, at_once=at_once, tasks=tasks, jobs=jobs, units=" or ".join(sorted(units)) or "GPU")


def _least(request: JobRequest, footprint: Footprint, at_once: int | None, config: SiteConfig) -> Packing:
    """Return the packing that fits whichever of its GPUs Slurm gives the job: the least one."""
    packings: list[Packing] = []
    for pool, part in _devices(request, config):
        packing = tasks_at_a_time(footprint, pool, config.sharing, at_once, part=part)
        if isinstance(packing, Reason):
            named = [because("type-keeps-off-slices")] if part is not None and not _kind(request) else []
            device = part.type if part is not None else pool.name
            raise NotPackedError(packing, because("on-device", device=device), *named)
        packings.append(packing)
    if not packings:
        raise NotPackedError(_nothing_there(request, config))
    least = min(packings, key=lambda packing: packing.at_once)
    rooms, loads = [packing.room for packing in packings], [packing.load for packing in packings]
    room = Room(min(room.memory_mib for room in rooms), min(room.sm_active_pct for room in rooms), least.at_once)
    load = Load(
        # A part of the largest GPU is more than that of the least; the need of each, if it is known, fits as often.
        min(max(load.memory_mib for load in loads), room.memory_mib // least.at_once),
        max(load.sm_active_pct for load in loads),
        max((load.dram_active_pct for load in loads if load.dram_active_pct is not None), default=None),
    )
    room = room._replace(sm_active_pct=max(room.sm_active_pct, least.at_once * load.sm_active_pct))
    return least._replace(room=room, load=load, slowdown=max(packing.slowdown for packing in packings))


def _nothing_there(request: JobRequest, config: SiteConfig) -> Reason:
    """Return that there is no GPU of the kind asked for where the job may run, and what there is."""
    names = [item.name for item in asked_partitions(request, config)]
    pools = [pool for pool in config.pool if set(names) & set(pool.partitions)]
    kinds = {f"gpu:{pool.gpu_type}" for pool in pools if pool.gpus_per_node}
    kinds |= {f"gpu:{part.type}" for pool in pools for part in pool.slice if part.quantity}
    return because(
        "no-such-gpu", asked=request.asked, partitions=tuple(names), there=", ".join(sorted(kinds)) or "no GPU"
    )


def _kind(request: JobRequest) -> str:
    return next((gres.type for gres in request.gres if gres.name == "gpu"), "")


def _devices(request: JobRequest, config: SiteConfig) -> Iterator[tuple[Pool, MigSlice | None]]:
    """Yield what Slurm may give the job: whole GPUs of a pool (None) and kinds of slices."""
    kind, partitions = _kind(request), {item.name for item in asked_partitions(request, config)}
    for pool in config.pool:
        if not partitions & set(pool.partitions):
            continue
        if pool.gpus_per_node and kind in ("", pool.gpu_type):
            yield pool, None
        yield from ((pool, part) for part in pool.slice if part.quantity and kind in ("", part.type))


def _cores(options: Mapping[str, Given], request: JobRequest, at_once: int, config: SiteConfig) -> Cores:
    """Return the cores of the tasks: at once they get as many times a task's own, no more than the GPU's part."""
    parts = [item.cpus_per_gpu for item in asked_partitions(request, config) if item.cpus_per_gpu]
    per_gpu = request.cpus_per_gpu or (0 if request.cpus_given else min(parts, default=0))
    if per_gpu:
        return Cores(max(1, per_gpu // at_once), None)
    of_task = max(1, count_of(options, "cpus-per-task"))
    cores = at_once * of_task
    if parts:
        cores = max(of_task, min(cores, *parts))
    return Cores(max(1, cores // at_once), cores)


def _mem(options: Mapping[str, Given], request: JobRequest, cores: Cores, at_once: int, config: SiteConfig) -> str:
    """Return the host memory to ask for, as many times one task's; empty where it follows from the cores.

    Raises:
        UnsureError: it cannot be said how much one task has.
    """
    names = [name for name in ("mem", *sorted(_SIZED_PER_PIECE)) if name in options]
    if not names:
        return ""
    [name] = names  # more than one is a reason against any pack
    match = _MEM.fullmatch(value_of(options, name))
    if match is None:
        raise UnsureError(f"'{options[name].written}' is not understood")
    if name == "mem":
        return f"{int(match[1]) * at_once}{match[2]}"
    if at_once == 1:
        return ""
    pieces = _cores_alone(options, request, config) if name == "mem-per-cpu" else 1
    if name == "mem-per-cpu" and cores.to_ask is not None and cores.to_ask >= pieces * at_once:
        return ""
    if not int(match[1]):
        raise UnsureError(f"'{options[name].written}' does not say how much host memory one task needs")
    if options[name].origin == "environment":
        raise UnsureError(f"{options[name].written} sizes its host memory, which the pack has to say otherwise")
    return f"{int(match[1]) * pieces * at_once}{match[2]}"


def _shared_mem(request: JobRequest, at_once: int, config: SiteConfig) -> Reason | None:
    """Return how much host memory the tasks share that nobody asked for; None where each has its own.

    Memory that comes with one GPU is not asked for once for each task, nor are its cores: as a rule it is the GPU's
    part of its node, so a multiple of it would keep the node's other GPUs idle, or never be there.
    """
    mem_mib = min((item.mem_per_gpu_mib for item in asked_partitions(request, config)), default=0)
    if at_once == 1 or request.mem_given or request.mem_per_gpu or not mem_mib:
        return None
    return because("shared-host-memory", mem_mib=mem_mib, each_mib=mem_mib // at_once)


def _cores_alone(options: Mapping[str, Given], request: JobRequest, config: SiteConfig) -> int:
    """Return the cores that one task would have as a job of its own.

    Raises:
        UnsureError: that depends on where it would run.
    """
    if request.cores_unclear or request.min_cpus:
        raise UnsureError(
            f"'{options['mem-per-cpu'].written}': how many cores one task has depends on too many options"
        )
    if request.cpus_per_gpu or request.cpus_given:
        return request.cpus_per_gpu or count_of(options, "cpus-per-task")
    cores = {max(1, item.cpus_per_gpu) for item in asked_partitions(request, config)}
    if len(cores) > 1:
        raise UnsureError(f"'{options['mem-per-cpu'].written}': its partitions give different cores with a GPU")
    return cores.pop()


def sized_otherwise(options: Mapping[str, Given]) -> set[str]:
    """Return the options in whose place --mem stands; Slurm refuses them beside it."""
    return set(_SIZED_PER_PIECE & options.keys())

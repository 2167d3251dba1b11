# SPDX-License-Identifier: Apache-2.0
"""From a submission of many tasks to one job that runs them several at a time: its arguments and its script.

Loaded only where a pack is asked for. An array that cannot be packed is submitted as the array it is, with the reason;
commands have no other form, so those that cannot share run one at a time.
"""

import math
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from slurm_colloc.config import MigSlice, Pool, SiteConfig
from slurm_colloc.errors import CollocError, InputError, UnsureError
from slurm_colloc.estimate.signature import digest
from slurm_colloc.model import PACK_OF, Footprint, JobRequest, Load, Placement, Room, SharingMode
from slurm_colloc.placement.choose import as_asked
from slurm_colloc.placement.packing import Packing, expected_slowdown, jobs_needed, pack, time_needed_min
from slurm_colloc.placement.terms import asked_limit_min, asked_partitions
from slurm_colloc.runtime.spec import MARK, VERSION, Spec, parse_array, to_json
from slurm_colloc.slurm.directives import Script, effective_components, read_script, without_options
from slurm_colloc.slurm.limits import MINUTES, Limits, broken_limit
from slurm_colloc.slurm.options import SBATCH_OPTIONS, CommandLine, Given, Option, read_environment
from slurm_colloc.submit.access import limits_of_user
from slurm_colloc.submit.commands import plain_name
from slurm_colloc.submit.plan import (
    SCRIPT_OPTIONS,
    Packed,
    Part,
    Plan,
    Slurm,
    footprint_of,
    option_table,
    own_option,
    without,
)
from slurm_colloc.submit.render import pack_block, quote
from slurm_colloc.submit.request import build_request, reasons_against_pack
from slurm_colloc.units import counted

# What sbatch calls the output of an array's task.
_OUTPUT = "slurm-%A_%a.out"
_OWN_OUTPUT = "slurm-%j.pack.out"
_RETRIES = 2
_SIZED_PER_PIECE = frozenset({"mem-per-cpu", "mem-per-gpu"})
_MEM = re.compile(r"(\d+)([KMGTkmgt]?)[Bb]?", re.ASCII)


class Wish(NamedTuple):
    """What the user says of the pack; None where nothing was said."""

    at_once: int | None
    jobs: int | None
    retries: int | None


class Asked(NamedTuple):
    """One submission as sbatch would understand it, and the footprint of one task.

    ``commands`` are lines of sh in place of an array; then ``text`` is no script of the user's and goes into no job.
    ``only`` are the numbers of the tasks to run, those that are missing of the job ``resumes``; empty: all of them.
    """

    command_line: CommandLine
    environ: Mapping[str, str]
    given: Mapping[str, Given]
    script: Script
    text: bytes
    request: JobRequest
    footprint: Footprint
    switched_off: str
    commands: tuple[str, ...]
    argv: tuple[str, ...]
    only: tuple[int, ...] = ()
    resumes: str = ""

    @property
    def is_array(self) -> bool:
        """Return whether these are the tasks of an array that sbatch can be handed as it is."""
        return not self.commands and not self.only


class _Cores(NamedTuple):
    """Cores of one task, and those to ask for (None: they come with the GPU)."""

    per_task: int
    asked: int | None


class _Shape(NamedTuple):
    """The pack as decided."""

    tasks: int
    jobs: int
    at_once: int
    packing: Packing
    cores: _Cores
    mem: str
    time_min: int | None
    limit_min: float | None
    reasons: tuple[str, ...]


def read_wish(command_line: CommandLine, script: Script | None) -> Wish:
    """Return what the options and #CSUB lines say of the pack.

    Raises:
        UnsureError: a number that is none.
    """
    found = []
    for name, least in (("pack-tasks", 1), ("pack-jobs", 1), ("pack-retries", 0)):
        text = own_option(name, command_line, script)
        if text is not None and not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) >= least):
            raise UnsureError(f"--{name}='{text}' is not a whole number from {least} up")
        found.append(None if text is None else int(text))
    return Wish(*found)


def plan_array(asked: Asked, config: SiteConfig, slurm: Slurm) -> Plan | str:
    """Return the plan of an array's tasks as a pack, or why they are submitted as the array they are.

    Raises:
        UnsureError: an option outside its grammar.
    """
    wish = read_wish(asked.command_line, asked.script)
    try:
        shape = _shape_of_array(asked, wish, config, slurm)
    except CollocError as error:
        return str(error)
    if isinstance(shape, str):
        return shape
    if config.policy == "shadow":
        return _shadow(asked, shape)
    try:
        return _plan(asked, shape, wish, config)
    except UnsureError as error:
        return str(error)


def plan_commands(
    command_line: CommandLine,
    environ: Mapping[str, str],
    text: bytes,
    commands: Sequence[str],
    name: str,
    argv: Sequence[str],
    config: SiteConfig,
    slurm: Slurm,
) -> Plan:
    """Return the plan of a pack of commands.

    Args:
        command_line: csub's options, without the file or command.
        environ: of the submission; SBATCH_* variables count.
        text: a script that stands for all tasks: its directives count, its commands tell it from other packs.
        commands: a line of sh for each task.
        name: what the job is called unless told otherwise.
        argv: how csub was called.
        config: the site.
        slurm: answers what has to be asked.

    Raises:
        CollocError: it cannot be submitted, or is not understood with certainty.
    """
    asked, notes = _read(command_line, environ, text, name, (), config, slurm)
    for option in ("wrap", "array"):
        if option in asked.given:
            raise InputError(f"'{asked.given[option].written}' beside commands: each of them is a task")
    asked = asked._replace(commands=tuple(commands), argv=tuple(argv))
    return _plan_anyway(asked, len(commands), 0, notes, config, slurm)


def plan_missing(
    command_line: CommandLine,
    environ: Mapping[str, str],
    text: bytes,
    spec: Spec,
    argv: Sequence[str],
    config: SiteConfig,
    slurm: Slurm,
    *,
    resumes: str,
) -> Plan:
    """Return the plan of a pack of those tasks of an earlier one that are still to be done.

    Args:
        command_line: csub's options, without a script.
        environ: of the submission; SBATCH_* variables count.
        text: the user's script, or one that stands for the commands.
        spec: of the earlier pack, with ``only`` those tasks.
        argv: how csub would have been called for it.
        config: the site.
        slurm: answers what has to be asked.
        resumes: the job of the earlier pack.

    Raises:
        CollocError: it cannot be submitted, or is not understood with certainty.
    """
    asked, notes = _read(command_line, environ, text, spec.name, spec.script_args, config, slurm)
    numbers, _, most = ((asked.given["array"].value or "") if "array" in asked.given else "").partition("%")
    if "wrap" in asked.given or numbers != spec.array or "SBATCH_ARRAY_INX" in asked.environ:
        raise InputError(f"the tasks are those of job {resumes}; leave --array, SBATCH_ARRAY_INX and --wrap out")
    asked = asked._replace(commands=spec.commands, argv=tuple(argv), only=spec.only, resumes=resumes)
    return _plan_anyway(asked, len(spec.only), int(most or 0), notes, config, slurm)


def _read(
    command_line: CommandLine,
    environ: Mapping[str, str],
    text: bytes,
    name: str,
    script_args: tuple[str, ...],
    config: SiteConfig,
    slurm: Slurm,
) -> tuple[Asked, tuple[str, ...]]:
    """Return a submission for which there is no plain sbatch, and what is to be said of its history."""
    release = config.slurm_release
    if release not in SBATCH_OPTIONS:
        raise UnsureError(f"sbatch of Slurm '{release}' is not known to this release of csub")
    table = option_table(release, config)
    script = read_script(text, table, release, SCRIPT_OPTIONS)
    components = effective_components(script, read_environment(environ, table, release), command_line)
    [given, *others] = components
    if others:
        raise UnsureError("a pack has no heterogeneous components")
    off = own_option("colloc", command_line, script)
    if off not in (None, "auto", "off"):
        raise UnsureError(f"--colloc='{off}' is neither auto nor off")
    switched_off = "--colloc=off was given" if off == "off" else "the site's policy is off" * (config.policy == "off")
    request = build_request(given, script, text, name, script_args, config)
    if not request.gpu_count:
        raise InputError("a pack needs a GPU; say --gres=gpu:1")
    footprint, notes = footprint_of(
        request, text, own_option("gpu-footprint", command_line, script), config, slurm, anyway=True
    )
    return Asked(command_line, environ, given, script, text, request, footprint, switched_off, (), ()), notes


def _plan_anyway(asked: Asked, tasks: int, most: int, notes: tuple[str, ...], config: SiteConfig, slurm: Slurm) -> Plan:
    """Return the plan of tasks that have no other form: those that cannot share run one at a time."""
    wish = read_wish(asked.command_line, asked.script)
    shape = _shape(asked, tasks, most, wish, config, slurm)
    if isinstance(shape, str):
        _refuse_what_cannot_run(asked.given, asked.request)
        if tasks > 1 and wish.at_once != 1:
            notes = (*notes, f"one task at a time: {shape}; say --gpu-footprint=mem=SIZE,sm=PERCENT or --pack-tasks=K")
        shape = _alone(asked, tasks, most, wish, config)
    if asked.resumes:
        shape = shape._replace(reasons=(*shape.reasons, f"what is missing of job {asked.resumes}"))
    return _plan(asked, shape, wish, config)._replace(notes=notes)


def _refuse_what_cannot_run(given: Mapping[str, Given], request: JobRequest) -> None:
    """Refuse what not even one task at a time can be run in."""
    if request.tasks not in (None, 1) or ("nodes" in given and given["nodes"].value not in ("1", "1-1")):
        raise InputError("a pack runs on one node and starts its tasks itself; leave --nodes and --ntasks out")


def _shape_of_array(asked: Asked, wish: Wish, config: SiteConfig, slurm: Slurm) -> _Shape | str:
    given = asked.given
    if "array" not in given:
        return "it is no array (--array)"
    if "SBATCH_ARRAY_INX" in asked.environ:
        return "SBATCH_ARRAY_INX is set, which would make an array of the pack"
    numbers, percent, most = (given["array"].value or "").partition("%")
    if percent and not (most.isascii() and most.isdigit() and len(most) < 10):
        return f"--array='{given['array'].value}' is not understood"
    tasks = len(parse_array(numbers))
    if tasks < 2:
        return "the array has one task"
    return _shape(asked, tasks, int(most or 0), wish, config, slurm)


def _shape(asked: Asked, tasks: int, most: int, wish: Wish, config: SiteConfig, slurm: Slurm) -> _Shape | str:
    """Return how the tasks are packed, or why they are not; ``most`` of them may run at a time, 0: any number."""
    request, given = asked.request, asked.given
    against = [asked.switched_off, "" if config.sharing.pack else "the site runs no packs (sharing.pack)"]
    against += reasons_against_pack(given, request, asked.text, config, len(asked.commands) > 0)
    if config.policy == "shadow" and not asked.is_array:
        against.append("the site's policy is shadow")
    if why := next(filter(None, against), ""):
        return why
    packing = _least(request, asked.footprint, wish.at_once, config)
    if isinstance(packing, str):
        return packing
    jobs = min(wish.jobs or 1, tasks, most or tasks)
    at_once = min(packing.at_once, -(-tasks // jobs))
    if most:
        at_once = min(at_once, most // jobs)
    if at_once < 2 and tasks > 1 and asked.is_array:
        return f"the array runs one task at a time (%{most})" if most == 1 else "no two of its tasks fit on its GPU"
    reasons = list(packing.reasons)
    if at_once < packing.at_once:
        packing = packing._replace(slowdown=expected_slowdown(at_once, packing.load.sm_active_pct))
        reasons = [f"{packing.at_once} would fit", f"each takes about {packing.slowdown:.2f}x as long as alone"]
    limit_min = asked_limit_min(request, config)
    time_min = None
    if limit_min is not None:
        longest_min = _most_min(request, config)
        found = _jobs_in_time(tasks, jobs, at_once, limit_min, packing.slowdown, longest_min)
        if isinstance(found, str):
            return found
        jobs, time_min = found
        at_once = min(at_once, -(-tasks // jobs))
        if most and jobs * at_once > most:
            at_once = most // jobs
            if at_once < 1:
                return f"{jobs} jobs would run more tasks at a time than %{most}"
            time_min = time_needed_min(-(-tasks // jobs), at_once, limit_min, packing.slowdown)
            if time_min > (longest_min or math.inf):
                return f"with {most} at a time it does not fit the partition's time limit"
        limit_min *= packing.slowdown
        if _retries(wish, given):  # as long again as one task may take, as far as it may
            time_min = math.floor(min(time_min + math.ceil(limit_min), longest_min or math.inf))
    if jobs > 1 and re.search(rb"\bsrun\b", asked.text):
        return "an srun inside its tasks would get the array numbers of the pack's jobs"
    cores = _cores(given, request, at_once, config)
    try:
        mem = _mem(given, request, cores, at_once, config)
        if mem:  # it has to stand alone
            without_options(
                asked.text, option_table(config.slurm_release, config), config.slurm_release, _in_place(given)
            )
    except UnsureError as error:
        return str(error)
    if why := _broken(request, cores, time_min, config, slurm):
        return why
    room = packing.room._replace(tasks=at_once)
    packing = packing._replace(at_once=at_once, room=room)
    where = "one GPU" if jobs == 1 else f"{jobs} GPUs"
    reasons = [f"{PACK_OF}{at_once} at a time: {counted(tasks, 'task')} on {where}", *reasons]
    if time_min is not None:
        reasons.append(f"time limit {time_min} min")
    return _Shape(tasks, jobs, at_once, packing, cores, mem, time_min, limit_min, tuple(reasons))


def _retries(wish: Wish, given: Mapping[str, Given]) -> int:
    return wish.retries if wish.retries is not None else (0 if "no-requeue" in given else _RETRIES)


def _alone(asked: Asked, tasks: int, most: int, wish: Wish, config: SiteConfig) -> _Shape:
    """Return the pack that runs one task at a time on the whole GPU, which shares nothing."""
    limit_min = asked_limit_min(asked.request, config)
    jobs, time_min = min(wish.jobs or 1, tasks), None
    if limit_min is not None:
        found = _jobs_in_time(tasks, jobs, 1, limit_min, 1.0, _most_min(asked.request, config))
        if isinstance(found, str):
            raise InputError(found)
        jobs, time_min = found
    if most and jobs > most:
        raise InputError(f"{jobs} jobs would run more tasks at a time than %{most}")
    reasons = (f"{PACK_OF}1 at a time: {counted(tasks, 'task')} on {'one GPU' if jobs == 1 else f'{jobs} GPUs'}",)
    packing = Packing(1, Room(0, 100.0, 1), Load(0, 0.0), 1.0, ())
    cores = _cores(asked.given, asked.request, 1, config)
    return _Shape(tasks, jobs, 1, packing, cores, "", time_min, limit_min, reasons)


def _jobs_in_time(
    tasks: int, jobs: int, at_once: int, limit_min: float, slowdown: float, most_min: float | None
) -> tuple[int, int] | str:
    """Return over how many jobs, at least ``jobs``, the tasks go so that each ends in time, and its time limit."""
    needed = jobs_needed(tasks, at_once, limit_min, slowdown, most_min)
    if isinstance(needed, str):
        return needed
    jobs = max(jobs, needed)
    return jobs, time_needed_min(-(-tasks // jobs), at_once, limit_min, slowdown)


def _most_min(request: JobRequest, config: SiteConfig) -> float | None:
    limits = [item.max_time_min for item in asked_partitions(request, config) if item.max_time_min is not None]
    return min(limits, default=None)


def _least(request: JobRequest, footprint: Footprint, wanted: int | None, config: SiteConfig) -> Packing | str:
    """Return the packing that fits whichever of its GPUs Slurm gives the job: the least one."""
    found: list[Packing] = []
    for pool, part in _devices(request, config):
        packing = pack(footprint, pool, config.sharing, wanted, part=part)
        if isinstance(packing, str):
            named = (
                "; a GPU's type in the request keeps it off slices" if part is not None and not _kind(request) else ""
            )
            return f"{packing} (on {part.type if part is not None else pool.name}){named}"
        found.append(packing)
    if not found:
        return "site.toml describes no GPU that it would get"
    least = min(found, key=lambda one: one.at_once)
    room = Room(
        min(one.room.memory_mib for one in found),
        min(one.room.sm_active_pct for one in found),
        least.at_once,
    )
    load = Load(max(one.load.memory_mib for one in found), max(one.load.sm_active_pct for one in found))
    return least._replace(room=room, load=load, slowdown=max(one.slowdown for one in found))


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


def _cores(given: Mapping[str, Given], request: JobRequest, at_once: int, config: SiteConfig) -> _Cores:
    """Return the cores of the tasks: at once they get as many times a task's own, no more than the GPU's part."""
    parts = [item.cpus_per_gpu for item in asked_partitions(request, config) if item.cpus_per_gpu]
    per_gpu = request.cpus_per_gpu or (0 if request.cpus_given else min(parts, default=0))
    if per_gpu:
        return _Cores(max(1, per_gpu // at_once), None)
    own = 1
    if "cpus-per-task" in given:
        text = given["cpus-per-task"].value or ""
        if not (text.isascii() and text.isdigit() and 0 < len(text) < 7):
            raise UnsureError(f"'{given['cpus-per-task'].written}' is not a number")
        own = max(1, int(text))
    asked = at_once * own
    if parts:
        asked = max(own, min(asked, *parts))
    return _Cores(max(1, asked // at_once), asked)


def _mem(given: Mapping[str, Given], request: JobRequest, cores: _Cores, at_once: int, config: SiteConfig) -> str:
    """Return the host memory to ask for, as many times one task's; empty where it follows from the cores.

    Raises:
        UnsureError: it cannot be said how much one task has.
    """
    names = [name for name in ("mem", *sorted(_SIZED_PER_PIECE)) if name in given]
    if not names:
        return ""
    [name] = names  # more than one is a reason against any pack
    match = _MEM.fullmatch(given[name].value or "")
    if match is None:
        raise UnsureError(f"'{given[name].written}' is not understood")
    if name == "mem":
        return f"{int(match[1]) * at_once}{match[2]}"
    if at_once == 1:
        return ""
    pieces = _cores_alone(given, request, config) if name == "mem-per-cpu" else 1
    if name == "mem-per-cpu" and cores.asked is not None and cores.asked >= pieces * at_once:
        return ""
    if not int(match[1]):
        raise UnsureError(f"'{given[name].written}' does not say how much host memory one task needs")
    if given[name].origin == "environment":
        raise UnsureError(f"{given[name].written} sizes its host memory, which the pack has to say otherwise")
    return f"{int(match[1]) * pieces * at_once}{match[2]}"


def _cores_alone(given: Mapping[str, Given], request: JobRequest, config: SiteConfig) -> int:
    """Return the cores that one task would have as a job of its own.

    Raises:
        UnsureError: that depends on where it would run.
    """
    if request.cores_unclear or request.min_cpus:
        raise UnsureError(f"'{given['mem-per-cpu'].written}': how many cores one task has depends on too many options")
    if request.cpus_per_gpu or request.cpus_given:
        return request.cpus_per_gpu or int(given["cpus-per-task"].value or 1)
    found = {max(1, item.cpus_per_gpu) for item in asked_partitions(request, config)}
    if len(found) > 1:
        raise UnsureError(f"'{given['mem-per-cpu'].written}': its partitions give different cores with a GPU")
    return found.pop()


def _in_place(given: Mapping[str, Given]) -> set[str]:
    """Return the options in whose place --mem stands; Slurm refuses them beside it."""
    return set(_SIZED_PER_PIECE & given.keys())


def _broken(request: JobRequest, cores: _Cores, time_min: int | None, config: SiteConfig, slurm: Slurm) -> str:
    """Return the accounting's limit that the pack would break: Slurm may let such a job wait for ever."""
    if not config.limits.enforced:
        return ""
    found: Limits | str = limits_of_user(config, lambda: slurm.limits(config.cluster))
    if isinstance(found, str):
        return f"the limits of this user are not known: {found}"
    wanted = {"gres/gpu": 1, "cpu": cores.asked or 1}
    if _kind(request):
        wanted[f"gres/gpu:{_kind(request)}"] = 1
    if time_min is not None and time_min > (asked_limit_min(request, config) or 0):
        wanted[MINUTES] = time_min
    for item in asked_partitions(request, config):
        if why := broken_limit(found, wanted, request.account, request.qos, item.name, item.qos):
            return why
    return ""


def _shadow(asked: Asked, shape: _Shape) -> Plan:
    """Return the array as it is, and what would have become of it."""
    placement = as_asked(("shadow mode", f"would have been a {shape.reasons[0]}"), ())
    line = asked.command_line
    part = Part(asked.request, asked.footprint, placement)
    return Plan((part,), line.sbatch_argv, line.script_at, asked.text, None, (), "")


def _plan(asked: Asked, shape: _Shape, wish: Wish, config: SiteConfig) -> Plan:
    given, line, request = asked.given, asked.command_line, asked.request
    table = option_table(config.slurm_release, config)
    gres = request.gres[0]
    placement = Placement(
        mode=SharingMode.MPS,
        gres=gres,
        memory_mib=shape.packing.load.memory_mib or None,
        headroom_mib=config.sharing.headroom_mib,
        partition="",
        cpu_option="" if shape.cores.asked is None else f"cpus-per-task={shape.cores.asked}",
        mem=shape.mem,
        time_limit_min=shape.time_min,
        reasons=shape.reasons,
        rejected=(),
    )
    if shape.at_once == 1:
        placement = placement._replace(mode=SharingMode.EXCLUSIVE)
    spec = _spec(asked, shape, wish)
    names = ({"array"} if "array" in given else set()) | (_in_place(given) if shape.mem else set())
    text = without_options(asked.text, table, config.slurm_release, names) if names else asked.text
    body = _script(asked, text, spec, placement, table, config)
    own = _own_output(given)
    options = [
        *without(line.sbatch_argv[: line.ends[-1]], table, names),
        *([] if shape.jobs == 1 else [f"--array=0-{shape.jobs - 1}"]),
        "--ntasks=1",
        *([f"--{placement.cpu_option}"] if placement.cpu_option else []),
        *([f"--mem={shape.mem}"] if shape.mem else []),
        *([f"--time={shape.time_min}"] if shape.time_min is not None else []),
        f"--output={own}",
        *([f"--error={own}"] if "error" in given else []),
        *(["--input=/dev/null"] if "input" in given else []),
    ]
    rest = line.sbatch_argv[line.ends[-1] :]
    if not asked.is_array:
        rest = (plain_name(request.name.replace("/", "_")), *request.script_args)
    script_at = None if asked.is_array and line.script_at is None else len(options)
    packed = Packed(
        tasks=shape.tasks,
        at_once=shape.at_once,
        jobs=shape.jobs,
        cpus_per_task=spec.cpus_per_task,
        retries=spec.retries,
        signature=digest(b"pack" + request.signature.encode()),
        has_original=asked.is_array,
    )
    part = Part(request, asked.footprint, placement)
    return Plan((part,), (*options, *rest), script_at, asked.text, body, (), "", packed)


def _own_output(given: Mapping[str, Given]) -> str:
    """Return where the pack says how it goes: beside its tasks' output where that is a folder of one name."""
    folder = os.path.dirname((given["output"].value or "") if "output" in given else "")
    plain = folder and not folder.startswith("/dev") and not set("%\\") & set(folder)
    return os.path.join(folder, _OWN_OUTPUT) if plain else _OWN_OUTPUT


def _spec(asked: Asked, shape: _Shape, wish: Wish) -> Spec:
    given, request = asked.given, asked.request

    def pattern(name: str, otherwise: str) -> str:
        return (given[name].value or otherwise) if name in given else otherwise

    return Spec(
        version=VERSION,
        name=request.name,
        array="" if asked.commands else (given["array"].value or "").partition("%")[0],
        commands=asked.commands,
        only=asked.only,
        jobs=shape.jobs,
        # As the kernel reads the line: one argument at most, spaces and all.
        interpreter=("/bin/sh",) if asked.commands else tuple(asked.script.interpreter.split(None, 1)),
        script_args=request.script_args,
        load=shape.packing.load,
        room=shape.packing.room,
        cpus_per_task=shape.cores.per_task,
        time_limit_min=shape.limit_min,
        output=pattern("output", _OUTPUT),
        error=pattern("error", ""),
        input=pattern("input", ""),
        append=pattern("open-mode", "").startswith("a"),
        retries=_retries(wish, given),
        argv=asked.argv,
    )


def _script(
    asked: Asked, text: bytes, spec: Spec, placement: Placement, table: tuple[Option, ...], config: SiteConfig
) -> bytes:
    """Return the pack's script.

    Raises:
        UnsureError: sbatch would not read in it what it read in the user's.
    """
    release = config.slurm_release
    wanted = read_script(text, table, release)
    # csub's own lines of an array's script are in the script behind; of a file of commands nothing else is kept.
    kinds = (b"#SBATCH", b"#CSUB") if asked.commands else (b"#SBATCH",)
    lines = [line for line in text[: wanted.insert_at].split(b"\n") if line.startswith(kinds)]
    python = quote(sys.executable)
    missing = f"csub: this node has no '{sys.executable}', so the pack cannot run here"
    start = [
        f"[ -x {python} ] || {{ echo {quote(missing)} >&2; exit 127; }}",
        f'exec {python} -I -m slurm_colloc.runtime.pack "$0"',
    ]
    head = b"".join(line + b"\n" for line in (b"#!/bin/sh", *lines))
    head += pack_block(asked.request, asked.footprint, placement)
    head += "".join(f"{line}\n" for line in start).encode(errors="surrogateescape")
    result = head + MARK + to_json(spec).encode() + b"\n"
    if not asked.commands:
        result += asked.text
    found = read_script(result, table, release)
    if [[(one.name, one.value) for one in part] for part in found.components] != [
        [(one.name, one.value) for one in part] for part in wanted.components
    ]:
        raise UnsureError("sbatch would read the directives of the pack's script otherwise")
    return result

# SPDX-License-Identifier: Apache-2.0
"""From a submission of many tasks to one job that runs them several at a time: its arguments and its script.

Loaded only where a pack is asked for. An array that cannot be packed is submitted as the array it is, with the reason;
commands have no other form, so those that cannot share run one at a time.
"""

import os
from collections.abc import Iterator, Mapping

from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.errors import InputError, UnsureError
from slurm_colloc.core.model import PACK, JobRequest, Placement, Reason, SharingMode, because
from slurm_colloc.core.units import counted
from slurm_colloc.estimate.digest import digest
from slurm_colloc.pack.shape import (
    Asked,
    PackOptions,
    Shape,
    Tasks,
    array_of,
    one_at_a_time,
    retries_of,
    shape_of,
    sized_otherwise,
)
from slurm_colloc.pack.spec import MARK, VERSION, Spec, plain_name, to_json
from slurm_colloc.placement.choose import as_asked
from slurm_colloc.slurm.array import parse_array
from slurm_colloc.slurm.directives import options_in_force, read_script, without_options
from slurm_colloc.slurm.option_tables import Option, known_as
from slurm_colloc.slurm.options import CommandLine, Given, read_environment, value_of, without
from slurm_colloc.submit.footprint import footprint_of
from slurm_colloc.submit.own_options import SCRIPT_OPTIONS, check_values, option_table, own_values
from slurm_colloc.submit.plan import Case, NotPackedError, Packed, Part, Plan, Slurm, policy_of, reason_switched_off
from slurm_colloc.submit.render import pack_block, program
from slurm_colloc.submit.request import build_request
from slurm_colloc.submit.rollout import Chosen
from slurm_colloc.submit.submission import Submission

# What sbatch calls the output of an array's task.
_OUTPUT = "slurm-%A_%a.out"
_OWN_OUTPUT = "slurm-%j.pack.out"
# What no option of csub pack changes.
_FORBIDDEN = ("policy-shadow", "switched-off", "no-packs")


def _pack_options(own: Mapping[str, str]) -> PackOptions:
    """Return the pack that csub's own options ask for."""
    at_once, jobs, retries = (
        int(own[name]) if name in own else None for name in ("pack-tasks", "pack-jobs", "pack-retries")
    )
    return PackOptions(at_once, jobs, retries, "pack-together" in own)


def plan_array(case: Case, part: Part) -> Plan:
    """Return the plan of an array's tasks as a pack.

    Raises:
        CollocError: they are submitted as the array they are.
    """
    command_line, environ, submission, config = case.command_line, case.environ, case.submission, case.config
    if submission.script is None:
        raise NotPackedError(because("command-of-wrap"))
    argv = (*(one.word for one in command_line.own), *command_line.sbatch_argv)
    asked = Asked(
        *(command_line, environ, submission.options, submission.script, part.request, part.footprint),
        *(case.switched_off, Tasks(submission.text, (), submission.name, argv)),
        options=_pack_options(submission.own),
    )
    if "array" not in asked.given:
        raise NotPackedError(because("no-array"))
    if "SBATCH_ARRAY_INX" in environ:
        raise NotPackedError(because("array-by-variable"))
    numbers, most = array_of(asked.given)
    if (tasks := len(parse_array(numbers))) < 2:
        raise NotPackedError(because("one-task"))
    shape = shape_of(asked, tasks, most, config, case.slurm)
    return _shadow(asked, shape) if config.policy == "shadow" else _plan(asked, shape, config)


def plan_tasks(
    command_line: CommandLine, environ: Mapping[str, str], tasks: Tasks, config: SiteConfig, slurm: Slurm
) -> Plan:
    """Return the plan of a pack of commands, or of those tasks of an earlier pack that are still to be done.

    Args:
        command_line: csub's options, without a script, a file or a command.
        environ: of the submission; SBATCH_* variables count.
        tasks: what is to be run.
        config: the site.
        slurm: answers what has to be asked.

    Raises:
        CollocError: it cannot be submitted, or is not understood with certainty.
    """
    asked, notes, chosen = _read(command_line, environ, tasks, config, slurm)
    config = config._replace(policy=chosen.policy)
    if chosen.policy == "off" and not tasks.resumes:
        raise InputError(
            "the site's policy is 'off': csub makes no packs; submit the commands with sbatch, as an array"
        )
    numbers, most = array_of(asked.given)
    if tasks.resumes:
        if "wrap" in asked.given or numbers != tasks.array or "SBATCH_ARRAY_INX" in asked.environ:
            raise InputError(
                f"the tasks are those of job {tasks.resumes}; leave --array, SBATCH_ARRAY_INX and --wrap out"
            )
    else:
        for option in ("wrap", "array"):
            if option in asked.given:
                raise InputError(f"'{asked.given[option].written}' beside commands: each of them is a task")
    count = len(tasks.only or tasks.commands)
    return _plan_anyway(asked, count, most, notes, config, slurm)._replace(chosen=chosen)


def _read(
    command_line: CommandLine, environ: Mapping[str, str], tasks: Tasks, config: SiteConfig, slurm: Slurm
) -> tuple[Asked, tuple[Reason, ...], Chosen]:
    """Return a submission for which there is no plain sbatch, what is to be said of its history, and the policy."""
    text, release = tasks.text, config.slurm_release
    if not known_as(release):
        raise UnsureError(f"sbatch of Slurm '{release}' is not known to this release of csub")
    table = option_table(release, config)
    script = read_script(text, table, release, SCRIPT_OPTIONS)
    check_values(script.own_directives)
    environment = read_environment(environ, table, release)
    given = options_in_force(script, environment, command_line)
    submission = Submission(text, tasks.name, script, given, table, environment.late, own_values(command_line, script))
    request = build_request(submission, (None, tasks.script_args), config, environ)
    chosen = policy_of(request, config, slurm)
    config = config._replace(policy=chosen.policy)
    switched_off = reason_switched_off(submission.own.get("colloc") or "auto", config)
    if not request.gpu_count:
        raise InputError("a pack needs a GPU; say --gres=gpu:1")
    hint = submission.own.get("gpu-footprint")
    footprint, notes = footprint_of(request, text, hint, config, slurm.job_states, anyway=True)
    options = _pack_options(submission.own)
    asked = Asked(command_line, environ, given, script, request, footprint, switched_off, tasks, options)
    return asked, notes, chosen


def _plan_anyway(
    asked: Asked, tasks: int, most: int, notes: tuple[Reason, ...], config: SiteConfig, slurm: Slurm
) -> Plan:
    """Return the plan of tasks that have no other form: those that cannot share run one at a time."""
    try:
        shape = shape_of(asked, tasks, most, config, slurm)
        if asked.options.together:
            _check_together(asked, shape)
    except NotPackedError as error:
        known = asked.footprint.gpu_mem_peak_mib and asked.footprint.sm_active_pct
        if asked.options.together:
            say = "" if known else "; say --gpu-footprint=mem=SIZE,sm=PERCENT"
            raise InputError(f"the tasks run together (--pack-together) or not at all: {error}{say}") from error
        # What not even one task at a time can be run in.
        one_node = "nodes" not in asked.given or asked.given["nodes"].value in ("1", "1-1")
        if asked.request.tasks not in (None, 1) or not one_node:
            raise InputError(
                "a pack runs on one node and starts its tasks itself; leave --nodes and --ntasks out"
            ) from error
        if tasks > 1 and asked.options.at_once != 1:
            say = f"{'' if known else '--gpu-footprint=mem=SIZE,sm=PERCENT or '}--pack-tasks=K"
            code = error.reasons[0].code
            if code in _FORBIDDEN:
                notes = (*notes, because("pack-may-not-share", why=str(error), reason=code))
            else:
                notes = (*notes, because("pack-shares-nothing", why=str(error), reason=code, say=say))
        shape = one_at_a_time(asked, tasks, most, config)
    if asked.tasks.resumes:
        shape = shape._replace(reasons=(*shape.reasons, because("resumes", job_id=asked.tasks.resumes)))
    return _plan(asked, shape, config)._replace(notes=notes)


def _check_together(asked: Asked, shape: Shape) -> None:
    """Refuse tasks that would not all run at the same time, from the first to the last.

    Raises:
        InputError: they would not.
    """
    why, cores, at_once = "", shape.cores.asked, shape.room.tasks
    if at_once < shape.tasks:
        why = f"of {shape.tasks} tasks {at_once} run at a time, in {counted(shape.jobs, 'job')}"
    elif cores is not None and cores < at_once:
        why = f"{at_once} tasks have {counted(cores, 'core')}"
    elif asked.options.retries:
        why = "none of them is run again without the others; leave --pack-retries out"
    elif asked.tasks.resumes:
        why = f"the tasks that are missing of job {asked.tasks.resumes} would run without the others; submit all again"
    if why:
        raise InputError(f"the tasks run together (--pack-together) or not at all: {why}")


def _shadow(asked: Asked, shape: Shape) -> Plan:
    """Return the array as it is, and what would have become of it."""
    placement = as_asked((because("policy-shadow"), because("would-have-been", given=PACK), shape.reasons[0]))
    line = asked.command_line
    part = Part(asked.request, asked.footprint, placement)
    return Plan(part, line.sbatch_argv, line.script_at, asked.tasks.text, None, (), None, was_pack=True)


def _plan(asked: Asked, shape: Shape, config: SiteConfig) -> Plan:
    given, line, request = asked.given, asked.command_line, asked.request
    table = option_table(config.slurm_release, config)
    placement = _placement(request, shape, config)
    spec = _spec(asked, shape)
    names = ({"array"} if "array" in given else set()) | (sized_otherwise(given) if shape.mem else set())
    text = without_options(asked.tasks.text, table, config.slurm_release, names) if names else asked.tasks.text
    body = _script(asked, text, spec, placement, table, config)
    options = [*without(line.sbatch_argv[: line.end], table, names), *_options(given, shape, placement)]
    rest = line.sbatch_argv[line.end :]
    if not asked.tasks.is_array:
        rest = (plain_name(request.name.replace("/", "_")), *request.script_args)
    script_at = None if asked.tasks.is_array and line.script_at is None else len(options)
    packed = Packed(
        tasks=shape.tasks,
        at_once=shape.room.tasks,
        jobs=shape.jobs,
        cpus_per_task=spec.cpus_per_task,
        retries=spec.retries,
        signature=digest(b"pack" + request.signature.encode()),
        has_original=asked.tasks.is_array,
    )
    part = Part(request, asked.footprint, placement)
    return Plan(part, (*options, *rest), script_at, asked.tasks.text, body, (), None, packed)


def _placement(request: JobRequest, shape: Shape, config: SiteConfig) -> Placement:
    return Placement(
        mode=SharingMode.EXCLUSIVE if shape.room.tasks == 1 else SharingMode.MPS,
        gres=request.gres[0],
        memory_mib=shape.load.memory_mib or None,
        headroom_mib=config.sharing.headroom_mib,
        partition="",
        cpu_option="" if shape.cores.asked is None else f"cpus-per-task={shape.cores.asked}",
        mem=shape.mem,
        time_limit_min=shape.time_min,
        reasons=shape.reasons,
        rejected=(),
    )


def _options(given: Mapping[str, Given], shape: Shape, placement: Placement) -> Iterator[str]:
    """Yield sbatch's options of the pack beyond the user's, over which they win."""
    if shape.jobs > 1:
        yield f"--array=0-{shape.jobs - 1}"
    yield "--ntasks=1"
    if placement.cpu_option:
        yield f"--{placement.cpu_option}"
    if shape.mem:
        yield f"--mem={shape.mem}"
    if shape.time_min is not None:
        yield f"--time={shape.time_min}"
    output = _own_output(given)
    yield f"--output={output}"
    if "error" in given:
        yield f"--error={output}"
    if "input" in given:
        yield "--input=/dev/null"


def _own_output(given: Mapping[str, Given]) -> str:
    """Return where the pack writes: beside its tasks' output where that is a folder of one name."""
    folder = os.path.dirname(value_of(given, "output"))
    plain = folder and not folder.startswith("/dev") and not set("%\\") & set(folder)
    return os.path.join(folder, _OWN_OUTPUT) if plain else _OWN_OUTPUT


def _spec(asked: Asked, shape: Shape) -> Spec:
    given, request = asked.given, asked.request
    return Spec(
        version=VERSION,
        name=request.name,
        array="" if asked.tasks.commands else array_of(given)[0],
        commands=asked.tasks.commands,
        only=asked.tasks.only,
        jobs=shape.jobs,
        # As the kernel reads the line: one argument at most, spaces and all.
        interpreter=("/bin/sh",) if asked.tasks.commands else tuple(asked.script.interpreter.split(None, 1)),
        script_args=request.script_args,
        load=shape.load,
        room=shape.room,
        cpus_per_task=shape.cores.per_task,
        time_limit_min=shape.limit_min,
        output=value_of(given, "output") or _OUTPUT,
        error=value_of(given, "error"),
        input=value_of(given, "input"),
        append=value_of(given, "open-mode").startswith("a"),
        retries=retries_of(asked),
        argv=asked.tasks.argv,
        resumes=asked.tasks.resumes,
        together=asked.options.together,
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
    kinds = (b"#SBATCH", b"#CSUB") if asked.tasks.commands else (b"#SBATCH",)
    lines = [line for line in text[: wanted.insert_at].split(b"\n") if line.startswith(kinds)]
    head = b"".join(line + b"\n" for line in (b"#!/bin/sh", *lines))
    head += pack_block(asked.request, asked.footprint, placement)
    head += program("slurm_colloc.pack.job", '"$0"')
    result = head + MARK + to_json(spec).encode() + b"\n"
    if not asked.tasks.commands:
        result += asked.tasks.text
    found = read_script(result, table, release)
    if [(one.name, one.value) for one in found.options] != [(one.name, one.value) for one in wanted.options]:
        raise UnsureError("sbatch would read the directives of the pack's script otherwise")
    return result

# SPDX-License-Identifier: Apache-2.0
"""Makes one job of a submission of many tasks, several of which run at a time: its arguments and its script.

Loaded only where a pack is asked for. An array that cannot be packed is submitted as the array it is, with the reason;
commands have no other form, so those that cannot share run one at a time.
"""

import os
from collections.abc import Iterator, Mapping

from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.errors import InputError, UnsureError
from slurm_colloc.core.model import PACK, Placement, Reason, SharingMode, because
from slurm_colloc.core.units import counted
from slurm_colloc.estimate.digest import digest
from slurm_colloc.pack.shape import (
    PackOptions,
    PackRequest,
    Shape,
    Tasks,
    array_of,
    one_at_a_time,
    retries_of,
    shape_of,
    sized_otherwise,
)
from slurm_colloc.pack.spec import MARK, VERSION, Spec, plain_name, script_of, to_json
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

# Name that sbatch gives the output of an array's task.
_OUTPUT = "slurm-%A_%a.out"
_OWN_OUTPUT = "slurm-%j.pack.out"
# Reasons that no option of csub pack changes.
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
    argv = (*(option.word for option in command_line.own), *command_line.sbatch_argv)
    pack = PackRequest(
        *(command_line, environ, submission.options, submission.script, part.request, part.footprint),
        *(case.switched_off, Tasks(submission.text, (), submission.name, argv)),
        options=_pack_options(submission.own),
    )
    if "array" not in pack.in_force:
        raise NotPackedError(because("no-array"))
    if "SBATCH_ARRAY_INX" in environ:
        raise NotPackedError(because("array-by-variable"))
    numbers, most = array_of(pack.in_force)
    if (tasks := len(parse_array(numbers))) < 2:
        raise NotPackedError(because("one-task"))
    shape = shape_of(pack, tasks, most, config, case.slurm)
    return _shadow(pack, shape) if config.policy == "shadow" else _plan(pack, shape, config)


def plan_tasks(
    command_line: CommandLine, environ: Mapping[str, str], tasks: Tasks, config: SiteConfig, slurm: Slurm
) -> Plan:
    """Return the plan of a pack of commands, or of those tasks of an earlier pack that are still to be done.

    Args:
        command_line: csub's options, without a script, a file or a command.
        environ: of the submission; SBATCH_* variables count.
        tasks: those to be run.
        config: the site.
        slurm: answers what has to be asked.

    Raises:
        CollocError: it cannot be submitted, or is not understood with certainty.
    """
    pack, notes, chosen = _read(command_line, environ, tasks, config, slurm)
    config = config._replace(policy=chosen.policy)
    if chosen.policy == "off" and not tasks.resumes:
        raise InputError(
            "the site's policy is 'off': csub makes no packs; submit the commands with sbatch, as an array"
        )
    numbers, most = array_of(pack.in_force)
    if tasks.resumes:
        if "wrap" in pack.in_force or numbers != tasks.array or "SBATCH_ARRAY_INX" in pack.environ:
            raise InputError(
                f"the tasks are those of job {tasks.resumes}; leave --array, SBATCH_ARRAY_INX and --wrap out"
            )
    else:
        for option in ("wrap", "array"):
            if option in pack.in_force:
                raise InputError(f"'{pack.in_force[option].written}' beside commands: each of them is a task")
    count = len(tasks.only or tasks.commands)
    return _plan_anyway(pack, count, most, notes, config, slurm)._replace(chosen=chosen)


def _read(
    command_line: CommandLine, environ: Mapping[str, str], tasks: Tasks, config: SiteConfig, slurm: Slurm
) -> tuple[PackRequest, tuple[Reason, ...], Chosen]:
    """Return a submission for which there is no plain sbatch, what is to be said of its history, and the policy."""
    text, release = tasks.text, config.slurm_release
    if not known_as(release):
        raise UnsureError(f"sbatch of Slurm '{release}' is not known to this release of csub")
    table = option_table(release, config)
    script = read_script(text, table, release, SCRIPT_OPTIONS)
    check_values(script.own_directives)
    environment = read_environment(environ, table, release)
    in_force, own = options_in_force(script, environment, command_line), own_values(command_line, script)
    submission = Submission(text, tasks.name, script, in_force, table, environment.late, own)
    request = build_request(submission, (None, tasks.script_args), config, environ)
    chosen = policy_of(request, config, slurm)
    config = config._replace(policy=chosen.policy)
    switched_off = reason_switched_off(own.get("colloc") or "auto", config)
    if not request.gpu_count:
        raise InputError("a pack needs a GPU; say --gres=gpu:1")
    hint = own.get("gpu-footprint")
    footprint, notes = footprint_of(request, text, hint, config, slurm.job_states, anyway=True)
    pack = PackRequest(
        *(command_line, environ, in_force, script, request, footprint, switched_off, tasks), _pack_options(own)
    )
    return pack, notes, chosen


def _plan_anyway(
    pack: PackRequest, tasks: int, most: int, notes: tuple[Reason, ...], config: SiteConfig, slurm: Slurm
) -> Plan:
    """Return the plan of tasks that have no other form: those that cannot share run one at a time."""
    try:
        shape = shape_of(pack, tasks, most, config, slurm)
        if pack.options.together:
            _check_together(pack, shape)
    except NotPackedError as error:
        is_known = pack.footprint.gpu_mem_peak_mib and pack.footprint.sm_active_pct
        if pack.options.together:
            say = "" if is_known else "; say --gpu-footprint=mem=SIZE,sm=PERCENT"
            raise InputError(f"the tasks run together (--pack-together) or not at all: {error}{say}") from error
        # Not even one task at a time can be run in others.
        one_node = "nodes" not in pack.in_force or pack.in_force["nodes"].value in ("1", "1-1")
        if pack.request.tasks not in (None, 1) or not one_node:
            raise InputError(
                "a pack runs on one node and starts its tasks itself; leave --nodes and --ntasks out"
            ) from error
        if tasks > 1 and pack.options.at_once != 1:
            say = f"{'' if is_known else '--gpu-footprint=mem=SIZE,sm=PERCENT or '}--pack-tasks=K"
            code = error.reasons[0].code
            if code in _FORBIDDEN:
                notes = (*notes, because("pack-may-not-share", why=str(error), reason=code))
            else:
                notes = (*notes, because("pack-shares-nothing", why=str(error), reason=code, say=say))
        shape = one_at_a_time(pack, tasks, most, config)
    if pack.tasks.resumes:
        shape = shape._replace(reasons=(*shape.reasons, because("resumes", job_id=pack.tasks.resumes)))
    return _plan(pack, shape, config)._replace(notes=notes)


def _check_together(pack: PackRequest, shape: Shape) -> None:
    """Refuse tasks that would not all run at the same time, from the first to the last.

    Raises:
        InputError: they would not.
    """
    fault, cores, at_once = "", shape.cores.to_ask, shape.room.tasks
    if at_once < shape.tasks:
        fault = f"of {shape.tasks} tasks {at_once} run at a time, in {counted(shape.jobs, 'job')}"
    elif cores is not None and cores < at_once:
        fault = f"{at_once} tasks have {counted(cores, 'core')}"
    elif pack.options.retries:
        fault = "none of them is run again without the others; leave --pack-retries out"
    elif pack.tasks.resumes:
        fault = f"the tasks that are missing of job {pack.tasks.resumes} would run without the others; submit all again"
    if fault:
        raise InputError(f"the tasks run together (--pack-together) or not at all: {fault}")


def _shadow(pack: PackRequest, shape: Shape) -> Plan:
    """Return the array as it is, and what would have become of it."""
    placement = as_asked((because("policy-shadow"), because("would-have-been", given=PACK), shape.reasons[0]))
    line = pack.command_line
    part = Part(pack.request, pack.footprint, placement)
    return Plan(part, line.sbatch_argv, line.script_at, pack.tasks.text, None, (), None, was_pack=True)


def _plan(pack: PackRequest, shape: Shape, config: SiteConfig) -> Plan:
    in_force, line, request = pack.in_force, pack.command_line, pack.request
    table = option_table(config.slurm_release, config)
    placement = Placement(
        mode=SharingMode.EXCLUSIVE if shape.room.tasks == 1 else SharingMode.MPS,
        gres=request.gres[0],
        memory_mib=shape.load.memory_mib or None,
        headroom_mib=config.sharing.headroom_mib,
        partition="",
        cpu_option="" if shape.cores.to_ask is None else f"cpus-per-task={shape.cores.to_ask}",
        mem=shape.mem,
        time_limit_min=shape.time_min,
        reasons=shape.reasons,
        rejected=(),
    )
    spec = _spec(pack, shape)
    names = ({"array"} if "array" in in_force else set()) | (sized_otherwise(in_force) if shape.mem else set())
    text = without_options(pack.tasks.text, table, config.slurm_release, names) if names else pack.tasks.text
    body = _script(pack, text, spec, placement, table, config)
    options = [*without(line.sbatch_argv[: line.end], table, names), *_options(in_force, shape, placement)]
    rest = line.sbatch_argv[line.end :]
    if not pack.tasks.is_array:
        rest = (plain_name(request.name.replace("/", "_")), *request.script_args)
    script_at = None if pack.tasks.is_array and line.script_at is None else len(options)
    packed = Packed(
        tasks=shape.tasks,
        at_once=shape.room.tasks,
        jobs=shape.jobs,
        cpus_per_task=spec.cpus_per_task,
        retries=spec.retries,
        signature=digest(b"pack" + request.signature.encode()),
        has_original=pack.tasks.is_array,
    )
    part = Part(request, pack.footprint, placement)
    return Plan(part, (*options, *rest), script_at, pack.tasks.text, body, (), None, packed)


def _options(in_force: Mapping[str, Given], shape: Shape, placement: Placement) -> Iterator[str]:
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
    # Beside its tasks' output if that is a folder of one name.
    folder = os.path.dirname(value_of(in_force, "output"))
    is_plain = folder and not folder.startswith("/dev") and not set("%\\") & set(folder)
    output = os.path.join(folder, _OWN_OUTPUT) if is_plain else _OWN_OUTPUT
    yield f"--output={output}"
    if "error" in in_force:
        yield f"--error={output}"
    if "input" in in_force:
        yield "--input=/dev/null"


def _spec(pack: PackRequest, shape: Shape) -> Spec:
    in_force, request = pack.in_force, pack.request
    return Spec(
        version=VERSION,
        name=request.name,
        array="" if pack.tasks.commands else array_of(in_force)[0],
        commands=pack.tasks.commands,
        only=pack.tasks.only,
        jobs=shape.jobs,
        # As the kernel reads the line: one argument at most, spaces and all.
        interpreter=("/bin/sh",) if pack.tasks.commands else tuple(pack.script.interpreter.split(None, 1)),
        script_args=request.script_args,
        load=shape.load,
        room=shape.room,
        cpus_per_task=shape.cores.per_task,
        time_limit_min=shape.limit_min,
        output=value_of(in_force, "output") or _OUTPUT,
        error=value_of(in_force, "error"),
        input=value_of(in_force, "input"),
        append=value_of(in_force, "open-mode").startswith("a"),
        retries=retries_of(pack),
        argv=pack.tasks.argv,
        resumes=pack.tasks.resumes,
        together=pack.options.together,
    )


def _script(
    pack: PackRequest, text: bytes, spec: Spec, placement: Placement, table: tuple[Option, ...], config: SiteConfig
) -> bytes:
    """Return the pack's script.

    Raises:
        UnsureError: sbatch would not read in it what it read in the user's.
    """
    release = config.slurm_release
    original = read_script(text, table, release)
    # csub's own lines of an array's script are in the script behind; nothing else is kept of a file of commands.
    kinds = (b"#SBATCH", b"#CSUB") if pack.tasks.commands else (b"#SBATCH",)
    lines = [line for line in text[: original.insert_at].split(b"\n") if line.startswith(kinds)]
    head = script_of(lines, ()) + pack_block(pack.request, pack.footprint, placement)
    head += program("slurm_colloc.pack.job", '"$0"')
    result = head + MARK + to_json(spec).encode() + b"\n"
    if not pack.tasks.commands:
        result += pack.tasks.text
    as_read = [
        [(option.name, option.value) for option in script.options]
        for script in (original, read_script(result, table, release))
    ]
    if as_read[0] != as_read[1]:
        raise UnsureError("sbatch would read the directives of the pack's script otherwise")
    return result

# SPDX-License-Identifier: Apache-2.0
"""csub pack: many commands as the tasks of one job. There is no plain sbatch to fall back on: errors submit nothing."""

import codecs
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

from slurm_colloc.core.clock import with_timeout
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.errors import CollocError, ConfigError, InputError, ProcessError
from slurm_colloc.pack.packed_submission import plan_tasks
from slurm_colloc.pack.resume import Earlier, merged_options, note_resumed, read_earlier, resuming
from slurm_colloc.pack.shape import Tasks
from slurm_colloc.pack.spec import plain_name, script_of
from slurm_colloc.slurm.array import MOST_TASKS
from slurm_colloc.slurm.client import ASK_S, CliClient
from slurm_colloc.slurm.option_tables import Option
from slurm_colloc.slurm.options import CommandLine, scan
from slurm_colloc.submit.handover import hand_over, with_body
from slurm_colloc.submit.invocation import Call, call_of, find_sbatch, find_site, say, write_all
from slurm_colloc.submit.own_options import OWN_OPTIONS, check_call, option_table, own_values, parse_arguments
from slurm_colloc.submit.plan import Plan
from slurm_colloc.submit.show import explain, show

_USAGE = """\
Usage: csub pack [OPTIONS OF csub AND sbatch] FILE
       csub pack [OPTIONS OF csub AND sbatch] -- COMMAND [ARGUMENTS]
       csub pack --resume=JOB [OPTIONS OF csub AND sbatch]

  FILE holds one line of sh for each task, and may begin with #SBATCH and #CSUB
  lines. COMMAND is a single task.
  --resume submits those tasks of a pack that are not done, also of one that
  csub --pack made; options win over those it was submitted with.

  --gpu-footprint mem=SIZE[,sm=PERCENT][,dram=PERCENT]
                           what one task needs of the GPU
  --pack-tasks K           tasks at a time on a GPU
  --pack-jobs N            over so many GPUs
  --pack-retries N         runs again after a lost GPU or its memory
                           [default: 2]
  --pack-together          all tasks at the same time, or none; one that fails
                           ends the others
"""


_PATIENCE = 10
_FILE_LIMIT_BYTES = 64 * 1024 * 1024
# Linux takes no longer argument (MAX_ARG_STRLEN), and a NUL byte ends it; sh gets each command as one.
_COMMAND_LIMIT_BYTES = 32 * 4096 - 1
RESUME = Option("resume", "", "required", "")


class _Ready(NamedTuple):
    plan: Plan
    command_line: CommandLine
    call: Call
    config: SiteConfig
    then: Callable[[str], None]


def run(argv: tuple[str, ...]) -> int:
    """Submit a pack of commands and return the exit status: sbatch's, or 2 where nothing was submitted.

    Args:
        argv: csub's arguments, "pack" first.
    """
    if argv[1:2] in (("--help",), ("-h",)):
        write_all(1, _USAGE.encode())
        return 0
    if len(argv) == 1:
        write_all(2, f"{_USAGE}csub: error: no FILE and no command; nothing was submitted\n".encode())
        return 2
    with ExitStack() as held:
        return _run(argv, held)


def _run(argv: tuple[str, ...], held: ExitStack) -> int:
    """Submit; ``held`` is what is let go at the end, or as soon as the job is known."""
    try:
        ready = _prepare(argv, held)
        if isinstance(ready, str):
            say(ready)
            return 0
        if ready.call.dry_run:
            return show(ready.plan, ready.command_line, ready.call)
        sbatch_argv, path = with_timeout(
            ready.config.timeouts.decide_s, "writing the script", partial(with_body, ready.plan)
        )
    except CollocError as error:
        say(f"error: {error}; nothing was submitted")
        return 2
    except Exception as error:  # noqa: BLE001 - a fault of csub's own, before sbatch was started
        say(f"error: internal error, please report it: {error!r}; nothing was submitted")
        return 2
    # Outside of what says that nothing was submitted: once sbatch was started a job may exist.
    status, refusal = hand_over(ready.plan, sbatch_argv, path, None, ready.call, ready.config, ready.then)
    if refusal:
        say(f"error: {refusal}")
    return status


def _prepare(argv: tuple[str, ...], held: ExitStack) -> _Ready | str:
    """Return what is to be submitted, or why there is nothing to submit."""
    configured, config, problem = find_site()
    if config is None:
        raise ConfigError(problem)
    sbatch = find_sbatch(configured, os.environ, sys.argv[0])
    scanned = scan(argv[1:], option_table(config.slurm_release, config), (*OWN_OPTIONS, RESUME))
    resumes = [option for option in scanned.own if option[0] is RESUME]
    if len(resumes) > 1:
        raise InputError("--resume is given twice; name one pack after the other")
    if resumes:
        [(_, job_id, index, written)] = resumes
        begin = index + 1
        end = begin + (1 if argv[begin] == written else 2)
        if scanned.stop < len(argv) - 1 or scanned.end < scanned.stop:
            raise InputError(f"'{' '.join(argv[scanned.end + 1 :])}' beside --resume, which runs what was submitted")
        return _prepare_missing(job_id or "", (*argv[1:begin], *argv[end:]), sbatch, config, held)
    command_line = parse_arguments(argv[1 : scanned.end + 1], config)
    call = call_of(sbatch, command_line)
    check_call(command_line)
    tasks = _tasks(argv[scanned.stop + 1 :], scanned.stop > scanned.end)._replace(argv=argv)
    client = CliClient(min(ASK_S, config.timeouts.decide_s / 3))
    return _ready(command_line, call, tasks, config, client, lambda job_id: None)


def _ready(
    command_line: CommandLine,
    call: Call,
    tasks: Tasks,
    config: SiteConfig,
    client: CliClient,
    then: Callable[[str], None],
) -> _Ready:
    """Return what is to be submitted, once it is decided."""
    step = partial(plan_tasks, command_line, call.environ, tasks, config, client)
    # There is no submission to go on with instead, and 100,000 commands take their time.
    plan = with_timeout(_PATIENCE * config.timeouts.decide_s, "deciding", step)
    if "explain" in own_values(command_line):
        explain(plan, call)
    return _Ready(plan, command_line, call, config._replace(policy=plan.chosen.policy), then)


def _prepare_missing(
    job_id: str, further: tuple[str, ...], sbatch: str, config: SiteConfig, held: ExitStack
) -> _Ready | str:
    """Return the pack of what is missing of another one, or that nothing is."""
    allowed_s = _PATIENCE * config.timeouts.decide_s
    cluster = config.cluster
    job_id = with_timeout(allowed_s, "taking its lock", partial(held.enter_context, resuming(cluster, job_id)))
    earlier = with_timeout(allowed_s, "reading the ledgers", partial(read_earlier, cluster, job_id))
    client = CliClient()
    _refuse_unfinished(earlier, client)
    for problem in earlier.unreadable:
        say(f"{problem}: what it says of tasks is not used")
    if not earlier.left:
        return f"job {earlier.job_id}: all of its {earlier.tasks} tasks are done; nothing was submitted"
    further_line = parse_arguments(further, config)
    call = call_of(sbatch, further_line)
    check_call(further_line)
    words, rest = merged_options(earlier, further, config)
    command_line = parse_arguments(words, config)
    spec = earlier.spec
    tasks = Tasks(
        text=earlier.text,
        commands=spec.commands,
        name=spec.name,
        argv=("pack", *words, *rest) if spec.commands else (*words, *rest),
        script_args=spec.script_args,
        array=spec.array,
        only=earlier.left,
        resumes=earlier.job_id,
    )

    def then(new_id: str) -> None:
        try:
            note_resumed(cluster, earlier.job_id, new_id)
        except CollocError as error:
            say(f"job {new_id} is submitted, but not that it resumes job {earlier.job_id}: {error}")
        held.close()  # with --wait sbatch goes on for as long as the job does

    return _ready(command_line, call, tasks, config, client, then)


def _refuse_unfinished(earlier: Earlier, client: CliClient) -> None:
    """Refuse to run tasks a second time that may be running now."""
    try:
        states = {job.array_id: job.state for job in client.own_queue()}
    except ProcessError as error:
        doubt = f"whether job {earlier.job_id} has ended is not known"
        raise ProcessError(
            f"{doubt}, and its tasks must not run twice; try again when Slurm answers: {error}"
        ) from error
    for job_id in (earlier.job_id, *earlier.resumed_by):
        if job_id in states:
            which = "" if job_id == earlier.job_id else f", which resumes job {earlier.job_id},"
            end = f"wait for its end, or end it by 'scancel {job_id}'"
            raise InputError(f"job {job_id}{which} is still {states[job_id].lower()}; {end}")


def _tasks(words: Sequence[str], is_command: bool) -> Tasks:
    if not words:
        raise InputError("there is no FILE and no command")
    if is_command:
        return Tasks(*one_command(words), plain_name(words[0]))
    if len(words) > 1:
        raise InputError(f"'{words[1]}' behind the file; write a command as 'csub pack [OPTIONS] -- COMMAND'")
    name = plain_name(words[0]) if words[0] != "-" else "pack"
    text = read_file(words[0])
    try:
        return Tasks(*read_commands(text), name)
    except InputError as error:
        raise InputError(f"'{words[0]}': {error}") from error


def read_commands(text: bytes) -> tuple[bytes, tuple[str, ...]]:
    """Return the script that stands for a file of commands, and the commands: one in each line.

    Raises:
        InputError: no commands, too many, or a line that goes on in the next.
    """
    if b"\0" in text:
        raise InputError("the file holds NUL bytes, so it is no text")
    if b"\r\n" in text:
        raise InputError("the file has DOS line ends; dos2unix converts it")
    directives: list[bytes] = []
    commands: list[bytes] = []
    for number, line in enumerate(text.removeprefix(codecs.BOM_UTF8).split(b"\n"), 1):
        bare = line.strip()
        if bare and not bare.startswith(b"#"):
            if bare.endswith(b"\\"):
                raise InputError(f"line {number} ends with a backslash, but each line is a task of its own")
            commands.append(bare)
        elif not commands and line.startswith((b"#SBATCH", b"#CSUB")):
            directives.append(line)
    if not commands:
        raise InputError("the file holds no commands")
    if len(commands) > MOST_TASKS:
        raise InputError(f"these are {len(commands)} tasks, and a pack takes {MOST_TASKS} at most")
    _check_sizes(commands)
    return script_of(directives, commands), tuple(line.decode(errors="surrogateescape") for line in commands)


def one_command(words: Sequence[str]) -> tuple[bytes, tuple[str, ...]]:
    """Return the script that stands for a command, and the command as a line of sh.

    Raises:
        InputError: it is too long, or no line.
    """
    line = shlex.join(words)
    if "\n" in line:
        raise InputError("a word of the command holds a newline; put it into a script")
    encoded = line.encode(errors="surrogateescape")
    _check_sizes([encoded])
    return script_of((), [encoded]), (line,)


def _check_sizes(commands: Iterable[bytes]) -> None:
    for number, command in enumerate(commands, 1):
        if b"\0" in command:
            raise InputError(f"the command of task {number} holds a NUL byte, which no program can be given")
        if len(command) > _COMMAND_LIMIT_BYTES:
            size = f"{len(command)} bytes, and Linux takes {_COMMAND_LIMIT_BYTES} at most"
            raise InputError(f"the command of task {number} has {size}; put it into a script")


def read_file(path: str) -> bytes:
    """Return what a file holds that the user named; "-" is standard input.

    Raises:
        InputError: it cannot be read or is too large.
    """
    try:
        with open(0 if path == "-" else path, "rb", closefd=path != "-") as stream:
            content = stream.read(_FILE_LIMIT_BYTES + 1)
    except OSError as error:
        raise InputError(f"file '{path}' cannot be read: {error.strerror}") from error
    if len(content) > _FILE_LIMIT_BYTES:
        raise InputError(f"file '{path}' is larger than {_FILE_LIMIT_BYTES} bytes")
    return content

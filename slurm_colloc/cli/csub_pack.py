# SPDX-License-Identifier: Apache-2.0
"""csub pack: many commands as the tasks of one job. There is no plain sbatch to fall back on: errors submit nothing."""

import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from slurm_colloc.cli import csub
from slurm_colloc.clock import within
from slurm_colloc.config import SiteConfig
from slurm_colloc.errors import CollocError, ConfigError, InputError
from slurm_colloc.slurm.client import CliClient
from slurm_colloc.slurm.options import CommandLine, scan
from slurm_colloc.submit.commands import expand, read_commands, read_file
from slurm_colloc.submit.handover import find_sbatch, write_all
from slurm_colloc.submit.pack import plan_commands
from slurm_colloc.submit.plan import OWN_OPTIONS, Plan, option_table, own_option, parse_arguments
from slurm_colloc.submit.render import remove_script

_USAGE = """\
Usage: csub pack [OPTIONS OF csub AND sbatch] FILE
       csub pack [OPTIONS OF csub AND sbatch] -- COMMAND [ARGUMENTS] [::: NAME=V1,V2 NAME=1..5 NAME=@FILE]

  FILE holds one line of sh for each task, and may begin with #SBATCH and #CSUB
  lines. In COMMAND every {NAME} is replaced; all combinations are run.

  --gpu-footprint mem=SIZE[,sm=PERCENT]  what one task needs of the GPU
  --pack-tasks K                         tasks at a time on a GPU
  --pack-jobs N                          over so many GPUs
  --pack-retries N                       runs again after a lost GPU or its memory [default: 2]
"""


_PATIENCE = 10


class _Ready(NamedTuple):
    plan: Plan
    command_line: CommandLine
    call: csub.Call
    config: SiteConfig


class _Tasks(NamedTuple):
    """What is to be run: a script that stands for all, the commands, and the job's name."""

    script: bytes
    commands: tuple[str, ...]
    name: str


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
    try:
        ready = _prepare(argv)
        if ready.call.dry_run:
            return csub.show(ready.plan, ready.command_line, ready.call)
        sbatch_argv, path = within(
            ready.config.timeouts.decide_s, "writing the script", partial(csub.with_body, ready.plan)
        )
    except CollocError as error:
        csub.say(f"error: {error}; nothing was submitted")
        return 2
    except Exception as error:  # noqa: BLE001 - a fault of csub's own, before sbatch was started
        csub.say(f"error: internal error, please report it: {error!r}; nothing was submitted")
        return 2
    # Outside of what says that nothing was submitted: once sbatch was started a job may exist.
    try:
        status, why = csub.hand_over(ready.plan, sbatch_argv, None, ready.call, ready.config)
    finally:
        remove_script(path)
    if why:
        csub.say(f"error: {why}")
    return status


def _prepare(argv: tuple[str, ...]) -> _Ready:
    configured, config, problem = csub.find_site()
    if config is None:
        raise ConfigError(problem)
    sbatch = find_sbatch(configured, os.environ, sys.argv[0])
    found = scan(argv[1:], option_table(config.slurm_release, config), OWN_OPTIONS)
    command_line = parse_arguments(argv[1 : found.end + 1], config)
    call = csub.call_of(sbatch, command_line)
    if wrong := csub.misused(command_line, call.dry_run):
        raise InputError(wrong)
    tasks = _tasks(argv[found.stop + 1 :], found.stop > found.end)
    allowed_s = config.timeouts.decide_s
    client = CliClient(min(config.timeouts.ask_slurm_s, allowed_s / 3))
    step = partial(
        plan_commands, command_line, call.environ, tasks.script, tasks.commands, tasks.name, argv, config, client
    )
    # There is no submission to go on with instead, and 100,000 commands take their time.
    plan = within(_PATIENCE * allowed_s, "deciding", step)
    if own_option("explain", command_line, None) is not None:
        csub.explain(plan)
    return _Ready(plan, command_line, call, config)


def _tasks(words: Sequence[str], is_command: bool) -> _Tasks:
    if not words:
        raise InputError("there is no FILE and no command")
    if is_command:
        return _Tasks(*expand(words), os.path.basename(words[0]))
    if len(words) > 1:
        raise InputError(f"'{words[1]}' behind the file; write a command as 'csub pack [OPTIONS] -- COMMAND'")
    name = os.path.basename(words[0]) if words[0] != "-" else "pack"
    try:
        return _Tasks(*read_commands(read_file(words[0])), name)
    except InputError as error:
        raise InputError(f"'{words[0]}': {error}") from error

# SPDX-License-Identifier: Apache-2.0
"""csub: sbatch, and a piece of a GPU for the job that needs no whole one.

A submission that csub cannot decide with certainty, or in which it fails, goes to the real sbatch with the user's own
arguments. The modules that make a plan are imported for a job that may get one, and jinja2 where a script changes.
"""

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from slurm_colloc.core.clock import with_timeout
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.errors import CollocError, MisusedError, UnsureError
from slurm_colloc.core.process import keep_ignored, open_standard_descriptors, put_back, readable, replace
from slurm_colloc.core.units import printable
from slurm_colloc.slurm.options import CommandLine
from slurm_colloc.submit.invocation import CALLED, STDERR, STDOUT, Call, found_call, say, split_call, tell, write_all
from slurm_colloc.submit.own_options import (
    NO_SUBMISSION,
    check_call,
    is_exclusive,
    own_values,
    parse_arguments,
    reads_stdin,
    wants_pack,
)
from slurm_colloc.submit.submission import read_submission

if TYPE_CHECKING:
    from slurm_colloc.submit.plan import Case, Part, Plan

_SILENT = "nothing is to be changed"
_HELP = ("--help", "-h")


def main(called: str = "csub", ignored: int = 0) -> NoReturn:
    """Run csub; the exit status is sbatch's. An exception is raised before sbatch was started, never after.

    Args:
        called: the name it was called by; a program that asks "sbatch --help" must see sbatch's.
        ignored: the mask of signals that were ignored before Python started.
    """
    open_standard_descriptors()
    keep_ignored(ignored)
    argv = tuple(sys.argv[1:])
    if argv[:1] and argv[0] in _HELP and called != "sbatch":
        from slurm_colloc.cli.csub_help import HELP

        write_all(STDOUT, HELP.encode())
        os._exit(0)
    # A script of that name goes to sbatch.
    if argv[:1] == ("pack",) and called != "sbatch" and not os.path.lexists("pack"):
        from slurm_colloc.pack.command_line import run

        status = run(argv)
    else:
        status = _run(argv, called)
    # Taking the interpreter apart would cost each submission 3 ms, and a thread of ours may hang in a file system.
    os._exit(status)


def _run(argv: tuple[str, ...], called: str) -> int:
    began = time.monotonic()
    try:
        call, asks_csub, config, problem = found_call(argv, called)
    except CollocError as error:
        say(f"error: {error}")
        return 1
    stdin: bytes | None = None
    always = os.environ.get("CSUB_COLLOC")
    try:
        # Even a submission that csub will not touch must lose the options that sbatch does not know. As with sbatch's
        # variables, one in the environment stands behind the command line and before the script.
        command_line = parse_arguments((f"--colloc={always}", *argv) if always else argv, config)
        # Until it is known whose jobs are placed, nobody is told anything.
        silent = config is not None and not asks_csub and (config.policy == "shadow" or bool(config.rollout))
        call = split_call(call, command_line, silent=silent)
        check_call(command_line)
        waiting = time.monotonic()
        stdin = _read_stdin(command_line)
        began += time.monotonic() - waiting  # somebody may be typing
        decide = partial(_decide, call, command_line, config, problem, stdin)
        site, plan = decide(began)
        call = split_call(call, command_line, silent=site.policy == "shadow" and not asks_csub)
        from slurm_colloc.submit.handover import hand_over, with_body
        from slurm_colloc.submit.show import explain, said_of, show

        if "explain" in own_values(command_line):
            explain(plan, call)
            call = call._replace(explained=True)
        if call.dry_run:
            return show(plan, command_line, call)
        if plan.decides_nothing:
            tell(call, *said_of(plan, call))
            return _fall_open(call, stdin, _SILENT)
        source = None if stdin is None else readable(plan.body if plan.body is not None else stdin)
        then = _then(plan, call, site)
        # TMPDIR may hang as any other folder may.
        argv, path = with_timeout(site.timeouts.decide_s, "writing the script", partial(with_body, plan))
    except MisusedError as error:
        note = f" (CSUB_COLLOC is '{printable(always)}')" if always else ""
        say(f"error: {error}{note}; nothing was submitted")
        return 2
    except CollocError as error:
        return _fall_open(call, stdin, str(error))
    except BaseException as error:  # noqa: BLE001 - a fault of csub's own must not cost the user the submission
        return _fall_open(call, stdin, f"internal error, please report it: {error!r}")
    # Outside of what falls open above: once sbatch was started a job may exist.
    status, reason = hand_over(plan, argv, path, source, call, site, then)
    if not status and site.binds_late:
        _look_at_others(call, site)
    return _fall_open(call, stdin, reason) if reason else status


def _decide(
    call: Call,
    command_line: CommandLine,
    config: SiteConfig | None,
    problem: str,
    stdin: bytes | None,
    began: float,
) -> "tuple[SiteConfig, Plan]":
    """Return the site and what to submit, decided within the site's time from ``began``.

    Raises:
        CollocError: the submission is to go to sbatch as it is.
    """
    asks_nothing = any(option.name in NO_SUBMISSION for option in command_line.options)
    off = config is not None and config.policies == {"off"} and not call.dry_run
    options = own_values(command_line)
    colloc = options.get("colloc")
    explained = "explain" in options or wants_pack(options)
    why_off = "the policy is off" if explained and not asks_nothing else _SILENT
    if asks_nothing or off or (config is None and (colloc == "off" or is_exclusive(colloc))):
        raise UnsureError(why_off)
    if config is None:
        raise UnsureError(problem)
    allowed_s = config.timeouts.decide_s
    activity = f"deciding (more than {allowed_s:g} s)"
    read = partial(read_submission, command_line, call.environ, stdin, config)
    submission = with_timeout(allowed_s - (time.monotonic() - began), activity, read)
    if not (command_line.own or submission.concerns_csub):
        raise UnsureError(_SILENT)
    left_s = allowed_s - (time.monotonic() - began)
    from slurm_colloc.slurm.client import ASK_S, CliClient
    from slurm_colloc.submit.plan import make_plan

    # Up to two questions one after the other, and time left to decide without an answer.
    client = CliClient(min(ASK_S, allowed_s / 3))
    step = partial(make_plan, command_line, call.environ, submission, config, client, packer=_packed)
    plan = with_timeout(left_s, activity, step)
    if plan.chosen.policy == "off" and not call.dry_run:
        raise UnsureError(why_off)
    return config._replace(policy=plan.chosen.policy), plan


def _packed(case: "Case", part: "Part") -> "Plan":
    from slurm_colloc.pack.packed_submission import plan_array  # other submissions have no use for it

    return plan_array(case, part)


def _then(plan: "Plan", call: Call, config: SiteConfig) -> Callable[[str], None]:
    """Return what is to be done once there is a job."""
    if plan.late or plan.would_be_late:
        return partial(_keep_waiting, plan, call, config)
    return lambda job_id: None


def _keep_waiting(plan: "Plan", call: Call, config: SiteConfig, job_id: str) -> None:
    """Keep what is needed to give the job a piece while it waits; the job stays as asked without it."""
    from slurm_colloc.rebind.waiting import keep_submitted

    step = partial(keep_submitted, config, job_id, plan.part.request)
    try:
        with_timeout(config.timeouts.decide_s, "writing what waits", step)
    except CollocError as error:
        tell(call, f"job {job_id} keeps what it asks for: {error}")


def _look_at_others(call: Call, config: SiteConfig) -> None:
    """Have the user's waiting jobs looked at: something may be known by now of jobs like them."""
    from slurm_colloc.rebind.waiting import start_look

    with suppress(Exception):  # the job is submitted, and the next look comes
        with_timeout(
            config.timeouts.decide_s, "looking at what waits", partial(start_look, config.cluster, call.environ)
        )


def _read_stdin(command_line: CommandLine) -> bytes | None:
    """Return the script on standard input; None where sbatch would not read one."""
    if not reads_stdin(command_line):
        return None
    with open(0, "rb", closefd=False) as stream:
        return stream.read()


def _fall_open(call: Call, stdin: bytes | None, reason: str) -> int:
    """Become sbatch with the user's own arguments; a dry run only says so."""
    if call.dry_run:
        say(f"error: {reason}; without --dry-run the job would stay as you asked")
        return 2
    if stdin is not None:
        put_back(stdin)
    if reason != _SILENT:
        person = "the job stays as you asked", f"  why: {reason}"
        tell(call, *(person if os.isatty(STDERR) else (f"the job stays as you asked: {reason}",)))
    try:
        replace([call.sbatch, *call.argv], call.environ, CALLED)
    except CollocError as error:
        say(f"error: {error}")
        return 1


if __name__ == "__main__":
    main()

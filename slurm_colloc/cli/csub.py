# SPDX-License-Identifier: Apache-2.0
"""csub: sbatch, and a piece of a GPU for the job that needs no whole one.

Whatever csub cannot decide with certainty, and whatever goes wrong in it, ends in the real sbatch with the user's own
arguments. Nothing here imports jinja2 or anything heavier unless the script changes.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import NoReturn

from slurm_colloc.cli.csub_show import answer
from slurm_colloc.clock import within
from slurm_colloc.config import SiteConfig
from slurm_colloc.errors import CollocError, MisusedError, UnsureError
from slurm_colloc.process import keep_ignored, open_standard_descriptors, readable, replace
from slurm_colloc.slurm.client import CliClient
from slurm_colloc.slurm.options import CommandLine
from slurm_colloc.submit.call import Call, found_call, handed_on, say, split_call, tell
from slurm_colloc.submit.decision import record
from slurm_colloc.submit.handover import CALLED, STDERR, STDOUT, submit, with_body, write_all
from slurm_colloc.submit.own_options import (
    NO_SUBMISSION,
    check_call,
    own_option,
    parse_arguments,
    reads_stdin,
    wants_pack,
)
from slurm_colloc.submit.plan import Plan, make_plan
from slurm_colloc.submit.render import remove_script
from slurm_colloc.submit.told import is_exclusive

_SILENT = "nothing is to be changed"
_HELP = ("--help", "-h")


def main(called: str = "csub", ignored: int = 0) -> NoReturn:
    """Run csub; the exit status is sbatch's.

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
    try:
        status = _pack(argv) if _is_pack(argv, called) else _run(argv)
    except KeyboardInterrupt:  # before sbatch was started; from then on sbatch has the signal
        status = 128 + signal.SIGINT
    # Taking the interpreter apart would cost each submission 3 ms, and a thread of ours may hang in a file system.
    os._exit(status)


def _is_pack(argv: tuple[str, ...], called: str) -> bool:
    """Return whether this is "csub pack", and not sbatch with a script of that name."""
    return argv[:1] == ("pack",) and called != "sbatch" and not os.path.lexists("pack")


def _pack(argv: tuple[str, ...]) -> int:
    from slurm_colloc.cli.csub_pack import run

    return run(argv)


def _run(argv: tuple[str, ...]) -> int:
    began = time.monotonic()
    try:
        call, asks_csub, config, problem = found_call(argv)
    except CollocError as error:
        say(f"error: {error}")
        return 1
    stdin: bytes | None = None
    try:
        # Even a submission that csub will not touch must lose the options that sbatch does not know.
        command_line = parse_arguments(argv, config)
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
        if own_option("explain", command_line, None) is not None:
            explain(plan)
        status = _otherwise(plan, command_line, call, site)
        if status is not None:
            return status
        if call.dry_run:
            return show(plan, command_line, call)
        if plan.decides_nothing:
            tell(call, answer(plan))
            return _fall_open(call, stdin, _SILENT)
        source = None if stdin is None else readable(plan.body if plan.body is not None else stdin)
        then = _then(plan, command_line, call, site)
        # TMPDIR may hang as any other folder may.
        argv, path = within(site.timeouts.decide_s, "writing the script", partial(with_body, plan))
    except MisusedError as error:
        say(f"error: {error}; nothing was submitted")
        return 2
    except CollocError as error:
        return _fall_open(call, stdin, str(error))
    except Exception as error:  # noqa: BLE001 - a fault of csub's own must not cost the user the submission
        return _fall_open(call, stdin, f"internal error, please report it: {error!r}")
    # Outside of what falls open above: once sbatch was started a job may exist.
    status, why = hand_over(plan, argv, path, source, call, site, then)
    return _fall_open(call, stdin, why) if why else status


def _otherwise(plan: Plan, command_line: CommandLine, call: Call, site: SiteConfig) -> int | None:
    """Submit the job in another way than as one job, where it is to be so; None where it is not, or cannot be."""
    # Of an array the site may want to know one task first.
    first = plan.first or ("auto" if site.sharing.canary == "auto" and plan.parts[0].request.array else "off")
    if first == "off":
        return None
    from slurm_colloc.followup.canary import measure_first

    return measure_first(plan, first, command_line, call, site)


def _decide(
    call: Call,
    command_line: CommandLine,
    config: SiteConfig | None,
    problem: str,
    stdin: bytes | None,
    began: float,
) -> tuple[SiteConfig, Plan]:
    """Return the site and what to submit, decided within the site's time from ``began``.

    Raises:
        CollocError: the submission is to go to sbatch as it is.
    """
    asks_nothing = any(option.name in NO_SUBMISSION for option in command_line.options)
    off = config is not None and config.policies == {"off"} and not call.dry_run
    wish = own_option("colloc", command_line, None)
    explained = own_option("explain", command_line, None) is not None or wants_pack(command_line)
    why_off = "the policy is off" if explained and not asks_nothing else _SILENT
    if asks_nothing or off or (config is None and (wish == "off" or is_exclusive(wish))):
        raise UnsureError(why_off)
    if config is None:
        raise UnsureError(problem)
    # Up to two questions one after the other, and time left to decide without an answer.
    client = CliClient(min(config.timeouts.ask_slurm_s, config.timeouts.decide_s / 3))
    allowed_s = config.timeouts.decide_s
    step = partial(make_plan, command_line, call.environ, stdin, config, client)
    plan = within(allowed_s - (time.monotonic() - began), f"deciding (more than {allowed_s:g} s)", step)
    if plan.chosen.policy == "off" and not call.dry_run:
        raise UnsureError(why_off)
    return config._replace(policy=plan.chosen.policy), plan


def _then(plan: Plan, command_line: CommandLine, call: Call, config: SiteConfig) -> Callable[[str], None]:
    """Return what is to be done once there is a job: have it followed where its user allows that it is run again."""
    if not plan.may_run_again:
        return lambda job_id: None
    from slurm_colloc.followup.retry import follow

    return follow(plan, command_line, call.sbatch, call.environ, config, partial(_note, call))


def _read_stdin(command_line: CommandLine) -> bytes | None:
    """Return the script on standard input; None where sbatch would not read one."""
    if not reads_stdin(command_line):
        return None
    with open(0, "rb", closefd=False) as stream:
        return stream.read()


def _fall_open(call: Call, stdin: bytes | None, why: str) -> int:
    """Become sbatch with the user's own arguments; a dry run only says so."""
    if call.dry_run:
        say(f"error: {why}; without --dry-run the job would go to sbatch unchanged")
        return 2
    if why != _SILENT:
        tell(call, [f"handed to sbatch unchanged: {why}"])
    if stdin is not None:
        os.dup2(readable(stdin), 0)
    try:
        replace([call.sbatch, *call.argv], call.environ, CALLED)
    except CollocError as error:
        say(f"error: {error}")
        return 1


def _note(call: Call, line: str) -> None:
    tell(call, [line])


def hand_over(
    plan: Plan,
    argv: tuple[str, ...],
    script: str,
    source: int | None,
    call: Call,
    config: SiteConfig,
    then: Callable[[str], None] = lambda job_id: None,
) -> tuple[int, str]:
    """Run sbatch once and return its status, and a reason where nothing was submitted and plain sbatch is to follow.

    ``then`` is called with the job's id as soon as there is one; a rendered ``script`` is removed at the end.
    """

    def submitted(job_id: str, cluster: str) -> None:
        then(job_id)
        shadow = config.policy == "shadow"
        record(plan, job_id, cluster or config.cluster, config, partial(_note, call) if shadow else say)
        tell(call, (f"job {job_id}: {line}" for line in answer(plan)))

    try:
        outcome = submit([call.sbatch, *argv], handed_on(call.environ, plan, config), source, submitted)
    except CollocError as error:  # sbatch was not started
        return 1, str(error)
    finally:
        if script:
            remove_script(script)
    status = outcome.status if outcome.status >= 0 else 128 - outcome.status
    has_original = plan.packed is None or plan.packed.has_original
    if outcome.refused and not plan.as_asked and has_original:
        given = "the pack" if plan.packed else " : ".join(part.placement.given for part in plan.parts)
        return status, f"{given} was refused: {_verdict(outcome.refused)}"
    if outcome.refused:
        write_all(STDERR, outcome.refused)
    return status, ""


def _verdict(said: bytes) -> str:
    # Without sbatch's "submission failed", which Snakemake takes for the end of it wherever it stands.
    return said.decode(errors="replace").rpartition("submission failed: ")[2].partition("\n")[0]


def show(plan: Plan, command_line: CommandLine, call: Call) -> int:
    """Print what would be submitted and submit nothing."""
    from slurm_colloc.cli.csub_show import as_json, as_line, noted

    text = plan.text
    for note in noted(plan):
        say(note)
    if own_option("format", command_line, None) == "json":
        text = as_json(plan, call.sbatch)
    else:
        say(f"would be submitted as: {as_line(plan, call.sbatch)}")
    sys.stdout.buffer.write(text.encode(errors="surrogateescape"))
    sys.stdout.flush()
    return 0


def explain(plan: Plan) -> None:
    from slurm_colloc.cli.csub_show import explanation

    for line in explanation(plan):
        say(line)


if __name__ == "__main__":
    main()

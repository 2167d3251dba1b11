# SPDX-License-Identifier: Apache-2.0
"""One invocation of csub: which sbatch and site.toml it found, its arguments split, and its messages to the user."""

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple

from slurm_colloc.core.clock import with_timeout
from slurm_colloc.core.config import (
    ENVIRONMENT_VARIABLE,
    SiteConfig,
    Timeouts,
    how_passed_over,
    how_to_write_one,
    load_site,
    passed_over,
    site_files,
)
from slurm_colloc.core.errors import ConfigError
from slurm_colloc.slurm.options import CommandLine
from slurm_colloc.submit.decision import record
from slurm_colloc.submit.handover import STDERR, STDOUT, find_sbatch, is_of_script, submit, write_all
from slurm_colloc.submit.inherited import environment_to_submit
from slurm_colloc.submit.own_options import is_exclusive, own_option, with_policy_variable, without_own_options
from slurm_colloc.submit.plan import Plan
from slurm_colloc.submit.render import remove_script
from slurm_colloc.submit.show import answer, as_json, as_line, explanation, noted

# A longer line nobody pastes.
_PASTED = 200


class Call(NamedTuple):
    """One invocation: what to fall back on at any time."""

    sbatch: str
    argv: tuple[str, ...]
    environ: Mapping[str, str]
    dry_run: bool
    quiet: bool
    explained: bool = False
    called: str = "csub"


def found_call(argv: tuple[str, ...], called: str = "csub") -> tuple[Call, bool, SiteConfig | None, str]:
    """Return the call before its arguments are split, whether csub itself is asked, the site, and why there is none.

    ``called`` is the name that it was called by.

    Raises:
        CollocError: there is no sbatch.
    """
    configured, config, problem = find_site()
    sbatch = find_sbatch(configured, os.environ, sys.argv[0])
    # Where splitting fails, as with an option that only sbatch knows, it stays at this.
    rest, own = without_own_options(argv)
    # Whoever calls csub as sbatch is to see sbatch and nothing else, until the site lets csub place jobs.
    silent = config is not None and config.policy != "auto" and not own
    unheard = "--quiet" in rest or "-Q" in rest
    quiet = silent or unheard
    # Whoever wrote a file of his own is told even by a site that only looks on, if it is a person who reads it.
    if not unheard and (os.isatty(STDERR) or not (silent or _read_as_one())) and (path := passed_over()):
        say(how_passed_over(path))
    call = Call(sbatch, rest, environment_to_submit(), "--dry-run" in own, quiet, called=called)
    return call, bool(own), config, problem


def call_of(sbatch: str, command_line: CommandLine) -> Call:
    """Return the call of an invocation whose arguments are split."""
    return split_call(Call(sbatch, (), environment_to_submit(), False, False), command_line)


def split_call(call: Call, command_line: CommandLine, *, silent: bool = False) -> Call:
    """Return the call with what is known once sbatch's arguments, csub's own and the script's are told apart."""
    colloc = own_option("colloc", command_line, None)
    return call._replace(
        argv=command_line.sbatch_argv,
        # Also where nothing else is understood of the submission.
        environ=with_policy_variable(call.environ, colloc)
        if colloc is not None and is_exclusive(colloc)
        else call.environ,
        dry_run=own_option("dry-run", command_line, None) is not None,
        quiet=silent or any(option.name == "quiet" for option in command_line.options),
    )


def handed_on(environ: Mapping[str, str], plan: Plan, config: SiteConfig) -> dict[str, str]:
    """Return sbatch's environment: a pack from within a requeued job must not pass for one that goes on itself."""
    # Where nobody judges csub's decisions, or it has taken none, not a variable is another.
    judged = config.policy != "shadow" and any(partition.job_submit != "off" for partition in config.partition)
    handed = with_policy_variable(environ, plan.colloc) if judged or is_exclusive(plan.colloc) else dict(environ)
    if plan.packed is not None:
        handed.pop("SLURM_RESTART_COUNT", None)
    return handed


def find_site() -> tuple[str, SiteConfig | None, str]:
    """Return (configured sbatch, site, problem); without a usable site.toml the problem says why."""
    problem = f"no site.toml found; '{how_to_write_one()}' writes one"
    for path in site_files():
        try:
            config = with_timeout(Timeouts().decide_s, f"reading '{path}'", partial(load_site, path))
        except ConfigError as error:
            missing = isinstance(error.__cause__, FileNotFoundError) and path != os.environ.get(ENVIRONMENT_VARIABLE)
            if not missing:
                return "", None, str(error)
        except Exception as error:  # noqa: BLE001 - a fault of csub's own must not cost the user the submission
            return "", None, f"site file '{path}' cannot be used: {error}"
        else:
            return config.paths.sbatch, config, ""
    return "", None, problem


def tell(call: Call, *lines: str) -> None:
    """Say what is no error, unless nobody wants it, or a program reads both outputs as one: $(csub job.sh 2>&1)."""
    if not call.quiet and not _read_as_one():
        for line in lines:
            say(line)


def _read_as_one() -> bool:
    try:
        both = [os.fstat(descriptor) for descriptor in (STDOUT, STDERR)]
        return os.path.samestat(*both) and not os.isatty(STDERR)
    except OSError:
        return False


def said_of(plan: Plan, call: Call, job_id: str = "") -> Iterable[str]:
    """Return what a submission says of its plan; of one that was explained, nothing a second time."""
    terminal = os.isatty(STDERR)
    command = _as_asked(plan, call) if terminal else ""
    return answer(plan, job_id, command, terminal=terminal, explained=call.explained)


def _as_asked(plan: Plan, call: Call) -> str:
    """Return the line that submits the same as asked; empty where nobody could paste it."""
    import shlex  # of no use to nearly all submissions

    line = shlex.join([call.called, "--colloc=off", *call.argv])
    typed = plan.script_at is not None or "wrap" in plan.given
    return line if typed and line.isprintable() and len(line) <= _PASTED else ""


def say(text: str) -> None:
    """Tell the user; what a terminal would act on is made visible: words of a script, or of sbatch, may hold it."""
    if not text.isprintable():
        from slurm_colloc.core.units import printable  # of no use to nearly all submissions

        text = "\n".join(map(printable, text.split("\n")))
    write_all(STDERR, f"csub: {text}\n".encode(errors="backslashreplace"))


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
        record(plan, job_id, cluster or config.cluster, config, partial(tell, call) if shadow else say)
        tell(call, *said_of(plan, call, job_id))

    try:
        silent = {"quiet", "wait"} <= set(plan.part.request.options)
        environ = handed_on(call.environ, plan, config)
        status, refused = submit([call.sbatch, *argv], environ, source, submitted, silent=silent)
    except BaseException as error:  # noqa: BLE001 - sbatch was not started
        return 1, str(error)
    finally:
        if script:
            remove_script(script)
    has_original = plan.packed is None or plan.packed.has_original
    # The same request is refused once more, unless it was csub's text.
    is_other = not plan.as_asked or (plan.body is not None and is_of_script(refused))
    if refused and is_other and has_original:
        from slurm_colloc.slurm.refusals import verdict  # of no use to nearly all submissions

        given = "the script with csub's lines" if plan.as_asked else plan.part.placement.given
        return status, f"{'the pack' if plan.packed else given} was refused: {verdict(refused)}"
    write_all(STDERR, refused.encode(errors="surrogateescape"))
    return status, ""


def show(plan: Plan, command_line: CommandLine, call: Call) -> int:
    """Print what would be submitted and submit nothing."""
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


def explain(plan: Plan, call: Call) -> None:
    """Say why the plan is what it is."""
    for line in explanation(plan, _as_asked(plan, call)):
        say(line)

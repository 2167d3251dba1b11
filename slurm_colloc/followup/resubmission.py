# SPDX-License-Identifier: Apache-2.0
"""Submit what a record holds once more, from within its companion: its plan by a function, then one sbatch."""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from slurm_colloc.clock import within
from slurm_colloc.config import SiteConfig
from slurm_colloc.errors import CollocError, ProcessError, UnansweredError
from slurm_colloc.files import read_bounded
from slurm_colloc.followup.record import Record, script_path
from slurm_colloc.followup.submission import Submitted, submit_plan
from slurm_colloc.model import because
from slurm_colloc.slurm.client import CliClient
from slurm_colloc.slurm.options import CommandLine
from slurm_colloc.submit.call import handed_on
from slurm_colloc.submit.handover import find_sbatch
from slurm_colloc.submit.own_options import parse_arguments
from slurm_colloc.submit.plan import Plan, make_plan

_SUBMIT_TIMEOUT_S = 180.0
_SCRIPT_LIMIT_BYTES = 128 * 1024 * 1024


class Prepared(NamedTuple):
    """A call of csub that was decided on: ``config`` has the policy in force."""

    command_line: CommandLine
    plan: Plan
    environ: Mapping[str, str]
    config: SiteConfig


def restored(record: Record, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of csub's call, without what Slurm, a prolog and the shell put into the companion's."""
    kept = {name: environ[name] for name in record.names if name in environ}
    return kept | dict(record.variables)


def prepare(
    folder: str,
    record: Record,
    words: Sequence[str],
    environ: Mapping[str, str],
    reason: str,
    config: SiteConfig,
    *,
    or_as_asked: bool,
) -> Prepared:
    """Decide about what the record holds, with these options, as csub would where it was called.

    Args:
        folder: of the record.
        record: what was submitted.
        words: csub's options and sbatch's.
        environ: the companion's.
        reason: why it is submitted once more.
        config: the site.
        or_as_asked: whether what cannot be decided is to go as its user asked for it.

    Raises:
        CollocError: it cannot be decided.
        OSError: the folder in which csub was called is not here.
    """
    environ = restored(record, environ)
    os.chdir(record.folder)
    path = script_path(folder, record)
    script = () if record.from_stdin else (path, *record.script_args)
    stdin = read_bounded(path, _SCRIPT_LIMIT_BYTES) if record.from_stdin else None
    command_line = parse_arguments((*words, *script), config)
    client = CliClient(config.timeouts.ask_slurm_s, environ)
    step = partial(make_plan, command_line, environ, stdin, config, client, because("followup", why=reason))
    try:
        plan = within(config.timeouts.decide_s, "deciding", step)
    except CollocError:
        if not or_as_asked:
            raise
        plan = Plan((), (), None, stdin or b"", None, (), None)
    if not plan.parts or plan.chosen.policy == "off":
        plan = _as_asked(plan, command_line)
    return Prepared(command_line, plan, environ, config._replace(policy=plan.chosen.policy))


def _as_asked(plan: Plan, command_line: CommandLine) -> Plan:
    """Return the plan of plain sbatch, of which no decision is recorded."""
    return plan._replace(parts=(), sbatch_argv=command_line.sbatch_argv, script_at=command_line.script_at, body=None)


def submit(prepared: Prepared, options: Sequence[str], *, or_as_asked: bool) -> tuple[Submitted, Plan]:
    """Submit it, and return what sbatch said, with the plan that it said it of.

    Args:
        prepared: what was decided.
        options: further ones of sbatch.
        or_as_asked: whether what Slurm refuses is submitted as its user asked for it.

    Raises:
        UnansweredError: there may be a new job or not.
        ProcessError: there is none.
    """
    command_line, plan, environ, config = prepared
    sbatch = find_sbatch(config.paths.sbatch, environ, "")
    done = submit_plan(sbatch, plan, options, handed_on(environ, plan, config), _SUBMIT_TIMEOUT_S, config)
    if done.refused and or_as_asked and not plan.as_asked:
        plan = _as_asked(plan, command_line)
        done = submit_plan(sbatch, plan, options, environ, _SUBMIT_TIMEOUT_S, config)
    if not done.job_id:
        kind = ProcessError if done.refused else UnansweredError
        raise kind(f"sbatch ended with status {done.done.status}: {done.done.last_words}")
    return done, plan

# SPDX-License-Identifier: Apache-2.0
"""Submit the companion of a job, and what its record holds once more.

A companion is a small job of the user's that waits for another one's end. It lives outside the job it follows, needs
no rights, and costs one core for a second. What it does is ``slurm_colloc.followup.companion``.
"""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from slurm_colloc.core.clock import with_timeout
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.errors import CollocError, ProcessError, UnansweredError
from slurm_colloc.core.files import read_bounded
from slurm_colloc.core.model import because
from slurm_colloc.core.process import run
from slurm_colloc.followup.record import Record, record_folder, script_path
from slurm_colloc.slurm.client import ASK_S, CliClient
from slurm_colloc.slurm.options import CommandLine
from slurm_colloc.slurm.parse import Submitted, parse_submitted
from slurm_colloc.slurm.refusals import is_refusal
from slurm_colloc.submit.handover import CALLED, find_sbatch, with_body
from slurm_colloc.submit.invocation import handed_on
from slurm_colloc.submit.own_options import parse_arguments
from slurm_colloc.submit.plan import PLAIN, Plan, make_plan
from slurm_colloc.submit.render import program, quote, remove_script

_REPLACED = set("%\\")
_RESUBMIT_TIMEOUT_S = 180.0
_SCRIPT_LIMIT_BYTES = 128 * 1024 * 1024


def submit_companion(
    sbatch: str, record: Record, when: str, call_environ: Mapping[str, str], config: SiteConfig
) -> str:
    """Submit the companion of a record that is written, and return its job id.

    Args:
        sbatch: the real one.
        record: what it is told; its account, QOS and partition are the companion's too.
        when: the dependency, "afternotok:123" or "afterany:123".
        call_environ: the environment of csub's call, which the companion gets but for SBATCH_* (they are about the
            user's job, and in the record).
        config: the site.

    Raises:
        ProcessError: Slurm refused it or did not answer in time.
    """
    environ = {name: value for name, value in call_environ.items() if not name.startswith("SBATCH_")}
    folder = record_folder(record.cluster, record.job_id)
    argv = _argv(sbatch, record, when, folder, config)
    script = b"#!/bin/sh\n" + program("slurm_colloc.followup.companion", quote(folder))
    done = run(argv, ASK_S, environ, script, CALLED)
    submitted = parse_submitted(done.stdout)
    if done.status or not submitted:
        raise ProcessError(f"its companion job was refused (status {done.status}): {done.last_words}")
    return submitted.job_id


def _argv(sbatch: str, record: Record, when: str, folder: str, config: SiteConfig) -> list[str]:
    log = os.path.join(folder, "log")
    asked = {
        "account": record.account,
        "qos": record.qos,
        "partition": config.recovery.partition or record.partition,
    }
    return [
        sbatch,
        "--parsable",
        f"--job-name={record.companion_name}",
        f"--dependency={when}",
        "--kill-on-invalid-dep=yes",
        # Preempted, or its node failed: it goes on behind the last step that it wrote down.
        "--requeue",
        *("--nodes=1", "--ntasks=1", "--cpus-per-task=1", "--mem=256M", "--time=10"),
        *(f"--{name}={value}" for name, value in asked.items() if value),
        "--export=ALL",
        # Wherever csub was called, that folder may be missing on the node; the program says so itself.
        "--chdir=/",
        "--input=/dev/null",
        # A pattern would be replaced in it.
        f"--output={os.devnull if set(log) & _REPLACED else log}",
    ]


# What a record holds, submitted once more from within its companion


class Resubmitted(NamedTuple):
    """A job that was submitted once more, and how: ``config`` has the policy in force."""

    made: Submitted
    plan: Plan
    command_line: CommandLine
    environ: Mapping[str, str]
    config: SiteConfig


def resubmit(
    folder: str,
    record: Record,
    words: Sequence[str],
    environ: Mapping[str, str],
    reason: str,
    option: str,
    config: SiteConfig,
) -> Resubmitted:
    """Submit what the record holds, with these options, as csub would where it was called.

    What cannot be decided, or comes to no job so, goes as its user asked for it.

    Args:
        folder: of the record.
        record: what was submitted.
        words: csub's options and sbatch's.
        environ: the companion's.
        reason: why it is submitted once more.
        option: a further one of sbatch, whatever is decided.
        config: the site.

    Raises:
        UnansweredError: there may be a new job or not.
        CollocError: there is none.
        OSError: the folder in which csub was called is not here.
    """
    # That of csub's call, without what Slurm, a prolog and the shell put into the companion's.
    environ = {**{name: environ[name] for name in record.names if name in environ}, **record.variables}
    os.chdir(record.folder)
    path = script_path(folder, record)
    script = () if record.from_stdin else (path, *record.script_args)
    stdin = read_bounded(path, _SCRIPT_LIMIT_BYTES) if record.from_stdin else None
    command_line = parse_arguments((*words, *script), config)
    client = CliClient(ASK_S, environ)
    step = partial(make_plan, command_line, environ, stdin, config, client, because("followup", why=reason))
    try:
        plan = with_timeout(config.timeouts.decide_s, "deciding", step)
    except CollocError:
        plan = Plan(PLAIN, (), None, stdin or b"", None, (), None)
    config = config._replace(policy=plan.chosen.policy)
    # Of this one no decision is recorded.
    plain = plan._replace(part=PLAIN, sbatch_argv=command_line.sbatch_argv, script_at=command_line.script_at, body=None)
    if plan.part is PLAIN or config.policy == "off":
        plan = plain
    try:
        made = _submitted(plan, option, handed_on(environ, plan, config), config)
    except CollocError as error:
        if plan.as_asked or isinstance(error, UnansweredError):
            raise
        plan = plain
        made = _submitted(plan, option, environ, config)
    return Resubmitted(made, plan, command_line, environ, config)


def _submitted(plan: Plan, option: str, environ: Mapping[str, str], config: SiteConfig) -> Submitted:
    sbatch = find_sbatch(config.paths.sbatch, environ, "")
    # TMPDIR may hang as any other folder may.
    argv, path = with_timeout(config.timeouts.decide_s, "writing the script", partial(with_body, plan))
    end = len(argv) if plan.script_at is None else plan.script_at
    end -= argv[end - 1 : end] == ("--",)
    words = (sbatch, *argv[:end], option, "--parsable", *argv[end:])
    text = plan.body if plan.body is not None else plan.script
    try:
        done = run(words, _RESUBMIT_TIMEOUT_S, environ, b"" if plan.script_at is not None else text, CALLED)
    except Exception as error:
        # There may be a job, and whoever took that for a refusal would submit another.
        raise UnansweredError(f"whether a job was made is not known: {error}") from error
    finally:
        remove_script(path)
    made = None if done.status else parse_submitted(done.stdout)
    if made is None:
        kind = ProcessError if is_refusal(done.stderr.decode(errors="replace")) else UnansweredError
        raise kind(f"sbatch ended with status {done.status}: {done.last_words}")
    return made

# SPDX-License-Identifier: Apache-2.0
"""Holds or cancels jobs that stay idle after two notices, if the site asks for it."""

import os
from typing import NamedTuple

from slurm_colloc.audit.ladder import BEGUN, DONE, FAILED, UNABLE, key_of
from slurm_colloc.audit.state import Action, State
from slurm_colloc.audit_model import Finding
from slurm_colloc.clock import now
from slurm_colloc.config import SiteConfig
from slurm_colloc.errors import InputError, ProcessError
from slurm_colloc.process import ask, run
from slurm_colloc.slurm.clean_environment import unfiltered
from slurm_colloc.slurm.client import ASK_S

# 'scontrol hold' is for jobs that wait; a running one is stopped, and waits until its user releases it.
_COMMANDS = {"hold": ("scontrol", "requeuehold"), "cancel": ("scancel",)}
# Of jobs that may not be requeued, and of interactive ones (slurm_strerror: ESLURM_DISABLED, ESLURM_BATCH_ONLY).
_NEVER = ("Requested operation is presently disabled", "Only batch jobs are accepted or processed")
_QUESTION = ("squeue", "-h", "-a", "-r", "-o", "%i|%u|%T|%S", "-j")


class QueuedJob(NamedTuple):
    """A job, or a task of an array, as squeue has it; ``start_s`` None where it has not begun."""

    job_id: str
    user: str
    state: str
    start_s: float | None


def act(state: State, finding: Finding, config: SiteConfig) -> Action:
    """Do to the job that a finding is about what the site says, and return what came of it.

    It is done only to the very run that the finding is about, and recorded before and after.
    """
    what = config.notices.actions[finding.rule]
    acted = Action(*key_of(finding), finding.digest, finding.user, what, BEGUN)
    state.act(acted, now())
    try:
        if finding.cluster != config.cluster:
            raise InputError(f"job {finding.subject} is of the cluster '{finding.cluster}'")
        if not _still_runs(finding, config):
            raise InputError(f"job {finding.subject} of {finding.user} does not run any more, or was started anew")
        # By the id that users write: slurmctld finds no task of an array by its raw one, and scancel ends with 0 then.
        ask((*_COMMANDS[what], finding.subject), ASK_S, _environment())
        if _still_runs(finding, config):
            raise ProcessError(f"job {finding.subject} runs on, although Slurm reported no error")
    except (ProcessError, InputError) as error:
        never = any(text in str(error) for text in _NEVER)
        return _end(state, acted, UNABLE if never else FAILED, str(error))
    return _end(state, acted, DONE, "")


def finish(state: State, config: SiteConfig) -> list[Action]:
    """Settle what a run began and was killed over, and return what came of it.

    Raises:
        InputError: squeue's answer is of another form.
        ProcessError: Slurm does not answer; it is settled later.
    """
    ended = []
    for acted in state.actions(BEGUN):
        runs = any((one.job_id, one.user) == (acted.subject, acted.user) for one in _running(acted.subject, config))
        became, reply = (FAILED, "cut short, and the job runs") if runs else (DONE, "cut short, and the job is stopped")
        ended.append(_end(state, acted, became, reply))
    return ended


def in_words(acted: Action) -> str:
    """Return what came of an action."""
    never = " is impossible for this job, and not tried again"
    said = {BEGUN: " begun", DONE: ": done", FAILED: " failed", UNABLE: never}[acted.state]
    return f"{acted.what}{said}" + (f": {acted.reply}" if acted.reply else "")


def _end(state: State, acted: Action, became: str, reply: str) -> Action:
    acted = acted._replace(state=became, reply=reply)
    state.act(acted, now())
    return acted


def _still_runs(finding: Finding, config: SiteConfig) -> bool:
    """Return whether the very run that was found still runs.

    Raises:
        InputError: squeue's answer is of another form.
        ProcessError: Slurm does not answer.
    """
    began = [line.start_s for line in finding.jobs if line.job_id == finding.subject]
    return any(
        (job.job_id, job.user) == (finding.subject, finding.user)
        and any(job.start_s is not None and abs(job.start_s - at_s) <= 1 for at_s in began)
        for job in _running(finding.subject, config)
    )


def _running(subject: str, config: SiteConfig) -> list[QueuedJob]:
    done = run((*_QUESTION, subject), ASK_S, _environment())
    if done.status and b"Invalid job id" not in done.stderr:
        raise ProcessError(f"'squeue' ended with status {done.status}: {done.stderr.decode(errors='replace').strip()}")
    return [job for job in parse_queued(done.stdout.decode(errors="surrogateescape")) if job.state == "RUNNING"]


def parse_queued(text: str) -> list[QueuedJob]:
    """Return the jobs in squeue's answer, in which times are seconds.

    Raises:
        InputError: a line of another form.
    """
    found = []
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) != 4:
            raise InputError(f"squeue printed '{line}', which is no job")
        start = fields[3]
        found.append(QueuedJob(fields[0], fields[1], fields[2], float(start) if start.isdecimal() else None))
    return found


def _environment() -> dict[str, str]:
    """Return the environment without what lets these programs pass over jobs, and with times in seconds."""
    return unfiltered(os.environ) | {"SLURM_TIME_FORMAT": "%s"}

# SPDX-License-Identifier: Apache-2.0
"""Holds or cancels jobs that stay idle after two notices, if the site asks for it."""

import os

from slurm_colloc.audit.ladder import BEGUN, DONE, FAILED, UNABLE, key_of
from slurm_colloc.audit.state import Action, State
from slurm_colloc.audit_model import Finding
from slurm_colloc.clock import now
from slurm_colloc.config import SiteConfig
from slurm_colloc.errors import InputError, ProcessError
from slurm_colloc.process import ask
from slurm_colloc.slurm.clean_environment import unfiltered
from slurm_colloc.slurm.client import ASK_S, CliClient
from slurm_colloc.slurm.jobs import QueuedJob

# 'scontrol hold' is for jobs that wait; a running one is stopped, and waits until its user releases it.
_COMMANDS = {"hold": ("scontrol", "requeuehold"), "cancel": ("scancel",)}
# Of jobs that may not be requeued, and of interactive ones (slurm_strerror: ESLURM_DISABLED, ESLURM_BATCH_ONLY).
_NEVER = ("Requested operation is presently disabled", "Only batch jobs are accepted or processed")


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
        if not _still_runs(finding):
            raise InputError(f"job {finding.subject} of {finding.user} does not run any more, or was started anew")
        # By the id that users write: slurmctld finds no task of an array by its raw one, and scancel ends with 0 then.
        ask((*_COMMANDS[what], finding.subject), ASK_S, unfiltered(os.environ))
        if _still_runs(finding):
            raise ProcessError(f"job {finding.subject} runs on, although Slurm reported no error")
    except (ProcessError, InputError) as error:
        never = any(text in str(error) for text in _NEVER)
        return _end(state, acted, UNABLE if never else FAILED, str(error))
    return _end(state, acted, DONE, "")


def finish(state: State) -> list[Action]:
    """Settle what a run began and was killed over, and return what came of it.

    Raises:
        ProcessError: Slurm does not answer; it is settled later.
    """
    ended = []
    for acted in state.actions(BEGUN):
        runs = any((one.job_id, one.user) == (acted.subject, acted.user) for one in _running(acted.subject))
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


def _still_runs(finding: Finding) -> bool:
    """Return whether the very run that was found still runs.

    Raises:
        ProcessError: Slurm does not answer.
    """
    began = [line.start_s for line in finding.jobs if line.job_id == finding.subject]
    return any(
        (job.job_id, job.user) == (finding.subject, finding.user)
        and any(job.start_s is not None and abs(job.start_s - at_s) <= 1 for at_s in began)
        for job in _running(finding.subject)
    )


def _running(subject: str) -> list[QueuedJob]:
    try:
        found = CliClient().queue("-r", "-j", subject)
    except ProcessError as error:
        if "Invalid job id" in str(error):
            return []
        raise
    return [job for job in found if job.state == "RUNNING"]

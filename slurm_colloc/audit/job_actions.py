# SPDX-License-Identifier: Apache-2.0
"""Holds or cancels jobs that stay idle after two notices, if the site asks for it."""

import os
from contextlib import suppress

from slurm_colloc.audit.escalation import ACTION, BEGUN, DONE, FAILED, TRIED, UNABLE, Notification, key_of
from slurm_colloc.audit.state import State
from slurm_colloc.core.audit_model import Finding
from slurm_colloc.core.clock import now
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.errors import InputError, ProcessError
from slurm_colloc.core.process import ask
from slurm_colloc.slurm.clean_environment import unfiltered
from slurm_colloc.slurm.client import ASK_S, CliClient
from slurm_colloc.slurm.jobs import QueuedJob

# 'scontrol hold' is for jobs that wait; a running one is stopped, and waits until its user releases it.
_COMMANDS = {"hold": ("scontrol", "requeuehold"), "cancel": ("scancel",)}
# Slurm says so of jobs that may not be requeued and of interactive ones (slurm_strerror's ESLURM_DISABLED and
# ESLURM_BATCH_ONLY).
_NEVER = ("Requested operation is presently disabled", "Only batch jobs are accepted or processed")
# A command that a killed run left, or a request that nobody answered in time, has come to nothing after so long.
_AT_WORK_S = 600.0


def act(state: State, finding: Finding, config: SiteConfig) -> Notification:
    """Do to the job that a finding is about what the site says, and return what came of it.

    It is done only to the very run that the finding is about, and recorded before and after.
    """
    kind, at_s = config.notices.actions[finding.rule], now()
    begun = Notification(
        *key_of(finding), finding.digest, ACTION, at_s, at_s, kind, BEGUN, finding.user, changed_s=at_s
    )
    # Whether Slurm had this command already, or has it now.
    delivered = any((row[:6], row.message) == (begun[:6], kind) for row in _unsettled(state))
    state.put(begun)
    try:
        if finding.cluster != config.cluster:
            raise InputError(f"job {finding.subject} is of the cluster '{finding.cluster}'")
        if not _still_runs(finding):
            raise InputError(f"job {finding.subject} of {finding.user} does not run any more, or was started anew")
        delivered = True
        # The id is as users write it: slurmctld finds no task of an array by its raw one, and scancel ends with 0 then.
        ask((*_COMMANDS[kind], finding.subject), ASK_S, unfiltered(os.environ))
        if _still_runs(finding):
            raise ProcessError(f"job {finding.subject} runs on, although Slurm reported no error")
    except (ProcessError, InputError) as error:
        outcome = TRIED if delivered else FAILED
        if any(text in str(error) for text in _NEVER):
            outcome = UNABLE
        return _end(state, begun, outcome, str(error))
    return _end(state, begun, DONE, "")


def finish(state: State) -> list[Notification]:
    """Settle what was begun or tried, by this run or another, and return of what became something else.

    Raises:
        ProcessError: Slurm does not answer; it is settled later.
    """
    ended = []
    for action in _unsettled(state):
        if not any((job.job_id, job.user) == (action.subject, action.user) for job in _running(action.subject)):
            by_itself = _ended_by_itself(action.subject)
            became, reply = (FAILED, by_itself) if by_itself else (DONE, "in doubt before, and the job is stopped")
        elif action.state == BEGUN:
            became, reply = TRIED, "cut short, and the job runs"
        elif now() - action.changed_s > _AT_WORK_S:
            became, reply = FAILED, action.reply
        else:
            continue
        done = _end(state, action, became, reply)
        ended += [done] if (became, reply) != (FAILED, action.reply) else []
    return ended


def _unsettled(state: State) -> list[Notification]:
    return [*state.actions(BEGUN), *state.actions(TRIED)]


def _end(state: State, action: Notification, became: str, reply: str) -> Notification:
    at_s = now()
    action = action._replace(last_seen_s=at_s, state=became, reply=reply, changed_s=at_s)
    state.put(action)
    return action


def _ended_by_itself(subject: str) -> str:
    """Return how a job ended that nobody cancelled; empty where it waits, or nobody knows."""
    with suppress(ProcessError, InputError):
        for run in CliClient().accounted(subject)[-1:]:
            if run.is_final and run.state != "CANCELLED":
                return f"the job ended by itself: {run.state}"
    return ""


def in_words(action: Notification) -> str:
    """Return what came of an action."""
    never = " is impossible for this job, and not tried again"
    outcome = {BEGUN: " begun", TRIED: " failed", DONE: ": done", FAILED: " failed", UNABLE: never}[action.state]
    return f"{action.message}{outcome}" + (f": {action.reply}" if action.reply else "")


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
        jobs = CliClient().queue("-r", "-j", subject)
    except ProcessError as error:
        if "Invalid job id" in str(error):
            return []
        raise
    return [job for job in jobs if job.state == "RUNNING"]

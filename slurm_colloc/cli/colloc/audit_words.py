# SPDX-License-Identifier: Apache-2.0
"""In words: what was done about a finding, what would be, and what comes next."""

from datetime import UTC, datetime

from slurm_colloc.audit.escalation import ACTION, DOUBTFUL, FIRST, NOTHING, SECOND, SENT, Planned, deadline_min
from slurm_colloc.audit.post import NOT_TAKEN
from slurm_colloc.core.audit_model import JOB
from slurm_colloc.core.config_audit import Notices
from slurm_colloc.core.units import in_words

DONE_TO_JOB = {"hold": "stopped, requeued and held", "cancel": "cancelled"}
_BECAME = {
    SENT: "notice handed over",
    DOUBTFUL: "notice in doubt",
    NOT_TAKEN: "notice not handed over",
}


def would(due: Planned, settings: Notices) -> str:
    """Return what would be done about a finding."""
    if due.step == NOTHING:
        return f"not told: {due.why}"
    if due.step == ACTION:
        return f"would get: {settings.actions[due.finding.rule]} ({due.why})"
    return f"would be told{' again' if due.step == SECOND else ''} ({due.why})"


def did(due: Planned, became: str) -> str:
    """Return what was done about a finding; ``became`` is what the mail came to, as Post.give says."""
    if not became:
        return "not told: the very mail went before"
    return f"{'second ' if due.step == SECOND else ''}{_BECAME[became]}"


def next_step(due: Planned, settings: Notices, now_s: float) -> str:
    """Return what a notice about a job says is done next."""
    finding, action = due.finding, settings.actions.get(due.finding.rule)
    if finding.about != JOB or action is None or finding.idle_since_s is None:
        return ""
    if due.step == FIRST:
        wait = in_words(60 * settings.job_wait_min)
        done = DONE_TO_JOB[action]
        return f"if the job is still idle in {wait}, you get a second and last notice; after that the job is {done}"
    earliest = datetime.fromtimestamp(now_s + 60 * deadline_min(settings), UTC)
    return f"unless the job uses its GPUs, it is {DONE_TO_JOB[action]} after {earliest:%Y-%m-%d %H:%M} UTC"

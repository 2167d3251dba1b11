# SPDX-License-Identifier: Apache-2.0
"""Jobs that idle on after two notices: stopped and held, or cancelled, where the site says so."""

import os
from typing import NamedTuple

from slurm_colloc.audit.ladder import BEGUN, DONE, FAILED
from slurm_colloc.audit.state import State
from slurm_colloc.audited import Finding
from slurm_colloc.clock import now
from slurm_colloc.config import SiteConfig
from slurm_colloc.errors import InputError, ProcessError
from slurm_colloc.process import ask, run

# 'scontrol hold' is for jobs that wait; a running one is stopped, and waits until its user releases it.
_COMMANDS = {"hold": ("scontrol", "requeuehold"), "cancel": ("scancel",)}
_QUESTION = ("squeue", "-h", "-a", "-r", "-o", "%i|%u|%T|%S", "-j")


class Runs(NamedTuple):
    """A job, or a task of an array, as squeue has it; ``start_s`` None where it has not begun."""

    job_id: str
    user: str
    state: str
    start_s: float | None


def act(state: State, finding: Finding, config: SiteConfig) -> str:
    """Do to the job that a finding is about what the site says, and return in words what came of it.

    It is done only to the very run that the finding is about, and recorded before and after.
    """
    what = config.notices.action
    state.act(finding, what, BEGUN, "", now())
    try:
        if finding.cluster != config.cluster:
            raise InputError(f"job {finding.subject} is of the cluster '{finding.cluster}'")
        if not _still_runs(finding, config):
            raise InputError(f"job {finding.subject} of {finding.user} does not run any more, or was started anew")
        # By the id that users write: slurmctld finds no task of an array by its raw one, and scancel ends with 0 then.
        ask((*_COMMANDS[what], finding.subject), config.timeouts.ask_slurm_s, _environment())
        if _still_runs(finding, config):
            raise ProcessError(f"job {finding.subject} runs on, although Slurm reported no error")
    except (ProcessError, InputError) as error:
        state.act(finding, what, FAILED, str(error), now())
        return f"{what} failed: {error}"
    state.act(finding, what, DONE, "", now())
    return f"{what}: done"


def _still_runs(finding: Finding, config: SiteConfig) -> bool:
    """Return whether the very run that was found still runs.

    Raises:
        InputError: squeue's answer is of another form.
        ProcessError: Slurm does not answer.
    """
    done = run((*_QUESTION, finding.subject), config.timeouts.ask_slurm_s, _environment())
    if done.status and b"Invalid job id" not in done.stderr:
        raise ProcessError(f"'squeue' ended with status {done.status}: {done.stderr.decode(errors='replace').strip()}")
    began = [line.start_s for line in finding.jobs if line.job_id == finding.subject]
    return any(
        (job.job_id, job.user, job.state) == (finding.subject, finding.user, "RUNNING")
        and any(job.start_s is not None and abs(job.start_s - at_s) <= 1 for at_s in began)
        for job in parse_runs(done.stdout.decode(errors="surrogateescape"))
    )


def parse_runs(text: str) -> list[Runs]:
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
        found.append(Runs(fields[0], fields[1], fields[2], float(start) if start.isdecimal() else None))
    return found


def _environment() -> dict[str, str]:
    """Return the environment without what lets these programs pass over jobs, and with times in seconds."""
    kept = {name: one for name, one in os.environ.items() if not name.startswith(("SQUEUE_", "SCANCEL_"))}
    return kept | {"SLURM_TIME_FORMAT": "%s"}

# SPDX-License-Identifier: Apache-2.0
"""colloc mail: text on a job's GPU use for Slurm's mail at its end (MailProg)."""

import os
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, NamedTuple

import typer

from slurm_colloc.accounting.aggregate import job_usage
from slurm_colloc.accounting.store import open_store
from slurm_colloc.cli.colloc.output import site, write
from slurm_colloc.cli.colloc.visible_store import visible_here
from slurm_colloc.clock import now
from slurm_colloc.config import SiteConfig
from slurm_colloc.errors import CollocError, InputError
from slurm_colloc.report.job import JobStory, RunStory, as_text
from slurm_colloc.slurm.client import CliClient
from slurm_colloc.slurm.job_visibility import Visible
from slurm_colloc.units import printable, time_span_s
from slurm_colloc.usage_model import JobUsage

# A mail tells of so many tasks of an array.
_TASKS = 3
_ID = re.compile(r"\d+", re.ASCII)
# Clocks differ, and a job's first and last reading may lie outside it.
_AROUND_S = 300.0


class Ended(NamedTuple):
    """The job that a mail is about, as slurmctld's environment has it; ``array`` where it is about all tasks."""

    job_id: str
    user: str
    ran_s: float
    array: bool


def mail(
    recipient: Annotated[str, typer.Argument(help="as slurmctld gives it; not looked at")],
    subject: Annotated[str, typer.Option("-s", help="as slurmctld gives it")] = "",
) -> None:
    """Print the text about a job's GPUs for the mail at its end. A NUL ends it; nothing for a job without."""
    config = site()
    job = parse_ended(os.environ, subject)
    if text := _story(config, job):
        write(f"{text}\0", "")


def parse_ended(environment: Mapping[str, str], subject: str) -> Ended:
    """Return the job that slurmctld calls MailProg for (22.05 to 26.05).

    Raises:
        InputError: it is not called by slurmctld, or otherwise than by these releases.
    """
    # A name of a job stands behind these words.
    array = subject.startswith("Slurm Array Summary ")
    job_id = environment.get("SLURM_ARRAY_JOB_ID" if array else "SLURM_JOB_ID", "")
    user = environment.get("SLURM_JOB_USER", "")
    if not _ID.fullmatch(job_id) or not user:
        raise InputError("SLURM_JOB_ID and SLURM_JOB_USER name no job; slurmctld sets them where it calls MailProg")
    ran_s = time_span_s(environment.get("SLURM_JOB_RUN_TIME", ""))
    # Of an array it is one task's, and others began before that one.
    return Ended(job_id, user, 7 * 86_400.0 if array else ran_s, array)


def _story(config: SiteConfig, job: Ended) -> str:
    until_s = now()
    since_s = until_s - job.ran_s - _AROUND_S
    try:
        folder = config.store_folder
        # Anybody can call this as slurmctld does, with anybody's name.
        if not visible_here(folder, config).shows(job.user, ""):
            return of_slurm(job)
        # Whatever else is known of jobs of that number, a mail is about its user's.
        store = open_store(folder, config, visible=Visible(False, job.user))
        found = job_usage(store, since_s, until_s, until_s)
        # A store may have another cluster's job of that number.
        runs = [run for run in found if run.cluster == config.cluster and _is(run, job) and run.state != "RUNNING"]
    except CollocError:  # the store is closed to SlurmUser, or damaged: what Slurm itself knows can still be said
        runs = []
    return of_runs(runs, job, since_s) if runs else of_slurm(job)


def _is(run: JobUsage, job: Ended) -> bool:
    return job.job_id == (run.job_id.partition("_")[0] if job.array else run.job_id_raw)


def of_runs(runs: Sequence[JobUsage], job: Ended, since_s: float) -> str:
    """Return what is told of runs that were measured; of a job that was requeued, the last."""
    shown = runs[:_TASKS] if job.array else runs[-1:]
    more = len(runs) - len(shown) if job.array else 0
    rest = f"and {more} more with GPUs: colloc job {job.job_id}\n" if more else ""
    return as_text(JobStory([RunStory(run) for run in shown], None, since_s)) + rest


def of_slurm(job: Ended) -> str:
    """Return what is told of a job that nothing measured is known of yet; nothing of a job without GPUs."""
    gres = CliClient().gres_of(job.job_id)
    if not gres:
        return ""
    had = ", ".join(printable(str(one)) for one in gres)
    return (
        f"Job {job.job_id} had {had}. What it used of that is not known yet; once its samples are taken in:\n"
        f"  colloc job {job.job_id}\n"
    )

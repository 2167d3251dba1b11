# SPDX-License-Identifier: Apache-2.0
"""colloc late: my waiting jobs that may get a piece of a GPU while they wait, and the way back."""

import os
from typing import Annotated

from typer import Option

from slurm_colloc.cli.colloc.options import Form
from slurm_colloc.cli.colloc.output import site, write
from slurm_colloc.cli.colloc.terminal import put
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.toml_text import key_line
from slurm_colloc.core.units import counted
from slurm_colloc.core.wording import MEANS
from slurm_colloc.rebind.forms import is_known
from slurm_colloc.rebind.look import look
from slurm_colloc.rebind.probe import holding, probe, trials_of
from slurm_colloc.rebind.waiting import Waiting, read_waiting
from slurm_colloc.report.text import json_text, minute
from slurm_colloc.slurm.client import CliClient

SCHEMA = 1
# How long a probe's jobs may wait and run: the scheduler goes round once a minute.
_PATIENCE_S = 180.0


def late(
    undo: Annotated[bool, Option("--undo", help="have all of them ask again for what was asked")] = False,
    probe_in: Annotated[
        str, Option("--probe", metavar="PARTITION", help="try there which requests this Slurm changes")
    ] = "",
    form: Form = "text",
) -> None:
    """Show my waiting jobs that may still get a piece of a GPU."""
    config = site()
    if probe_in:
        _probe(config, probe_in, form)
        return
    # Another cluster's queue would have none of the jobs that wait here.
    os.environ.pop("SLURM_CLUSTERS", None)
    undone = look(config, CliClient(), undo=True).undone if undo else ()
    jobs, unreadable = read_waiting(config.cluster)
    if form == "json":
        rows = [
            {"job_id": job.job_id, "asked": job.request.asked, "submitted_s": job.submitted_s, "change": job.change}
            for job in jobs
        ]
        write(json_text(SCHEMA, {"jobs": rows, "undone": undone, "unreadable": unreadable}), "")
        return
    if config.sharing.late_binding != "off" and not (is_known(config.slurm_release) or config.sharing.late_forms):
        put(
            f"Slurm {config.slurm_release}: no waiting job is changed\n"
            "csub does not know which updates of this release make a job start with a piece\n"
            "'colloc late --probe PARTITION' tries them, and prints what to write into site.toml\n"
        )
    for job in jobs:
        put(f"{job.job_id}: {_line(job)}\n")
    put(f"{counted(len(jobs), 'job')} may wait, {len(undone)} put back, {unreadable} files unreadable\n")


def _probe(config: SiteConfig, partition: str, form: str) -> None:
    """Try what forms.toml does for the newest release, and print what held: it is what late_forms names."""
    outcomes = probe(trials_of(config, partition), partition, CliClient(), _PATIENCE_S)
    held = holding(outcomes)
    if form == "json":
        rows = [{**outcome.trial._asdict(), "job_id": outcome.job_id, "why": outcome.why} for outcome in outcomes]
        write(json_text(SCHEMA, {"trials": rows, "late_forms": held}), "")
        return
    for trial, job_id, fault in outcomes:
        becomes = f"{trial.piece}, and {trial.gpu} again" if trial.is_back else str(trial.piece)
        put(f"{trial.asks} -> {becomes}: {fault or 'held'} (job {job_id})\n")
    put(f"[sharing]\n{key_line('late_forms', held)}\n")


def _line(job: Waiting) -> str:
    request, change = f"asked {job.request.asked} {minute(job.submitted_s)}", job.change
    if change is None:
        return f"{request}; {MEANS.get(job.left, job.left) or 'its need is not known yet'}"
    became = f"{request}; became {change.gres} {minute(change.at_s)}, by {counted(change.runs, 'run')} of the same job"
    if change.undone_s is not None:
        return f"{became}; as asked again {minute(change.undone_s)}: {MEANS.get(change.why, change.why)}"
    return became if change.back else f"{became}; Slurm knows no way back: scancel {job.job_id}, and csub once more"

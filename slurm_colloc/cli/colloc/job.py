# SPDX-License-Identifier: Apache-2.0
"""colloc job: one job's story."""

import os
from typing import Annotated

import typer

from slurm_colloc.accounting.feedback import collect_decisions
from slurm_colloc.accounting.store import Store
from slurm_colloc.accounting.sweep import job_usage
from slurm_colloc.cli.colloc.output import site_or_none, store_folder, window, write
from slurm_colloc.clock import now
from slurm_colloc.errors import InputError
from slurm_colloc.report.job import as_json, as_text


def job(
    job_id: Annotated[str, typer.Argument(help="as Slurm prints it")],
    since: Annotated[str, typer.Option("--since", help="look back so far")] = "365d",
    form: Annotated[str, typer.Option("--format", help="text or json")] = "text",
    store: Annotated[str, typer.Option("--store", help="folder of the store; else the site's")] = "",
) -> None:
    """Say what one job asked for, got and used."""
    formats = {"text": as_text, "json": as_json}
    if form not in formats:
        raise InputError(f"--format '{form}' is not one of {', '.join(formats)}")
    start, end = window(since, "now")
    usages = job_usage(Store(store_folder(store)), start.timestamp(), end.timestamp(), now())
    runs = [usage for usage in usages if usage.job_id == job_id]
    if not runs:
        raise InputError(f"job '{job_id}' is not in the store with a GPU; has 'colloc ingest' run since it started?")
    config = site_or_none()
    spool = config.paths.decisions if config else ""
    decisions = collect_decisions(spool).decisions if spool and os.access(spool, os.R_OK) else {}
    # Anybody may write a decision about any job id; the job's own user's is the one that was acted upon.
    decision = next((found for key, (_, found) in decisions.items() if key == (runs[-1].user, job_id)), None)
    write(formats[form](runs, decision), "")

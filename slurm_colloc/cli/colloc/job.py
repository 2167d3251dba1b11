# SPDX-License-Identifier: Apache-2.0
"""colloc job: one job's story."""

import os
import pwd
from collections.abc import Callable
from functools import partial
from typing import Annotated

import typer

from slurm_colloc.accounting.feedback import collect_decisions
from slurm_colloc.accounting.store import open_store
from slurm_colloc.accounting.sweep import job_usage
from slurm_colloc.cli.colloc.output import site_or_none, state_folder, window, write
from slurm_colloc.clock import now
from slurm_colloc.config import SiteConfig
from slurm_colloc.errors import InputError
from slurm_colloc.history.lookup import look_up
from slurm_colloc.history.records import read_decisions
from slurm_colloc.model import Decision, Evidence
from slurm_colloc.report.job import as_json, as_text
from slurm_colloc.report.text import stamp
from slurm_colloc.slurm.client import CliClient


def job(
    job_id: Annotated[str, typer.Argument(help="as Slurm prints it")],
    since: Annotated[str, typer.Option("--since", help="look back so far")] = "365d",
    form: Annotated[str, typer.Option("--format", help="text or json")] = "text",
    store: Annotated[str, typer.Option("--store", help="folder of the store; else the site's")] = "",
) -> None:
    """Say what one job asked for, got and used."""
    start, end = window(since, "now")
    formats: dict[str, Callable[..., str]] = {"text": partial(as_text, since_s=start.timestamp()), "json": as_json}
    if form not in formats:
        raise InputError(f"--format '{form}' is not one of {', '.join(formats)}")
    folder = store or state_folder("store")
    usages = job_usage(open_store(folder, site_or_none()), start.timestamp(), end.timestamp(), now())
    # The id of an array stands for its tasks, as with sacct.
    runs = [usage for usage in usages if job_id in (usage.job_id, usage.job_id.partition("_")[0])]
    if not runs:
        raise InputError(
            f"job '{job_id}' is not in the store '{folder}' with a GPU since {stamp(start)}; has it one, and has "
            "'colloc ingest' run since it started?"
        )
    config = site_or_none()
    # csub saw the id of an array, not those of its tasks; the sampler saw the task's own.
    decision = _decision(config, runs[-1].user, job_id.partition("_")[0]) if config else None
    evidence: dict[str, Evidence] = {}
    if config and decision:
        known = look_up(config, decision.signature, CliClient(config.timeouts.ask_slurm_s).job_states)
        evidence = {item.job_id: item for item in known.evidence}
    write(formats[form](runs, decision, evidence), "")


def _decision(config: SiteConfig, user: str, job_id: str) -> Decision | None:
    """Return what csub decided: from one's own decisions, or from the site's where they are open to us."""
    own, _ = read_decisions(config.decisions_folder)
    if user == _own_name():
        found = next((item for item in reversed(own) if item.job_id == job_id), None)
        if found:
            return found
    # Anybody may write a decision about any job id; the job's own user's is the one that was acted upon.
    spool = config.paths.decisions
    owned = collect_decisions(spool).decisions.get((user, job_id)) if spool and os.access(spool, os.R_OK) else None
    return owned[1] if owned else None


def _own_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container without this user
        return ""

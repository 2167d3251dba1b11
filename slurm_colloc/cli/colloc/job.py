# SPDX-License-Identifier: Apache-2.0
"""colloc job: one job's story."""

import os
import pwd
import re
from typing import Annotated

import typer

from slurm_colloc.accounting.feedback import collect_decisions
from slurm_colloc.accounting.store import open_store
from slurm_colloc.accounting.sweep import job_usage
from slurm_colloc.cli.colloc.job_step import STEP, step_story
from slurm_colloc.cli.colloc.output import say, site_or_none, state_folder, window, write
from slurm_colloc.cli.colloc.recovery import first_of, recovery_of
from slurm_colloc.clock import now
from slurm_colloc.config import SiteConfig
from slurm_colloc.errors import CollocError, InputError
from slurm_colloc.history.lookup import look_up
from slurm_colloc.history.records import read_decisions
from slurm_colloc.model import Decision, Evidence, JobUsage
from slurm_colloc.report.job import as_json, as_text
from slurm_colloc.report.pack import Pack, pack_record, pack_text, read_pack
from slurm_colloc.report.text import printable, stamp
from slurm_colloc.slurm.client import CliClient

# A heterogeneous job ("4711+0") is never one.
_PACKS = re.compile(r"\d+(?:_\d+)?", re.ASCII)


def job(
    job_id: Annotated[str, typer.Argument(help="as Slurm prints it")],
    since: Annotated[str, typer.Option("--since", help="look back so far")] = "365d",
    form: Annotated[str, typer.Option("--format", help="text or json")] = "text",
    store: Annotated[str, typer.Option("--store", help="folder of the store; else the site's")] = "",
) -> None:
    """Say what one job asked for, got and used."""
    start, end = window(since, "now")
    if form not in ("text", "json"):
        raise InputError(f"--format '{form}' is not one of text, json")
    config = site_or_none()
    if config and STEP.fullmatch(job_id):
        write(step_story(config, job_id, form), "")
        return
    folder = store or state_folder("store")
    # What a pack's job wrote down is there at once, before any ingest.
    pack = _pack(config, job_id) if config else None
    again = recovery_of(config, job_id) if config else ""
    first = first_of(config, job_id) if config else ""
    runs: list[JobUsage] = []
    try:
        usages = job_usage(open_store(folder, config), start.timestamp(), end.timestamp(), now())
        # The id of an array stands for its tasks, as with sacct.
        runs = [usage for usage in usages if job_id in (usage.job_id, usage.job_id.partition("_")[0])]
        if not runs:
            raise InputError(
                f"job '{job_id}' is not in the store '{folder}' with a GPU since {stamp(start)}; has it one, and has "
                "'colloc ingest' run since it started?"
            )
    except CollocError as error:
        if pack is None and not again and not first:
            raise
        say(f"what the job used of its GPU is not known: {error}")
    # csub saw the id of an array, not those of its tasks; the sampler saw the task's own.
    user = runs[-1].user if runs else _own_name()
    decision = _decision(config, user, job_id.partition("_")[0]) if config else None
    evidence: dict[str, Evidence] = {}
    if config and decision:
        known = look_up(config, decision.signature, CliClient(config.timeouts.ask_slurm_s).job_states)
        evidence = {item.job_id: item for item in known.evidence}
    if form == "json":
        write(as_json(runs, decision, evidence, pack_record(pack) if pack else None, again), "")
        return
    write(as_text(runs, decision, evidence, start.timestamp()), "")
    if pack:
        write(pack_text(pack), "")
    if first:
        write(f"measured first: {printable(first)}\n", "")
    if again:
        write(f"GPU memory: {printable(again)}\n", "")


def _pack(config: SiteConfig, job_id: str) -> Pack | None:
    """Return what one's own pack wrote down; what cannot be used is said."""
    if not _PACKS.fullmatch(job_id):
        return None
    try:
        return read_pack(config.cluster, job_id)
    except CollocError as error:
        say(f"what the tasks of a pack did is not known: {error}")
        return None


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

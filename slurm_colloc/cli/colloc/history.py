# SPDX-License-Identifier: Apache-2.0
"""colloc history: what csub decided for me, and what it knows of my jobs."""

import json
from datetime import datetime
from typing import Annotated

import typer

from slurm_colloc.cli.colloc.output import site, write
from slurm_colloc.errors import InputError
from slurm_colloc.estimate.ladder import estimate
from slurm_colloc.history.lookup import Known, look_up
from slurm_colloc.history.records import read_decisions
from slurm_colloc.report.text import printable, stamp
from slurm_colloc.slurm.client import CliClient


def history(
    form: Annotated[str, typer.Option("--format", help="text or json")] = "text",
    last: Annotated[int, typer.Option("--last", min=1, help="so many submissions")] = 20,
) -> None:
    """Show my last submissions by csub, and what is known of each of those jobs."""
    if form not in ("text", "json"):
        raise InputError(f"--format '{form}' is neither text nor json")
    config = site()
    decisions, unreadable = read_decisions(config.decisions_folder)
    client = CliClient(config.timeouts.ask_slurm_s)
    shown = []
    known_of: dict[str, Known] = {}  # Slurm may be asked at each look
    for decision in decisions[-last:]:
        if decision.signature not in known_of:
            known_of[decision.signature] = look_up(config, decision.signature, client.job_states)
        known = known_of[decision.signature]
        shown.append((decision, estimate(None, known.evidence)))
    if form == "json":
        records = [{"decision": decision._asdict(), "footprint": footprint._asdict()} for decision, footprint in shown]
        write(json.dumps({"submissions": records, "unreadable": unreadable}, indent=2) + "\n", "")
        return
    for decision, footprint in shown:
        memory = footprint.gpu_mem_peak_mib
        active = footprint.sm_active_pct
        size = f"{memory.q99:.0f} MiB" if memory else "memory not known"
        size += f", {active.q95:.0f} % of the SMs" if active else ", SM activity not known"
        at = datetime.fromtimestamp(decision.at_s).astimezone()
        write(
            f"{printable(decision.job_id)}  {printable(decision.job_name)}  {stamp(at)}\n"
            f"    asked {printable(decision.asked) or 'no GPU'}, given {printable(decision.how)}: "
            f"{printable('; '.join(decision.reasons))}\n"
            f"    known for the next submission: {size}; {printable(footprint.provenance)}\n",
            "",
        )
    write(f"{len(shown)} of {len(decisions)} submissions shown, {unreadable} files unreadable\n", "")

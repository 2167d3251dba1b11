# SPDX-License-Identifier: Apache-2.0
"""colloc history: what csub decided for me, and what it knows of my jobs."""

import json
from datetime import datetime
from typing import Annotated

import typer

from slurm_colloc.cli.colloc.output import site, write
from slurm_colloc.errors import CollocError, InputError
from slurm_colloc.estimate.ladder import estimate
from slurm_colloc.estimate.question import Question, question_of
from slurm_colloc.history.lookup import Known, look_up
from slurm_colloc.history.records import read_decisions
from slurm_colloc.model import Decision
from slurm_colloc.report.pack import pack_summary, read_pack
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
    decisions = [one for one in decisions if not one.notes_a_guest]
    client = CliClient(config.timeouts.ask_slurm_s)
    shown = []
    known_of: dict[str, Known] = {}  # Slurm may be asked at each look
    for decision in decisions[-last:]:
        if decision.is_pack:  # what a pack uses tells nothing of one task
            shown.append((decision, estimate(Question())))
            continue
        if decision.signature not in known_of:
            known_of[decision.signature] = look_up(config, decision.signature, client.job_states)
        shown.append((decision, estimate(question_of(decision, known_of[decision.signature]))))
    if form == "json":
        records = [
            {"decision": decision._asdict(), "footprint": footprint._asdict(), "pack": decision.is_pack}
            for decision, footprint in shown
        ]
        write(json.dumps({"submissions": records, "unreadable": unreadable}, indent=2) + "\n", "")
        return
    for decision, footprint in shown:
        at = datetime.fromtimestamp(decision.at_s).astimezone()
        write(
            f"{printable(decision.job_id)}  {printable(decision.job_name)}  {stamp(at)}{'  pack' * decision.is_pack}\n"
            f"    asked {printable(decision.asked) or 'no GPU'}, given {printable(decision.how)}: "
            f"{printable('; '.join(decision.reasons))}\n",
            "",
        )
        if decision.is_pack:
            write(f"    {_how_it_went(decision)}\n", "")
            continue
        memory = footprint.gpu_mem_peak_mib
        active = footprint.sm_active_pct
        size = f"{memory.q99:.0f} MiB" if memory else "memory not known"
        size += f", {active.q95:.0f} % of the SMs" if active else ", SM activity not known"
        write(
            f"    known for the next submission: {size}; {printable(footprint.provenance)}\n",
            "",
        )
    write(f"{len(shown)} of {len(decisions)} submissions shown, {unreadable} files unreadable\n", "")


def _how_it_went(decision: Decision) -> str:
    """Return how a pack's tasks went, as far as they are written down."""
    try:
        pack = read_pack(decision.cluster, decision.job_id)
    except CollocError as error:
        return f"how its tasks went is not known: {printable(str(error))}"
    if pack is None:
        return "it has not begun, or wrote nothing down"
    return f"{pack_summary(pack)}; see 'colloc job {printable(decision.job_id)}'"

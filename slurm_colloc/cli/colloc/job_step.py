# SPDX-License-Identifier: Apache-2.0
"""The story of a job that joined another one, by the id of its step."""

import json
import os
import re
from typing import NamedTuple

from slurm_colloc.config import SiteConfig
from slurm_colloc.errors import CollocError, InputError, ProcessError
from slurm_colloc.history.records import read_decisions
from slurm_colloc.model import Decision
from slurm_colloc.process import ask
from slurm_colloc.runtime.again_record import read_outcome, record_folder
from slurm_colloc.runtime.joined import files_of, read_started, read_task
from slurm_colloc.slurm.ended import parse_step, step_question
from slurm_colloc.units import printable

STEP = re.compile(r"\d+\.\d+", re.ASCII)


class _Story(NamedTuple):
    """What Slurm, csub and the step itself say; empty or None where they say nothing."""

    step: str
    slurm: dict[str, str]
    decision: Decision | None
    output: str
    error: str
    again: str


def step_story(config: SiteConfig, step: str, form: str) -> str:
    """Return the story of the joined job that is step ``step``, as text or JSON.

    Raises:
        InputError: neither Slurm nor csub knows such a joined job of this user's.
    """
    decisions, _ = read_decisions(config.decisions_folder)
    decision = next((one for one in reversed(decisions) if one.job_id == step), None)
    slurm = _asked(config, step)
    output, error, again = _kept(config, step, slurm.get("NodeList", ""))
    if decision is None and not output:
        raise InputError(f"step '{step}' is no job of yours that joined another one")
    story = _Story(step, slurm, decision, output, error, again)
    if form == "json":
        shown = story._asdict() | {"decision": decision._asdict() if decision else None}
        return json.dumps(shown, indent=2) + "\n"
    return "".join(f"{line}\n" for line in _lines(story))


def _asked(config: SiteConfig, step: str) -> dict[str, str]:
    try:
        return parse_step(ask(step_question(step), config.timeouts.ask_slurm_s).decode(errors="replace"))
    except ProcessError:
        return {}


def _kept(config: SiteConfig, step: str, node: str) -> tuple[str, str, str]:
    """Return the step's output and error file, and what became of it when its host had ended."""
    above = os.path.dirname(record_folder(config.cluster, "join"))
    names = os.listdir(above) if os.path.isdir(above) else []
    found = []
    for name in (name for name in names if name.startswith("join-")):
        folder = os.path.join(above, name)
        try:
            started = read_started(folder)
            if started is None or started.step != step:
                continue
            output, error, _ = files_of(read_task(folder), step, node)
            outcome = read_outcome(folder)
        except CollocError:
            continue
        found.append((started.at_s, (output, error, outcome.said if outcome else "")))
    # A job that is requeued numbers its steps anew; Slurm and csub's decisions speak of the last one, too.
    return max(found, default=(0.0, ("", "", "")))[1]


def _lines(story: _Story) -> list[str]:
    decision, slurm = story.decision, story.slurm
    name = printable(decision.job_name) if decision else "not known"
    state = (
        f"{slurm['State']}, exit code {slurm['ExitCode']}" if slurm else "Slurm's accounting does not say how it ended"
    )
    lines = [f"step {story.step} '{name}' inside job {story.step.partition('.')[0]}: {state}"]
    if slurm:
        lines.append(f"  ran        {slurm['Start']} to {slurm['End']} on {slurm['NodeList']}")
        lines.append(f"  host       {slurm['MaxRSS'] or 'memory not known'} at peak")
    if story.output:
        lines.append(f"  output     {printable(story.output)}")
    if story.error != story.output:
        lines.append(f"  errors     {printable(story.error)}")
    if decision:
        lines.append(
            f"  csub       {decision.given}, footprint: {decision.rung}: {printable('; '.join(decision.reasons))}"
        )
    if story.again:
        lines.append(f"  afterwards {printable(story.again)}")
    return lines

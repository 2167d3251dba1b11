# SPDX-License-Identifier: Apache-2.0
"""The rung of the first days: what past jobs of the same command used, whose script may have been another."""

from slurm_colloc.estimate.exact import from_runs
from slurm_colloc.estimate.question import Question
from slurm_colloc.model import Footprint

RUNG = "command"


def from_command(question: Question) -> Footprint | str:
    """Return the footprint that past jobs of the same file and arguments support, or why they support none."""
    if not question.by_command:
        return "no past job of the same command is known"
    # Its own runs are here only where none has completed: they bound.
    runs = sorted((*question.runs, *question.by_command), key=lambda run: run.ended_s)
    found = from_runs(question._replace(runs=runs))
    if isinstance(found, str):
        return found
    said = f"past jobs of the same command, whose script may have changed since: {found.provenance}"
    return found._replace(rung=RUNG, provenance=said)

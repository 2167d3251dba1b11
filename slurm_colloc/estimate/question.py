# SPDX-License-Identifier: Apache-2.0
"""What a rung of the ladder is asked, and what it answers: a Footprint, or in words why it has none."""

from collections.abc import Sequence
from typing import NamedTuple

from slurm_colloc.estimate.calibration import SHIPPED, Calibration
from slurm_colloc.history.lookup import Known
from slurm_colloc.model import Decision, Evidence


class Question(NamedTuple):
    """One job, and all that is known of it.

    ``signature`` and ``numbers`` (the names of the numbers in it) are the job's. ``runs`` are earlier runs of the very
    job, ``relatives`` those of jobs that differ from it in numbers, or by an edit of their program; both oldest first.
    """

    hint: str | None = None
    signature: str = ""
    numbers: tuple[str, ...] = ()
    runs: Sequence[Evidence] = ()
    relatives: Sequence[Evidence] = ()
    calibration: Calibration = SHIPPED


def question_of(decision: Decision, known: Known) -> Question:
    """Return the question about the next submission of a job like this one, which gave no hint."""
    return Question(None, decision.signature, decision.numbers, known.evidence, known.relatives)

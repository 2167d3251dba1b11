# SPDX-License-Identifier: Apache-2.0
"""The question to an estimator. It answers with a Footprint, or the reason why it has none."""

from collections.abc import Sequence
from typing import NamedTuple

from slurm_colloc.core.model import Evidence
from slurm_colloc.estimate.calibration import SHIPPED, Calibration
from slurm_colloc.estimate.lookup import Known
from slurm_colloc.estimate.records import peak_mib


class Question(NamedTuple):
    """One job, and all that is known of it.

    ``signature`` and ``numbers`` (the names of the numbers in it) are the job's. ``runs`` are earlier runs of the very
    job, ``relatives`` those of jobs that differ from it in numbers, or read more than was seen; both oldest first.
    ``running`` are those of the runs that Slurm says are not over, which count once ``settle_s`` of them were sampled;
    0: never.
    """

    hint: str | None = None
    signature: str = ""
    numbers: tuple[str, ...] = ()
    runs: Sequence[Evidence] = ()
    relatives: Sequence[Evidence] = ()
    calibration: Calibration = SHIPPED
    by_command: Sequence[Evidence] = ()
    running: Sequence[Evidence] = ()
    settle_s: float = 0.0


def most_shown(runs: Sequence[Evidence], model: str) -> float:
    """Return the most memory that any of these runs held on a GPU of that model, or of one not known, in MiB.

    However a run ended, its job needs no less; 0 without such runs. An empty model is any.
    """
    return max((float(peak_mib(run)) for run in runs if not model or run.gpu_model in (model, "")), default=0.0)


def question(signature: str, numbers: tuple[str, ...], known: Known, hint: str | None = None) -> Question:
    """Return the question about a job of which this is known."""
    return Question(
        hint,
        signature,
        numbers,
        known.evidence,
        known.relatives,
        by_command=known.by_command,
        running=known.running,
    )


def settles_after_s(least_s: float, limit_min: float | None) -> float:
    """Return for how long a run that goes on must have been sampled to count for a job of this time limit.

    That is a tenth of the limit, six seconds of each minute; 0: it never counts.
    """
    return least_s and max(least_s, 6 * (limit_min or 0))

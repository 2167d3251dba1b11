# SPDX-License-Identifier: Apache-2.0
"""What a rung of the ladder is asked, to answer with a Footprint or the reason why it has none."""

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from slurm_colloc.errors import InputError
from slurm_colloc.estimate.calibration import SHIPPED, Calibration
from slurm_colloc.history.lookup import Known
from slurm_colloc.history.snapshot import FamilyUse
from slurm_colloc.model import Decision, Evidence
from slurm_colloc.slurm.gres import parse_gres


class Question(NamedTuple):
    """One job, and all that is known of it.

    ``signature`` and ``numbers`` (the names of the numbers in it) are the job's. ``runs`` are earlier runs of the very
    job, ``relatives`` those of jobs that differ from it in numbers, or read more than was seen; both oldest first.
    ``families`` is what the user's other jobs used, ``trusts_prior`` that the site lets them speak for a job of which
    nothing else is known, ``names_gpu_type`` that the request names a type of GPU.
    """

    hint: str | None = None
    signature: str = ""
    numbers: tuple[str, ...] = ()
    runs: Sequence[Evidence] = ()
    relatives: Sequence[Evidence] = ()
    calibration: Calibration = SHIPPED
    by_command: Sequence[Evidence] = ()
    corrected: str = ""
    families: Sequence[FamilyUse] = ()
    trusts_prior: bool = False
    names_gpu_type: bool = False


def most_shown(runs: Sequence[Evidence], model: str) -> float:
    """Return the most memory that any of these runs held on a GPU of that model, or of one not known, in MiB.

    However a run ended, its job needs no less; 0 without such runs. An empty model is any.
    """
    shown = (float(run.gpu_mem_peak_mib or 0) for run in runs if not model or run.gpu_model in (model, ""))
    return max(shown, default=0.0)


def question_of(decision: Decision, known: Known, *, trusts_prior: bool = False) -> Question:
    """Return the question about the next submission of a job like this one, which gave no hint."""
    asked = question(decision.signature, decision.numbers, known)
    return asked._replace(trusts_prior=trusts_prior, names_gpu_type=_names_gpu_type(decision))


def _names_gpu_type(decision: Decision) -> bool:
    with suppress(InputError):
        return any(gres.type for gres in parse_gres(decision.asked) if gres.name == "gpu")
    return True


def question(signature: str, numbers: tuple[str, ...], known: Known, hint: str | None = None) -> Question:
    """Return the question about a job of which this is known."""
    return Question(
        hint,
        signature,
        numbers,
        known.evidence,
        known.relatives,
        by_command=known.by_command,
        corrected=known.said.hint,
        families=known.families,
    )

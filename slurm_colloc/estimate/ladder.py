# SPDX-License-Identifier: Apache-2.0
"""The ladder of evidence: the first rung that can carry an answer gives it, and the last one says "not known"."""

from collections.abc import Callable

from slurm_colloc.estimate.exact import from_runs, more_than, out_of_memory
from slurm_colloc.estimate.hint import parse_hint
from slurm_colloc.estimate.near import from_relatives
from slurm_colloc.estimate.question import Question
from slurm_colloc.model import Footprint, Quantiles

UNKNOWN_RUNG = "unknown"
# In order of trust; what the user says comes before all of them.
MEASURED: tuple[Callable[[Question], Footprint | str], ...] = (from_runs, from_relatives)


def estimate(question: Question) -> Footprint:
    """Return what a job is expected to need.

    Raises:
        InputError: a hint outside its grammar; an answer in its place would ignore what the user said.
    """
    if question.hint is not None:
        return _hinted(question.hint, question)
    reasons = []
    for rung in MEASURED:
        found = rung(question)
        if isinstance(found, Footprint):
            return found
        reasons.append(found)
    # A reason why relatives say nothing is of interest only where there are some.
    said = "; ".join(reasons if question.relatives else reasons[:1])
    return Footprint(None, None, None, "", UNKNOWN_RUNG, 0, said)


def _hinted(hint: str, question: Question) -> Footprint:
    given = _raised(parse_hint(hint), question)
    found = from_runs(question)
    if isinstance(found, str):
        return given
    # What the user did not say is not unknown when it was measured.
    given = given._replace(run_time_s=found.run_time_s)
    if given.dram_active_pct is None:
        given = given._replace(dram_active_pct=found.dram_active_pct)
    if given.sm_active_pct is None and found.sm_active_pct is not None:
        provenance = f"{given.provenance}; SM activity from {found.provenance}"
        return given._replace(sm_active_pct=found.sm_active_pct, gpu_model=found.gpu_model, provenance=provenance)
    return given


def _raised(given: Footprint, question: Question) -> Footprint:
    """Return what the user said, but no less than what did not suffice before."""
    run, said = out_of_memory(question.runs), given.gpu_mem_peak_mib
    if run is None or said is None or (least := float(run.gpu_mem_peak_mib or 0)) <= said.q99:
        return given
    return given._replace(
        gpu_mem_peak_mib=Quantiles(least, least, least), provenance=f"{given.provenance}; raised: {more_than(run)}"
    )

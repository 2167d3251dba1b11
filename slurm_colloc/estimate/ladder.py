# SPDX-License-Identifier: Apache-2.0
"""Asks the estimators in order. The first that can answer does; the last one says "not known"."""

from collections.abc import Callable, Iterator

from slurm_colloc.core.model import Footprint, Quantiles, Reason, because
from slurm_colloc.estimate.exact import RUNG as EXACT
from slurm_colloc.estimate.exact import from_command, from_runs, out_of_memory, raised_by
from slurm_colloc.estimate.hint import parse_hint
from slurm_colloc.estimate.question import Question
from slurm_colloc.estimate.signature import BY_SESSION

UNKNOWN_RUNG = "unknown"


def estimate(question: Question) -> Footprint:
    """Return what a job is expected to need.

    Raises:
        InputError: a hint outside its grammar; an answer in its place would ignore what the user said.
    """
    if question.hint is not None:
        return _hinted(parse_hint(question.hint), question)
    reasons = []
    for rung in _rungs(question):
        answer = rung(question)
        if isinstance(answer, Footprint):
            return _as_busy_as_relatives(answer, question) if answer.rung == EXACT else _above_smaller(answer, question)
        reasons.append(answer)
    return Footprint(None, None, None, "", UNKNOWN_RUNG, 0, tuple(reasons))


def _rungs(question: Question) -> Iterator[Callable[[Question], Footprint | Reason]]:
    """Yield the rungs to be asked, in order of trust; a rung of use to few submissions is loaded for them alone.

    A reason why others say nothing is of interest only where there are some.
    """
    if question.signature.startswith(BY_SESSION):
        from slurm_colloc.estimate.sessions import from_sessions

        yield from_sessions
        return
    yield from_runs
    if question.runs:
        from slurm_colloc.estimate.interrupted import from_cut_runs, is_cut

        if any(map(is_cut, question.runs)):
            yield from_cut_runs
    if question.relatives:
        from slurm_colloc.estimate.near import from_relatives

        yield from_relatives
    if question.by_command:
        yield from_command
    if question.running and question.settle_s:
        from slurm_colloc.estimate.interrupted import from_running_runs

        yield from_running_runs


def _above_smaller(footprint: Footprint, question: Question) -> Footprint:
    """Return the footprint, but no less than what runs held that were no larger, however they ended."""
    memory = footprint.gpu_mem_peak_mib
    if memory is None or not question.relatives:
        return footprint
    from slurm_colloc.estimate.near import most_of_smaller

    run = most_of_smaller(question, footprint.gpu_model, memory.q99)
    if run is None:
        return footprint
    least = run.gpu_mem_peak_mib or 0
    provenance = (*footprint.provenance, because("raised-by-smaller", least_mib=least, job_id=run.job_id))
    return footprint._replace(gpu_mem_peak_mib=memory._replace(q99=float(least)), provenance=provenance)


def _as_busy_as_relatives(footprint: Footprint, question: Question) -> Footprint:
    """Return the footprint of a job's own runs, with the SM activity of its relatives where those had only shares."""
    if footprint.sm_active_pct is not None or not question.relatives:
        return footprint
    from slurm_colloc.estimate.near import from_relatives

    near = from_relatives(question)
    if isinstance(near, Reason) or near.sm_active_pct is None or near.gpu_model != footprint.gpu_model:
        return footprint
    said = (*footprint.provenance, because("sm-of-relatives", runs=near.evidence_count))
    dram = footprint.dram_active_pct or near.dram_active_pct
    return footprint._replace(
        sm_active_pct=near.sm_active_pct, busy_pct=near.busy_pct, dram_active_pct=dram, provenance=said
    )


def estimate_at_site(question: Question, state_folder: str) -> Footprint:
    """Return what a job is expected to need, by the site's own margins where it has some.

    Raises:
        InputError: a hint outside its grammar.
    """
    if not state_folder or not (question.runs or question.relatives or question.by_command):
        return estimate(question)
    from slurm_colloc.estimate.site_margins import site_calibration  # a job of which nothing is known has no use for it

    calibration, note = site_calibration(state_folder)
    footprint = estimate(question._replace(calibration=calibration))
    return footprint._replace(provenance=(*footprint.provenance, note)) if note and footprint.margin else footprint


def _hinted(hinted: Footprint, question: Question) -> Footprint:
    hinted = _raised(hinted, question)
    measured = next(_rungs(question))(question)
    if isinstance(measured, Reason):
        return hinted
    measured = _as_busy_as_relatives(measured, question)
    # A number that the user did not say is not unknown when it was measured.
    hinted = hinted._replace(
        run_time_s=measured.run_time_s,
        cpu_cores=measured.cpu_cores,
        host_mem_mib=measured.host_mem_mib,
        dram_active_pct=hinted.dram_active_pct or measured.dram_active_pct,
    )
    if hinted.sm_active_pct is None and measured.sm_active_pct is not None:
        provenance = (*hinted.provenance, because("sm-from-runs"), *measured.provenance)
        return hinted._replace(
            sm_active_pct=measured.sm_active_pct,
            busy_pct=measured.busy_pct,
            gpu_model=measured.gpu_model,
            provenance=provenance,
        )
    return hinted


def _raised(hinted: Footprint, question: Question) -> Footprint:
    """Return what the user said, but no less than what did not suffice before."""
    run, memory = out_of_memory(question.runs), hinted.gpu_mem_peak_mib
    if run is None or memory is None or (least := float(run.gpu_mem_peak_mib or 0)) <= memory.q99:
        return hinted
    provenance = (*hinted.provenance, *raised_by(question.runs, least))
    return hinted._replace(gpu_mem_peak_mib=Quantiles(least, least, least), provenance=provenance)

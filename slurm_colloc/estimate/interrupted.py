# SPDX-License-Identifier: Apache-2.0
"""Estimators from runs of the same job that have not shown all of it, if their memory had stopped growing.

A time limit has cut them, or they go on. If their memory had stopped growing by half of the time sampled, the rest of
the job is taken to need not much more: a training step repeats itself.
"""

from collections.abc import Sequence

from slurm_colloc.core.model import LEAST_SAMPLES, Evidence, Footprint, Reason, because
from slurm_colloc.estimate.calibration import RUNNING
from slurm_colloc.estimate.exact import MARGIN, footprint_by, is_greedy
from slurm_colloc.estimate.question import Question

RUNG = "probe"
_AT_REST_BY = _RAN_FOR = 0.5
# A run whose GPU did nothing all the time (it loads data, it waits for a server) has not begun to need memory.
_IDLE_PCT = 1.0


def is_cut(run: Evidence) -> bool:
    """Return whether a time limit has cut a run."""
    return run.state == "TIMEOUT"


def from_cut_runs(question: Question) -> Footprint | Reason:
    """Return the footprint that runs cut at a time limit support, or why they support none."""
    cut = list(filter(is_cut, question.runs))
    at_rest = list(filter(_was_at_rest, cut))
    return _by(question, at_rest, RUNG, "cut-at-rest") if at_rest else because("cut-while-growing", runs=len(cut))


def from_running_runs(question: Question) -> Footprint | Reason:
    """Return the footprint that runs which go on support, or why they support none yet."""
    if settled := [run for run in question.running if has_settled(run, question.settle_s)]:
        return _by(question, settled, RUNNING, "running-at-rest", RUNNING)
    sampled_s, job_id = max((run.sampled_s, run.job_id) for run in question.running)
    return because("not-settled", job_id=job_id, sampled_s=sampled_s, settle_s=question.settle_s)


def has_settled(run: Evidence, after_s: float) -> bool:
    """Return whether a run that goes on has shown what the job needs."""
    # Kernels that have just begun show little, and memory is at rest while none runs; none is seen without SM activity.
    ran_s = run.ran_s or 0.0
    is_known = run.sampled_s >= after_s and ran_s >= run.sampled_s * _RAN_FOR
    return is_known and _was_at_rest(run._replace(sampled_s=ran_s))


def _by(question: Question, at_rest: Sequence[Evidence], rung: str, code: str, margin: str = MARGIN) -> Footprint:
    model = at_rest[-1].gpu_model
    at_rest = [run for run in at_rest if run.gpu_model == model]
    said = [because(code, runs=len(at_rest), gpu_model=model)]
    return footprint_by(question, at_rest, rung, len(at_rest), said, name=margin)


def _was_at_rest(run: Evidence) -> bool:
    return (
        bool(run.gpu_mem_peak_mib)
        and run.sample_count >= LEAST_SAMPLES
        and run.grew_until_s is not None
        and run.grew_until_s <= run.sampled_s * _AT_REST_BY
        and not is_greedy(run)
        and (run.sm_active_q95_pct is None or run.sm_active_q95_pct >= _IDLE_PCT)
    )

# SPDX-License-Identifier: Apache-2.0
"""A rung that is asked for: what the job's tensors hold, seen by running its program without a GPU (csub --trace).

Tensors are not all: the context, the libraries' workspaces and what the allocator loses come on top. How much that is,
one measured run of a relative says that was traced too; without one the margin is wide. All but the context is expected
to grow with the tensors; but a smaller job must have room for as much on top as the larger one had.
"""

import math

from slurm_colloc.estimate.exact import dram_active, sm_active, under_mps, usable
from slurm_colloc.estimate.near import CONTEXT_MIB, scaled
from slurm_colloc.estimate.question import Question, most_shown
from slurm_colloc.model import Evidence, Footprint, Quantiles

RUNG = "trace"
# Peak over what was traced, without a run to compare with: fitted to 240 configurations of 16 networks on an H200.
# [measured, tests/gpu/footprints_h200.csv, docs/explanation/estimate.md]
_SLOPE, _REST_MIB = 1.12, 850.0
# A job that holds less for being smaller can still hold as much as a larger one: runs differ by so much.
CAP = 1.05
# Further apart nobody has compared two traced runs.
_FARTHEST = 16.0


def from_trace(question: Question) -> Footprint | str:
    """Return the footprint that the job's trace supports, or the reason why there is none."""
    traces = dict(question.traces)
    traced = traces.get(question.signature)
    if not traced:
        return "it was not traced"
    completed = usable(question.relatives)
    known = [] if isinstance(completed, str) else [run for run in completed if _near(traced, traces.get(run.signature))]
    return _from_one(question, traced, known, traces) if known else _alone(question, traced)


def _near(traced: float, other: float | None) -> bool:
    return other is not None and 1 / _FARTHEST <= traced / other <= _FARTHEST


def _from_one(question: Question, traced: float, known: list[Evidence], traces: dict[str, float]) -> Footprint:
    """Return what the measured run that is nearest in size held beside its context, in proportion to the tensors."""
    nearest = min(known, key=lambda run: (abs(math.log(traced / traces[run.signature])), -run.ended_s))
    ratio, peak = traced / traces[nearest.signature], float(nearest.gpu_mem_peak_mib or 0)
    # What a run held beside its tensors is the most that its context can have been; downwards the larger is the safer.
    context = min(CONTEXT_MIB, peak if ratio < 1 else max(0.0, peak - traces[nearest.signature]))
    active, how = sm_active([nearest])
    if ratio >= 1:
        name, least, most = "trace-one", 0.0, math.inf
    else:
        name, least, most = "trace-one-below", traced + peak - traces[nearest.signature], peak * CAP
    margin = question.calibration.margin(name)
    said = (
        f"{traced:.0f} MiB of tensors traced, and job {nearest.job_id} on {nearest.gpu_model} used {peak:.0f} MiB with "
        f"{traces[nearest.signature]:.0f} MiB of them{under_mps([nearest])}; margin {margin}{how}"
    )
    found = _footprint(question, context + (peak - context) * ratio, name, nearest.gpu_model, said, least, most)
    dram = dram_active([nearest])
    return found._replace(sm_active_pct=scaled(active, ratio), dram_active_pct=scaled(dram, ratio), evidence_count=1)


def _alone(question: Question, traced: float) -> Footprint:
    margin = question.calibration.margin("trace-alone")
    said = f"{traced:.0f} MiB of tensors traced, no measured run to compare with; margin {margin}"
    return _footprint(question, _SLOPE * traced + _REST_MIB, "trace-alone", "", said)


def _footprint(
    question: Question, q50: float, name: str, model: str, said: str, least_mib: float = 0.0, most_mib: float = math.inf
) -> Footprint:
    margin = question.calibration.margin(name)
    q99 = max(min(max(q50 * margin.factor, least_mib), most_mib), most_shown(question.runs, model))
    memory = Quantiles(q50, (q50 + q99) / 2, q99)
    found = Footprint(memory, None, None, model, RUNG, 0, said)
    return found._replace(margin=name, expected_mib=q50, confidence=margin.confidence)

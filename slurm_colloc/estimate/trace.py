# SPDX-License-Identifier: Apache-2.0
"""A rung that is asked for: what the job's tensors hold, seen by running its program without a GPU (csub --trace).

Tensors are not all: the context, the libraries' workspaces and what the allocator loses come on top. How much that is,
one measured run of a relative says that was traced too; without one the margin is wide.
"""

import math

from slurm_colloc.estimate.exact import dram_active, sm_active, under_mps, usable
from slurm_colloc.estimate.near import CONTEXT_MIB, scaled
from slurm_colloc.estimate.question import Question, most_shown
from slurm_colloc.model import Evidence, Footprint, Quantiles

RUNG = "trace"
# Peak over what was traced, 4,248 runs of 1,017 vision models on an A100 [docs/explanation/estimate.md].
_SLOPE, _REST_MIB = 0.657, 2560.0


def from_trace(question: Question) -> Footprint | str:
    """Return the footprint that the job's trace supports, or the reason why there is none."""
    traces = dict(question.traces)
    traced = traces.get(question.signature)
    if not traced:
        return "it was not traced"
    completed = usable(question.relatives)
    known = [run for run in completed if run.signature in traces] if not isinstance(completed, str) else []
    return _from_one(question, traced, known, traces) if known else _alone(question, traced)


def _from_one(question: Question, traced: float, known: list[Evidence], traces: dict[str, float]) -> Footprint:
    """Return what the tensors hold, and what came on top in the measured run that is nearest in size."""
    nearest = min(known, key=lambda run: (abs(math.log(traced / traces[run.signature])), -run.ended_s))
    ratio = traced / traces[nearest.signature]
    offset = (nearest.gpu_mem_peak_mib or 0) - traces[nearest.signature]
    margin = question.calibration.margin("trace-one")
    active, how = sm_active([nearest])
    said = (
        f"{traced:.0f} MiB of tensors traced, and {offset:+.0f} MiB as job {nearest.job_id} on {nearest.gpu_model} "
        f"used over its own {traces[nearest.signature]:.0f} MiB{under_mps([nearest])}; margin {margin}{how}"
    )
    # Where the trace says more than was used, as large a part of it is too much.
    least = traced * (nearest.gpu_mem_peak_mib or 0) / traces[nearest.signature] if offset < 0 else 0.0
    if least > traced + offset:
        said += "; or as large a part of what was traced, which is more"
    found = _footprint(question, max(traced + offset, least, 1.0), "trace-one", nearest.gpu_model, said)
    dram = dram_active([nearest])
    return found._replace(sm_active_pct=scaled(active, ratio), dram_active_pct=scaled(dram, ratio), evidence_count=1)


def _alone(question: Question, traced: float) -> Footprint:
    margin = question.calibration.margin("trace-alone")
    # Less than its tensors and a context it cannot need.
    expected = max(_SLOPE * traced + _REST_MIB, traced + CONTEXT_MIB)
    said = f"{traced:.0f} MiB of tensors traced, no measured run to compare with; margin {margin}"
    return _footprint(question, expected, "trace-alone", "", said)


def _footprint(question: Question, q50: float, name: str, model: str, said: str) -> Footprint:
    margin = question.calibration.margin(name)
    q99 = max(q50 * margin.factor, most_shown(question.runs, model))
    memory = Quantiles(q50, (q50 + q99) / 2, q99)
    found = Footprint(memory, None, None, model, RUNG, 0, said)
    return found._replace(margin=name, expected_mib=q50, confidence=margin.confidence)

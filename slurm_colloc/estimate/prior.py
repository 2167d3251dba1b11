# SPDX-License-Identifier: Apache-2.0
"""The last rung: what the user's other jobs used, each family of them counted once.

Of n families and a further one like them the ceil((n + 1) x coverage)-th smallest peak is enough with that coverage,
which takes 49 families. A job that names a type of GPU is none of them: its user chose the card for what it needs.
"""

import math
from collections.abc import Sequence

from slurm_colloc.estimate.calibration import conformal
from slurm_colloc.estimate.exact import median
from slurm_colloc.estimate.question import Question, most_shown
from slurm_colloc.model import Footprint, Quantiles, Reason, because

RUNG = "prior"
COVERAGE = 0.98
FEWEST = math.ceil(COVERAGE / (1 - COVERAGE) - 1e-9)


def from_prior(question: Question) -> Footprint | Reason:
    """Return the footprint that the user's other jobs support, or the reason why they support none."""
    if question.names_gpu_type:
        return because("gpu-type-named")
    models = [family.gpu_model for family in question.families]
    model = max(sorted(set(models)), key=models.count)
    of_model = [family for family in question.families if family.gpu_model == model]
    peaks = _covering([float(family.peak_mib) for family in of_model])
    if peaks is None:
        return because("too-few-other-jobs", jobs=len(of_model), gpu_model=model, needed=FEWEST)
    margin = question.calibration.margin(RUNG)
    return Footprint(
        margin=RUNG,
        expected_mib=peaks.q99,
        confidence=margin.confidence,
        gpu_mem_peak_mib=peaks._replace(q99=max(peaks.q99 * margin.factor, most_shown(question.runs, ""))),
        sm_active_pct=_covering([family.sm for family in of_model if family.sm is not None]),
        run_time_s=None,
        gpu_model=model,
        rung=RUNG,
        evidence_count=len(of_model),
        provenance=(
            because("other-jobs", covered_pct=100 * COVERAGE, jobs=len(of_model), gpu_model=model),
            margin.reason,
        ),
        dram_active_pct=_covering([family.dram for family in of_model if family.dram is not None]),
    )


def _covering(values: Sequence[float]) -> Quantiles | None:
    found = conformal(values, COVERAGE)
    return found and Quantiles(median(values), found.factor, found.factor)

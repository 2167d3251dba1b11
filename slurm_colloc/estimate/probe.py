# SPDX-License-Identifier: Apache-2.0
"""The rung behind the exact one: runs of the very job that were cut at a time limit, with their memory at rest.

A run that was cut has not shown its peak. Where its memory had stopped growing by half of what was sampled, the rest of
the job is taken to need not much more: a training step repeats itself.
"""

from slurm_colloc.estimate.exact import (
    MARGIN,
    dram_active,
    is_greedy,
    median,
    more_than,
    out_of_memory,
    sm_active,
)
from slurm_colloc.estimate.question import Question, most_shown
from slurm_colloc.model import LEAST_SAMPLES, Evidence, Footprint, Quantiles
from slurm_colloc.units import counted

RUNG = "probe"
_AT_REST_BY = 0.5
# Whose GPU did nothing all the time (it loads data, it waits for a server) has not begun to need memory.
_IDLE_PCT = 1.0


def from_cut_runs(question: Question) -> Footprint | str:
    """Return the footprint that runs cut at a time limit support, or why they support none; empty without such runs."""
    cut = [run for run in question.runs if run.state == "TIMEOUT"]
    if not cut:
        return ""
    at_rest = [run for run in cut if _was_at_rest(run)]
    if not at_rest:
        return f"{counted(len(cut), 'run')} cut at a time limit, while memory still grew or too little was seen of it"
    model = at_rest[-1].gpu_model
    at_rest = [run for run in at_rest if run.gpu_model == model]
    peaks = sorted(float(run.gpu_mem_peak_mib or 0) for run in at_rest)
    margin = question.calibration.margin(MARGIN)
    q99 = max(margin.over(peaks[-1]), most_shown(question.runs, model))
    active, how = sm_active(at_rest)
    if (least := out_of_memory(question.runs)) and least.gpu_mem_peak_mib == q99:
        how = f"; {more_than(least)}{how}"
    runs = f"{counted(len(at_rest), 'run')}"
    said = f"{runs} on {model} cut at a time limit, memory at rest by half of it, margin {margin}"
    found = Footprint(Quantiles(median(peaks), peaks[-1], q99), active, None, model, RUNG, len(at_rest), f"{said}{how}")
    return found._replace(
        dram_active_pct=dram_active(at_rest), margin=MARGIN, expected_mib=peaks[-1], confidence=margin.confidence
    )


def _was_at_rest(run: Evidence) -> bool:
    return (
        bool(run.gpu_mem_peak_mib)
        and run.sample_count >= LEAST_SAMPLES
        and run.grew_until_s is not None
        and run.grew_until_s <= run.sampled_s * _AT_REST_BY
        and not is_greedy(run)
        and (run.sm_active_q95_pct is None or run.sm_active_q95_pct >= _IDLE_PCT)
    )

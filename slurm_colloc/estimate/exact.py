# SPDX-License-Identifier: Apache-2.0
"""The second rung: what earlier runs of the very same job used."""

import math
from collections.abc import Sequence

from slurm_colloc.estimate.question import Question, most_shown
from slurm_colloc.model import (
    COMPLETED,
    GPU_OOM,
    LEAST_SAMPLES,
    Evidence,
    Footprint,
    Quantiles,
    SharingMode,
)
from slurm_colloc.units import counted

RUNG, MARGIN = "exact", "same"
# A run that is cut off at its time limit has lost everything; the sampler inside a job also starts after the job.
_MARGIN_TIME = 1.25
# What a run needs of the host differs more from run to run than what it needs of the GPU: the page cache is the host's,
# and loaders work as fast as they may. Too few cores slow a job, too little memory ends it.
_MARGIN_CORES, _MARGIN_HOST_MEM, _MORE_HOST_MEM_MIB = 1.25, 1.5, 512
# By so much the newest run needed more than any before: the job grows, and may again.
_GREW = 1.02
# Allocators that take a part of whatever GPU they find, at once and for good: JAX takes 0.75 of it, vLLM 0.9,
# TensorFlow nearly all [docs/explanation/estimate.md].
_GREEDY_PARTS, _GREEDY_WITHIN, _GREEDY_FROM, _GREEDY_AT_ONCE_S = (0.75, 0.9), 0.01, 0.94, 30.0


def from_runs(question: Question) -> Footprint | str:
    """Return the footprint that earlier runs of the job support, or the reason why they support none.

    Only completed runs show a peak; any other run's peak is a lower bound that can only raise the answer.
    """
    evidence = question.runs
    if not evidence:
        return "no earlier run of this job is known"
    completed = usable([run._replace(signature="") for run in evidence])
    if isinstance(completed, str):
        return completed
    model = completed[-1].gpu_model
    peaks = sorted(float(item.gpu_mem_peak_mib or 0) for item in completed)
    count = sum(item.run_count for item in completed)
    margin = question.calibration.margin(MARGIN)
    grew = _growth(completed)
    expected = peaks[-1] * grew
    # A bound needs no minimum of samples: a job that ran out of memory at once was seen once or twice.
    memory = Quantiles(median(peaks), peaks[-1], max(margin.over(expected), most_shown(evidence, model)))
    active, how = sm_active(completed)
    if (least := out_of_memory(evidence)) and least.gpu_mem_peak_mib == memory.q99:
        how = f"; {more_than(least)}{how}"
    if grew > 1:
        how = f"; the newest needed {grew - 1:.0%} more than any before, so as much again is added{how}"
    runs = counted(count, "completed run") + measured_by(completed)
    return Footprint(
        gpu_mem_peak_mib=memory,
        sm_active_pct=active,
        run_time_s=_run_time(completed),
        gpu_model=model,
        rung=RUNG,
        evidence_count=count,
        provenance=f"{runs} on {model}, margin {margin} over the largest peak{how}",
        dram_active_pct=dram_active(completed),
        margin=MARGIN,
        expected_mib=expected,
        confidence=margin.confidence,
        cpu_cores=cpu_cores(completed),
        host_mem_mib=host_mem_mib(evidence, completed),
    )


def cpu_cores(completed: Sequence[Evidence]) -> int | None:
    """Return how many cores a job needs by its runs, with a margin; None where one of them was not measured."""
    known = [run.cpu_cores_q95 for run in completed if run.cpu_cores_q95 is not None]
    return max(1, math.ceil(max(known) * _MARGIN_CORES)) if known and len(known) == len(completed) else None


def host_mem_mib(evidence: Sequence[Evidence], completed: Sequence[Evidence], ratio: float = 1.0) -> int | None:
    """Return how much host memory a job of ``ratio`` times the size needs, with a margin.

    None where a completed run was not measured. However the others ended, the job needs no less than they held.
    """
    known = [run.host_mem_peak_mib for run in evidence if run.host_mem_peak_mib is not None]
    if not known or any(run.host_mem_peak_mib is None for run in completed):
        return None
    return math.ceil(max(known) * max(1.0, ratio) * _MARGIN_HOST_MEM) + _MORE_HOST_MEM_MIB


def usable(evidence: Sequence[Evidence]) -> list[Evidence] | str:
    """Return the runs that show a peak, all on the GPU model of the newest of them; or why there are none."""
    known = [item for item in evidence if item.gpu_mem_peak_mib is not None]
    enough = [item for item in known if item.sample_count >= LEAST_SAMPLES or item.source]
    completed = [item for item in enough if item.state == COMPLETED]
    if not completed:
        return f"{_runs(evidence)} known, none of which has completed with {LEAST_SAMPLES} samples"
    if greedy := [item for item in completed if is_greedy(item)]:
        if len(greedy) == len(completed):
            return (
                f"{_runs(evidence)} known, whose framework took {_part(greedy[-1]):.0%} of its GPU at once, so that "
                "what it needs is not known"
            )
        completed = [item for item in completed if item not in greedy]
    completed = [item for item in completed if item.gpu_model == completed[-1].gpu_model]
    if not any(item.gpu_mem_peak_mib for item in completed):
        return f"{_runs(completed)} known, all held a GPU and used no memory on it"
    return completed


def is_greedy(run: Evidence) -> bool:
    """Return whether a run's memory is what its framework takes of any GPU, and so nothing that it needs."""
    if not run.gpu_mem_total_mib or run.gpu_mem_peak_mib is None or run.grew_until_s is None:
        return False
    part = _part(run)
    is_part = part >= _GREEDY_FROM or any(abs(part - one) <= _GREEDY_WITHIN for one in _GREEDY_PARTS)
    return is_part and run.grew_until_s <= _GREEDY_AT_ONCE_S


def _part(run: Evidence) -> float:
    return (run.gpu_mem_peak_mib or 0) / (run.gpu_mem_total_mib or 1)


def _growth(completed: Sequence[Evidence]) -> float:
    """Return how much more the newest run needed than any before it, 1 where that is no more than noise."""
    before = max((item.gpu_mem_peak_mib or 0 for item in completed[:-1]), default=0)
    grew = (completed[-1].gpu_mem_peak_mib or 0) / before if before else 1.0
    return grew if grew > _GREW else 1.0


def out_of_memory(evidence: Sequence[Evidence]) -> Evidence | None:
    """Return, of the runs that ran out of GPU memory, the one that showed the highest need; None without such runs."""
    runs = [item for item in evidence if item.state == GPU_OOM and item.gpu_mem_peak_mib is not None]
    return max(runs, key=lambda item: item.gpu_mem_peak_mib or 0, default=None)


def more_than(run: Evidence) -> str:
    """Return in words what such a run says of the next one."""
    return f"at least {run.gpu_mem_peak_mib} MiB, since job {run.job_id} ran out of GPU memory with less"


def _runs(evidence: Sequence[Evidence]) -> str:
    return "1 earlier run is" if len(evidence) == 1 else f"{len(evidence)} earlier runs are"


def measured_by(runs: Sequence[Evidence]) -> str:
    """Return who measured these runs, where it was not us."""
    sources = sorted({run.source for run in runs if run.source})
    return f" (measured by {', '.join(sources)})" if sources else ""


def median(values: Sequence[float]) -> float:
    """Return the value in the middle, or halfway between the two there."""
    # The standard library's statistics costs csub 3 ms to import.
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _run_time(completed: Sequence[Evidence]) -> Quantiles | None:
    """Return run times on a whole GPU; on a share a run may have been slower."""
    whole = [item for item in completed if item.mode == SharingMode.EXCLUSIVE]
    times = [item.elapsed_s for item in whole if item.elapsed_s is not None]
    return Quantiles(median(times), max(times), max(times) * _MARGIN_TIME) if times else None


def dram_active(completed: Sequence[Evidence]) -> Quantiles | None:
    """Return how long runs on a whole GPU kept its memory busy; what is kept of each is already its high value."""
    whole = [item for item in completed if item.mode == SharingMode.EXCLUSIVE]
    highs = [item.dram_active_q95_pct for item in whole if item.dram_active_q95_pct is not None]
    return Quantiles(median(highs), max(highs), max(highs)) if highs else None


def sm_active(completed: Sequence[Evidence]) -> tuple[Quantiles | None, str]:
    """Return the mean SM activity of runs that had a whole GPU; a share caps what a run can show of itself.

    The mean decides how long a run takes on less; what it peaks at does not.
    """
    known = [item for item in completed if item.mode == SharingMode.EXCLUSIVE and item.sm_active_mean_pct is not None]
    if not known:
        return None, "; SM activity of a whole-GPU run is not known"
    means = [item.sm_active_mean_pct or 0.0 for item in known]
    how = "; SM activity bounded by GPU_UTIL" if any(item.sm_is_bound for item in known) else ""
    return Quantiles(median(means), max(means), max(means)), how

# SPDX-License-Identifier: Apache-2.0
"""Second estimator: earlier runs of the same job."""

import math
from collections.abc import Sequence

from slurm_colloc.core.model import (
    COMPLETED,
    GPU_OOM,
    LEAST_SAMPLES,
    Evidence,
    Footprint,
    Quantiles,
    Reason,
    SharingMode,
    because,
)
from slurm_colloc.estimate.question import Question, most_shown
from slurm_colloc.estimate.records import has_samples, in_order, peak_mib
from slurm_colloc.gpu.mig import tells_sm_activity

RUNG, BY_COMMAND, MARGIN = "exact", "command", "same"
# A run that is cut off at its time limit has lost everything; the sampler inside a job also starts after the job.
_MARGIN_TIME = 1.25
# A run's need of the host differs more from run to run than its need of the GPU: the page cache is the host's,
# and loaders work as fast as they may. Too few cores slow a job, too little memory ends it.
_MARGIN_CORES, _MARGIN_HOST_MEM, _MORE_HOST_MEM_MIB = 1.25, 1.5, 512
# The newest run needed so much more than any before: the job grows, and may again.
_GREW = 1.02
# Allocators that take a part of whatever GPU they find, at once and for good: JAX takes 0.75 of it, vLLM 0.9,
# TensorFlow nearly all [docs/explanation/estimate-rules.md].
_GREEDY_PARTS, _GREEDY_WITHIN, _GREEDY_FROM, _GREEDY_AT_ONCE_S = (0.75, 0.9), 0.01, 0.94, 30.0


def from_runs(question: Question) -> Footprint | Reason:
    """Return the footprint that earlier runs of the job support, or the reason why they support none.

    Only completed runs show a peak; any other run's peak is a lower bound that can only raise the answer.
    """
    evidence = question.runs
    if not evidence:
        return because("no-earlier-run")
    completed = usable([run._replace(signature="") for run in evidence])
    if isinstance(completed, Reason):
        return completed
    count, grew = sum(item.run_count for item in completed), _growth(completed)
    sources = tuple(sorted({run.source for run in completed if run.source}))
    reasons = [
        because("completed-runs", runs=count, gpu_model=completed[-1].gpu_model),
        *([because("measured-by", sources=sources)] if sources else []),
        *([because("grew", more_pct=100 * (grew - 1))] if grew > 1 else []),
    ]
    return footprint_by(question, completed, RUNG, count, reasons, grew)._replace(
        run_time_s=_run_time(completed),
        cpu_cores=cpu_cores(completed),
        host_mem_mib=host_mem_mib(evidence, completed),
    )


def footprint_by(
    question: Question,
    runs: Sequence[Evidence],
    rung: str,
    count: int,
    reasons: Sequence[Reason],
    grew: float = 1.0,
    name: str = MARGIN,
) -> Footprint:
    """Return what runs of the job on one GPU model say of the GPU that it needs, and no less than any of its runs.

    ``name`` is that of the margin.
    """
    model, margin = runs[-1].gpu_model, question.calibration.margin(name)
    peaks = sorted(float(peak_mib(run)) for run in _modest(runs))
    expected = peaks[-1] * grew
    # A bound needs no minimum of samples: a job that ran out of memory at once was seen once or twice.
    q99 = max(margin.over(expected), most_shown(_modest(question.runs), model))
    active, how = sm_active(runs)
    return Footprint(
        gpu_mem_peak_mib=Quantiles(median(peaks), peaks[-1], q99),
        sm_active_pct=active,
        run_time_s=None,
        gpu_model=model,
        rung=rung,
        evidence_count=count,
        provenance=(*reasons, margin.reason, *raised_by(question.runs, q99), *how),
        dram_active_pct=on_whole(runs, "dram_active_q95_pct"),
        busy_pct=on_whole(runs, "busy_mean_pct"),
        margin=name,
        expected_mib=expected,
        confidence=margin.confidence,
    )


def _modest(runs: Sequence[Evidence]) -> list[Evidence]:
    """Return the runs without those that held more than all of the GPU on which the job completed later.

    An allocator keeps what it finds, and does with less on a smaller piece.
    """
    sizes = [(run.ended_s, run.gpu_mem_total_mib) for run in runs if run.state == COMPLETED and run.gpu_mem_total_mib]
    return [
        run
        for run in runs
        if run.state != COMPLETED or not any(at_s > run.ended_s and mib < peak_mib(run) for at_s, mib in sizes)
    ]


def from_command(question: Question) -> Footprint | Reason:
    """Return the footprint that past jobs of the same command support, whose script may have been another."""
    # Its own runs are here only where none has completed: they bound.
    runs = in_order([*question.runs, *question.by_command])
    footprint = from_runs(question._replace(runs=runs))
    if isinstance(footprint, Reason):
        return footprint
    return footprint._replace(rung=BY_COMMAND, provenance=(because("same-command"), *footprint.provenance))


def cpu_cores(completed: Sequence[Evidence]) -> int | None:
    """Return how many cores a job needs by its runs, with a margin; None where one of them was not measured."""
    cores = [run.cpu_cores_q95 for run in completed if run.cpu_cores_q95 is not None]
    return max(1, math.ceil(max(cores) * _MARGIN_CORES)) if cores and len(cores) == len(completed) else None


def host_mem_mib(evidence: Sequence[Evidence], completed: Sequence[Evidence], ratio: float = 1.0) -> int | None:
    """Return how much host memory a job of ``ratio`` times the size needs, with a margin.

    None where a completed run was not measured. However the others ended, the job needs no less than they held.
    """
    peaks = [run.host_mem_peak_mib for run in evidence if run.host_mem_peak_mib is not None]
    if not peaks or any(run.host_mem_peak_mib is None for run in completed):
        return None
    return math.ceil(max(peaks) * max(1.0, ratio) * _MARGIN_HOST_MEM) + _MORE_HOST_MEM_MIB


def usable(evidence: Sequence[Evidence]) -> list[Evidence] | Reason:
    """Return the runs that show a peak, all on the GPU model of the newest of them; or why there are none."""
    with_peak = (item for item in evidence if item.gpu_mem_peak_mib is not None and has_samples(item))
    completed = [item for item in with_peak if item.state == COMPLETED]
    if not completed:
        return because("none-completed", runs=len(evidence), samples=LEAST_SAMPLES)
    modest = [item for item in completed if not is_greedy(item)]
    if not modest:
        return because("memory-taken-at-once", runs=len(evidence), part_pct=100 * _part(completed[-1]))
    alike = [item for item in modest if item.gpu_model == modest[-1].gpu_model]
    return alike if any(map(peak_mib, alike)) else because("gpu-unused", runs=len(alike))


def is_greedy(run: Evidence) -> bool:
    """Return whether a run's memory is what its framework takes of any GPU, and so nothing that it needs."""
    if not run.gpu_mem_total_mib or run.gpu_mem_peak_mib is None or run.grew_until_s is None:
        return False
    part = _part(run)
    is_part = part >= _GREEDY_FROM or any(abs(part - one) <= _GREEDY_WITHIN for one in _GREEDY_PARTS)
    return is_part and run.grew_until_s <= _GREEDY_AT_ONCE_S


def _part(run: Evidence) -> float:
    return peak_mib(run) / (run.gpu_mem_total_mib or 1)


def _growth(completed: Sequence[Evidence]) -> float:
    """Return how much more the newest run needed than any before it, 1 where that is no more than noise."""
    before = max(map(peak_mib, completed[:-1]), default=0)
    grew = peak_mib(completed[-1]) / before if before else 1.0
    return grew if grew > _GREW else 1.0


def out_of_memory(evidence: Sequence[Evidence]) -> Evidence | None:
    """Return, of the runs that ran out of GPU memory, the one that showed the highest need; None without such runs."""
    runs = [item for item in evidence if item.state == GPU_OOM and item.gpu_mem_peak_mib is not None]
    return max(runs, key=peak_mib, default=None)


def raised_by(evidence: Sequence[Evidence], q99_mib: float) -> tuple[Reason, ...]:
    """Return the run that ran out of GPU memory, where that is what the answer comes from."""
    run = out_of_memory(evidence)
    if run is None or run.gpu_mem_peak_mib != q99_mib:
        return ()
    return (because("ran-out-of-memory", least_mib=run.gpu_mem_peak_mib, job_id=run.job_id),)


def median(values: Sequence[float]) -> float:
    """Return the value in the middle, or halfway between the two there."""
    # The standard library's statistics costs csub 3 ms to import.
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _run_time(completed: Sequence[Evidence]) -> Quantiles | None:
    """Return run times on a whole GPU; a run on a share may have been slower."""
    times = on_whole(completed, "elapsed_s")
    return times and times._replace(q99=times.q99 * _MARGIN_TIME)


def on_whole(runs: Sequence[Evidence], name: str) -> Quantiles | None:
    """Return the middle of a field over the runs on a whole GPU, and the largest as q95 and q99; None for none."""
    exclusive = [run for run in runs if run.mode == SharingMode.EXCLUSIVE]
    values = [value for run in exclusive if (value := getattr(run, name)) is not None]
    return Quantiles(median(values), max(values), max(values)) if values else None


def sm_active(completed: Sequence[Evidence]) -> tuple[Quantiles | None, tuple[Reason, ...]]:
    """Return the mean SM activity of runs that had a whole GPU; a share caps what a run can show of itself.

    The mean decides how long a run takes on less; its peak does not.
    """
    active = [item for item in completed if item.mode == SharingMode.EXCLUSIVE and item.sm_active_mean_pct is not None]
    if not active:
        dark = next((item.gpu_model for item in completed if not tells_sm_activity(item.gpu_model)), "")
        return None, (because("card-tells-no-sm", gpu=dark) if dark else because("sm-not-measured"),)
    codes = {
        "sm-bounded-by-readings" if item.source and item.sample_count else "sm-bounded-by-util"
        for item in active
        if item.sm_is_bound
    }
    return on_whole(active, "sm_active_mean_pct"), tuple(map(because, sorted(codes)))

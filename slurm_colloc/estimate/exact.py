# SPDX-License-Identifier: Apache-2.0
"""The second rung: what earlier runs of the very same job used."""

from collections.abc import Sequence

from slurm_colloc.model import GPU_OOM, Evidence, Footprint, Quantiles, SharingMode

RUNG = "exact"
_COMPLETED = "COMPLETED"
_MIN_SAMPLES = 3
# Margins over the largest peak seen: repeats of a configuration need 1.05 at a target of 1 % out-of-memory, a single
# run needs more (docs/explanation/estimate.md).
_MARGIN_FEW, _MARGIN_MANY, _MANY = 1.15, 1.05, 3
# A run that is cut off at its time limit has lost everything; the sampler inside a job also starts after the job.
_MARGIN_TIME = 1.25


def from_runs(evidence: Sequence[Evidence]) -> Footprint | str:
    """Return the footprint that earlier runs support, or the reason why they support none.

    Only completed runs show a peak; any other run's peak is a lower bound that can only raise the answer.
    """
    usable = [item for item in evidence if item.gpu_mem_peak_mib is not None and item.sample_count >= _MIN_SAMPLES]
    completed = [item for item in usable if item.state == _COMPLETED]
    if not evidence:
        return "no earlier run of this job is known"
    if not completed:
        return f"{_runs(evidence)} known, none of which has completed with {_MIN_SAMPLES} samples"
    model = completed[-1].gpu_model
    completed = [item for item in completed if item.gpu_model == model]
    peaks = sorted(float(item.gpu_mem_peak_mib or 0) for item in completed)
    if peaks[-1] == 0:
        return f"{_runs(completed)} known, all held a GPU and used no memory on it"
    # A bound needs no minimum of samples: a job that ran out of memory at once was seen once or twice.
    bounds = [float(item.gpu_mem_peak_mib or 0) for item in evidence if item.gpu_model in (model, "")]
    margin = _MARGIN_MANY if len(completed) >= _MANY else _MARGIN_FEW
    memory = Quantiles(_median(peaks), peaks[-1], max(peaks[-1] * margin, max(bounds)))
    active, how = _sm_active(completed)
    if (least := out_of_memory(evidence)) and least.gpu_mem_peak_mib == memory.q99:
        how = f"; {more_than(least)}{how}"
    noun = "run" if len(completed) == 1 else "runs"
    return Footprint(
        gpu_mem_peak_mib=memory,
        sm_active_pct=active,
        run_time_s=_run_time(completed),
        gpu_model=model,
        rung=RUNG,
        evidence_count=len(completed),
        provenance=f"{len(completed)} completed {noun} on {model}, margin {margin:.2f} over the largest peak{how}",
        dram_active_pct=_dram_active(completed),
    )


def out_of_memory(evidence: Sequence[Evidence]) -> Evidence | None:
    """Return, of the runs that ran out of GPU memory, the one that showed the highest need; None without such runs."""
    runs = [item for item in evidence if item.state == GPU_OOM and item.gpu_mem_peak_mib is not None]
    return max(runs, key=lambda item: item.gpu_mem_peak_mib or 0, default=None)


def more_than(run: Evidence) -> str:
    """Return in words what such a run says of the next one."""
    return f"at least {run.gpu_mem_peak_mib} MiB, since job {run.job_id} ran out of GPU memory with less"


def _runs(evidence: Sequence[Evidence]) -> str:
    return "1 earlier run is" if len(evidence) == 1 else f"{len(evidence)} earlier runs are"


def _median(values: Sequence[float]) -> float:
    # The standard library's statistics costs csub 3 ms to import.
    ordered, middle = sorted(values), len(values) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def _run_time(completed: Sequence[Evidence]) -> Quantiles | None:
    """Return run times on a whole GPU; on a share a run may have been slower."""
    whole = [item for item in completed if item.mode == SharingMode.EXCLUSIVE]
    times = [item.elapsed_s for item in whole if item.elapsed_s is not None]
    return Quantiles(_median(times), max(times), max(times) * _MARGIN_TIME) if times else None


def _dram_active(completed: Sequence[Evidence]) -> Quantiles | None:
    """Return how long runs on a whole GPU kept its memory busy; what is kept of each is already its high value."""
    whole = [item for item in completed if item.mode == SharingMode.EXCLUSIVE]
    highs = [item.dram_active_q95_pct for item in whole if item.dram_active_q95_pct is not None]
    return Quantiles(_median(highs), max(highs), max(highs)) if highs else None


def _sm_active(completed: Sequence[Evidence]) -> tuple[Quantiles | None, str]:
    """Return SM activity from runs that had a whole GPU; a share caps what a run can show of itself."""
    whole = [item for item in completed if item.mode == SharingMode.EXCLUSIVE]
    known = [item for item in whole if item.sm_active_mean_pct is not None and item.sm_active_q95_pct is not None]
    if not known:
        return None, "; SM activity of a whole-GPU run is not known"
    means = [item.sm_active_mean_pct or 0.0 for item in known]
    highs = [item.sm_active_q95_pct or 0.0 for item in known]
    how = "; SM activity bounded by GPU_UTIL" if any(item.sm_is_bound for item in known) else ""
    return Quantiles(_median(means), max(highs), max(highs)), how

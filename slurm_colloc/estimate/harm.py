# SPDX-License-Identifier: Apache-2.0
"""Harm that a piece of a GPU did to a job: csub decides by this definition, and reports count by it.

A piece harms a run that runs out of GPU memory on it, that takes longer than the site's bound on speed allows, or that
its time limit, or want of host memory, ends though the same job never met that on a whole GPU. A run that failed on a
piece, of a job that never failed on a whole GPU, may have been harmed: its job gets no piece for now, and reports count
it apart. They also count apart a run that was lost with its node, which is no doing of the piece.
"""

from collections.abc import Sequence
from enum import StrEnum

from slurm_colloc.core.model import COMPLETED, GPU_OOM, LEAST_SAMPLES, Evidence, Reason, SharingMode, because

# A shorter run is mostly its start, which no bound is about.
_LEAST_S = 60.0


class Harm(StrEnum):
    """The outcome of one run on a piece."""

    NONE = "unharmed"
    OUT_OF_MEMORY = "out of GPU memory"
    HOST_MEMORY = "out of host memory"
    SLOWER = "slower than the bound"
    TIME_LIMIT = "ended by its time limit"
    LOST = "lost with its node"
    FAILED = "failed, cause not known"


# These count against the site.
COUNTED = (Harm.OUT_OF_MEMORY, Harm.HOST_MEMORY, Harm.SLOWER, Harm.TIME_LIMIT)
# Slurm's states of runs that a job on a whole GPU may end in just as well: harm where none of the same job did.
_ENDS = {"TIMEOUT": Harm.TIME_LIMIT, "OUT_OF_MEMORY": Harm.HOST_MEMORY, "FAILED": Harm.FAILED}
_LOST = ("NODE_FAIL", "BOOT_FAIL")


def harm_of(run: Evidence, on_whole: Sequence[Evidence], max_slowdown: float) -> Harm | None:
    """Return what came of one run, by others of its job that had a whole GPU; None where that is not known."""
    if run.state == GPU_OOM:
        return Harm.OUT_OF_MEMORY
    if run.state in _LOST:
        return Harm.LOST
    completed = [other_run for other_run in on_whole if other_run.state == COMPLETED]
    if run.state == COMPLETED:
        # Runs of one job differ: slower is what takes longer than the longest of them could.
        same = [other_run for other_run in completed if run.gpu_model and other_run.gpu_model == run.gpu_model]
        longest_s = max((other_run.elapsed_s or 0.0 for other_run in same), default=0.0)
        if longest_s < _LEAST_S or run.elapsed_s is None:
            return None
        return Harm.SLOWER if run.elapsed_s > max_slowdown * longest_s else Harm.NONE
    if run.state not in _ENDS or not completed:
        return None
    return Harm.NONE if any(other_run.state == run.state for other_run in on_whole) else _ENDS[run.state]


def harmed_s(runs: Sequence[Evidence], max_slowdown: float) -> float:
    """Return when the last of a job's runs ended that its piece harmed; 0 where none was."""
    return max((run.ended_s for run, harm in _judged(runs, max_slowdown) if harm in COUNTED), default=0.0)


def _judged(runs: Sequence[Evidence], max_slowdown: float) -> list[tuple[Evidence, Harm | None]]:
    on_whole = [run for run in runs if run.mode == SharingMode.EXCLUSIVE]
    # A record that stands for several old runs keeps the worst of each figure, and is none of them.
    pieces = [run for run in runs if run.mode not in ("", SharingMode.EXCLUSIVE) and run.run_count == 1]
    return [(run, harm_of(run, on_whole, max_slowdown)) for run in pieces]


def why_whole(runs: Sequence[Evidence], max_slowdown: float) -> Reason | None:
    """Return why a job is to have a whole GPU for now, by its own runs, oldest first; None where none was harmed.

    It is measured on a whole GPU once for each run that was harmed: one that pieces harm again and again gets fewer.
    """
    harmed = [(run, harm) for run, harm in _judged(runs, max_slowdown) if harm in COUNTED or harm is Harm.FAILED]
    if not harmed:
        return None
    last, harm = max(harmed, key=lambda pair: pair[0].ended_s)
    measured = sum(
        run.mode == SharingMode.EXCLUSIVE
        and run.state == COMPLETED
        and run.ended_s > last.ended_s
        and run.sample_count >= LEAST_SAMPLES
        for run in runs
    )
    harmed_left = len(harmed) - measured
    return (
        because("harmed", job_id=last.job_id, harm=harm.name.lower(), runs=harmed_left)
        if harm and harmed_left > 0
        else None
    )

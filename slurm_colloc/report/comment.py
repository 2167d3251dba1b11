# SPDX-License-Identifier: Apache-2.0
"""One line on what a run used of its GPUs, for Slurm's AdminComment: key=value, read by people and programs."""

from slurm_colloc.measured import JobUsage
from slurm_colloc.report.usage import percent

VERSION = 1
_MARK = "colloc="


def comment_line(run: JobUsage) -> str:
    """Return the line, without what is not known; empty where nothing was measured.

    Its words are ``colloc=VERSION``, then in this order those that are known. At most some 200 characters.
    """
    if not run.methods:
        return ""
    words = {
        "gpu_hours": _number(run.allocated_gpu_hours, 6),
        "util_pct": _number(percent(run.util_used_gpu_hours, run.util_measured_gpu_hours), 1),
        "sm_pct": _number(percent(run.sm_used_gpu_hours, run.sm_measured_gpu_hours), 1),
        "gpu_mem_mib": _number(run.gpu_mem_peak_mib, 0),
        "empty_gpu_hours": _number(run.held_idle_gpu_hours, 6),
        "energy_j": _number(run.energy_j, 0),
        "coverage_pct": _number(run.coverage_pct, 0),
    }
    known = [f"{name}={value}" for name, value in words.items() if value is not None]
    return " ".join([f"{_MARK}{VERSION}", *known])


def may_write(comment: str, line: str) -> bool:
    """Return whether ``line`` takes the place of ``comment``: of none, or of an earlier one of ours."""
    return comment != line and (not comment or comment.startswith(_MARK))


def _number(value: float | None, digits: int) -> str | None:
    return None if value is None else f"{value:.{digits}f}"

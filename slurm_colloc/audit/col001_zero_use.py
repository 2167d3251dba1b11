# SPDX-License-Identifier: Apache-2.0
"""COL001: GPUs held at zero use.

A user's jobs held GPUs, were sampled for enough of their time, and in none of those samples did a kernel run. Time
that was not sampled is not counted, and neither are jobs below the site's bound of coverage or whose figures stand on
anything weaker than measurement.
"""

from collections.abc import Iterable
from math import fsum

from slurm_colloc.config import Audit
from slurm_colloc.measured import JobUsage
from slurm_colloc.model import Finding
from slurm_colloc.units import significant

CODE = "COL001"
_MEASURED = {"measured"}


def find(usages: Iterable[JobUsage], bounds: Audit) -> list[Finding]:
    """Return one finding for each user above the site's bound."""
    by_user: dict[str, list[JobUsage]] = {}
    for usage in usages:
        if can_judge(usage, bounds) and _at_zero(usage):
            by_user.setdefault(usage.user, []).append(usage)
    findings = []
    for user, runs in sorted(by_user.items()):
        held = fsum(_seen_hours(usage) for usage in runs)
        count = "1 run" if len(runs) == 1 else f"{len(runs)} runs"
        if held < bounds.zero_use_min_gpu_hours or held == 0:
            continue
        lowest = min(_seen_pct(usage) for usage in runs)
        jobs = ", ".join(usage.job_id for usage in runs[:5]) + (", ..." if len(runs) > 5 else "")
        findings.append(
            Finding(
                code=CODE,
                severity="warning",
                subject=user,
                evidence=f"{significant(held)} sampled GPU-h in {count} (job {jobs}) without one kernel seen, "
                f"sampled for at least {lowest:.0f} % of the time; "
                f"the site's bound is {bounds.zero_use_min_gpu_hours:g} GPU-h",
                remedy="end jobs that wait at a prompt or failed early; ask for no GPU where none is used",
                reproduce=f"colloc job {runs[0].job_id}",
            )
        )
    return findings


def _at_zero(usage: JobUsage) -> bool:
    return not usage.util_used_gpu_hours and not usage.sm_used_gpu_hours


def can_judge(usage: JobUsage, bounds: Audit) -> bool:
    """Return whether enough of a run was seen, by measurement, to say that it used nothing or something."""
    known = usage.util_used_gpu_hours is not None or usage.sm_used_gpu_hours is not None
    measured = known and bool(usage.allocated_gpu_hours) and set(usage.methods) <= _MEASURED
    return measured and _seen_pct(usage) >= bounds.min_coverage_pct


def _seen_pct(usage: JobUsage) -> float:
    """Return the part of the run in which kernels would have been seen: samples without a counter show nothing."""
    if not usage.allocated_gpu_hours:
        return 0.0
    return 100 * _seen_hours(usage) / usage.allocated_gpu_hours


def _seen_hours(usage: JobUsage) -> float:
    return max(usage.util_measured_gpu_hours, usage.sm_measured_gpu_hours)

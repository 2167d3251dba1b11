# SPDX-License-Identifier: Apache-2.0
"""COL001: GPUs held at zero use.

A user's jobs held GPUs, were sampled for enough of their time, and in none of those samples did a kernel run. Time
that was not sampled is not counted, and neither are jobs below the site's bound of coverage or whose figures stand on
anything weaker than measurement.
"""

from collections.abc import Iterable

from slurm_colloc.config import Audit
from slurm_colloc.model import Finding, JobUsage

CODE = "COL001"
_MEASURED = {"measured"}


def find(usages: Iterable[JobUsage], bounds: Audit) -> list[Finding]:
    """Return one finding for each user above the site's bound."""
    by_user: dict[str, list[JobUsage]] = {}
    for usage in usages:
        if _at_zero(usage) and _seen_pct(usage) >= bounds.min_coverage_pct:
            by_user.setdefault(usage.user, []).append(usage)
    findings = []
    for user, runs in sorted(by_user.items()):
        held = sum(usage.allocated_gpu_hours or 0.0 for usage in runs)
        if held < bounds.zero_use_min_gpu_hours or held == 0:
            continue
        lowest = min(_seen_pct(usage) for usage in runs)
        jobs = ", ".join(usage.job_id for usage in runs[:5]) + (", ..." if len(runs) > 5 else "")
        findings.append(
            Finding(
                code=CODE,
                severity="warning",
                subject=user,
                evidence=f"{held:.3g} GPU-h in {len(runs)} {'run' if len(runs) == 1 else 'runs'} (job {jobs}) without "
                f"one kernel seen, sampled for at least {lowest:.0f} % of the time; "
                f"the site's bound is {bounds.zero_use_min_gpu_hours:g} GPU-h",
                remedy="end jobs that wait at a prompt or failed early; ask for no GPU where none is used",
                reproduce=f"colloc job {runs[0].job_id}",
            )
        )
    return findings


def _at_zero(usage: JobUsage) -> bool:
    known = [value for value in (usage.util_used_gpu_hours, usage.sm_used_gpu_hours) if value is not None]
    return bool(known) and not any(known) and set(usage.methods) <= _MEASURED


def _seen_pct(usage: JobUsage) -> float:
    """Return the part of the run in which kernels would have been seen: samples without a counter show nothing."""
    if not usage.allocated_gpu_hours:
        return 0.0
    return 100 * max(usage.util_measured_gpu_hours, usage.sm_measured_gpu_hours) / usage.allocated_gpu_hours

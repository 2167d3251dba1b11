# SPDX-License-Identifier: Apache-2.0
"""Runs added up by user, account or partition."""

from collections.abc import Iterable, Sequence
from math import fsum

from slurm_colloc.errors import InputError
from slurm_colloc.model import GroupUsage, JobUsage

GROUPINGS = ("user", "account", "partition")


def summarize(usages: Iterable[JobUsage], by: str) -> list[GroupUsage]:
    """Return one GroupUsage for each value of ``by``, those with the most unused GPU-hours first.

    Raises:
        InputError: ``by`` is not one of GROUPINGS.
    """
    if by not in GROUPINGS:
        raise InputError(f"'--by {by}' is not one of {', '.join(GROUPINGS)}")
    groups: dict[str, list[JobUsage]] = {}
    for usage in usages:
        groups.setdefault(getattr(usage, by), []).append(usage)
    return sorted((total(runs, name) for name, runs in groups.items()), key=_idle_first)


def _idle_first(group: GroupUsage) -> tuple[float, str]:
    return -(group.idle_gpu_hours or 0.0), group.name


def _used_and_idle(run: JobUsage) -> tuple[float, float] | None:
    """Return the GPU-hours in which the run used what it had and in which it did not; None when neither is known."""
    if run.sm_used_gpu_hours is not None:
        used, measured = run.sm_used_gpu_hours, run.sm_measured_gpu_hours
    elif run.util_used_gpu_hours is not None:
        used, measured = run.util_used_gpu_hours, run.util_measured_gpu_hours
    else:
        return None
    return used, max(0.0, measured - used)


def total(runs: Sequence[JobUsage], name: str) -> GroupUsage:
    """Add runs up; the order of ``runs`` does not matter."""
    # fsum: the same total whatever the order of the rows.
    sized = [run for run in runs if run.allocated_gpu_hours is not None]
    util = [run for run in sized if run.util_used_gpu_hours is not None]
    active = [run for run in sized if run.sm_used_gpu_hours is not None]
    util_measured, active_measured = (
        fsum(run.util_measured_gpu_hours for run in util),
        fsum(run.sm_measured_gpu_hours for run in active),
    )
    util_used = fsum(run.util_used_gpu_hours or 0.0 for run in util) if util else None
    active_used = fsum(run.sm_used_gpu_hours or 0.0 for run in active) if active else None
    split = [parts for run in sized if (parts := _used_and_idle(run)) is not None]
    allocated = fsum(run.allocated_gpu_hours or 0.0 for run in sized)
    covered = [run for run in sized if run.coverage_pct is not None]
    covered_hours = fsum(run.allocated_gpu_hours or 0.0 for run in covered)
    return GroupUsage(
        name=name,
        jobs=len(runs),
        jobs_measured=sum(run.util_used_gpu_hours is not None or run.sm_used_gpu_hours is not None for run in runs),
        jobs_without_size=len(runs) - len(sized),
        allocated_gpu_hours=allocated,
        util_measured_gpu_hours=util_measured,
        util_used_gpu_hours=util_used,
        util_weighted_pct=_pct(util_used, util_measured),
        util_plain_pct=_plain([(run.util_used_gpu_hours, run.util_measured_gpu_hours) for run in util]),
        sm_measured_gpu_hours=active_measured,
        sm_used_gpu_hours=active_used,
        sm_weighted_pct=_pct(active_used, active_measured),
        used_gpu_hours=fsum(used for used, _ in split) if split else None,
        idle_gpu_hours=fsum(idle for _, idle in split) if split else None,
        coverage_pct=_pct(
            fsum((run.allocated_gpu_hours or 0.0) * (run.coverage_pct or 0.0) / 100 for run in covered), covered_hours
        )
        if covered
        else None,
        methods=tuple(sorted({method for run in runs for method in run.methods})),
    )


def _pct(used: float | None, of: float) -> float | None:
    return None if used is None or of <= 0 else 100 * used / of


def _plain(runs: Sequence[tuple[float | None, float]]) -> float | None:
    shares = [share for used, of in runs if (share := _pct(used, of)) is not None]
    return fsum(shares) / len(shares) if shares else None

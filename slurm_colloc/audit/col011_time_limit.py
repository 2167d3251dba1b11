# SPDX-License-Identifier: Apache-2.0
"""COL011: time limits far above what runs take.

A user's runs completed long before their time limits. Nothing was held for it, but Slurm plans with limits: such a job
waits for a larger gap than it needs (backfill), and others wait behind what is planned for it.

All of it is from the accounting. A run counts in the window in which it ended, whole, and only if it completed: one
that timed out, failed, was cancelled, preempted or requeued says nothing of what it would have taken. Of suspended time
nothing counts as unused. Runs without a limit, and those of which none is recorded, are not judged. The hours it names
are GPU-hours of limits that were not needed; nobody had them.

job_defense_shield calls it excessive-time-gpu.
"""

from slurm_colloc.audit.rule import UNHELD, Bound, Bounds, Rule, Said, hours, runs
from slurm_colloc.core.audit_model import Subject


def _say(subject: Subject, bounds: Bounds) -> Said | None:
    percents = {name: subject.figures[name] for name in ("overall_pct", "mean_pct", "median_pct")}
    if any(value is None or value > bounds[name] for name, value in percents.items()):
        return None
    return Said(
        f"{percents['overall_pct']:.0f} % of what time limits allowed was taken (of a run "
        f"{percents['mean_pct']:.0f} % on average, median {percents['median_pct']:.0f} %), and "
        f"{hours(subject.gpu_hours)} of limits not needed, in {runs(subject)} that completed; the site's "
        f"thresholds are {bounds['overall_pct']:g} % and {hours(bounds['min_unused_gpu_hours'])}",
        "ask for what such a run takes and a margin (--time): a shorter job fits into smaller gaps and starts sooner",
    )


_LIMIT_S, _RUN_S = "60 * limit_min", "(end_s - start_s)"
_RATIO = f"least({_RUN_S} / ({_LIMIT_S}), 1)"
RULE = Rule(
    code="COL011",
    name="time limit",
    title="time limits far above what runs take",
    documentation=__doc__ or "",
    bounds={
        "min_unused_gpu_hours": Bound(1000.0, "GPU-hours of limits not needed, of one user, from which it speaks"),
        "overall_pct": Bound(20.0, "percent of all GPU-hours that limits allowed, up to which it speaks"),
        "mean_pct": Bound(20.0, "mean over runs of percent of the limit taken, up to which it speaks; 100: any"),
        "median_pct": Bound(20.0, "the same by the median"),
    },
    judged={
        "not completed in the window": "state = 'COMPLETED' AND end_s <= to_s AND end_s > start_s",
        "no time limit known": "limit_min > 0",
        UNHELD: "gpus > 0",
    },
    found=f"{_RUN_S} < {_LIMIT_S}",
    least="min_unused_gpu_hours",
    hours=f"gpus * ({_LIMIT_S} - {_RUN_S}) / 3600",
    figures={
        "overall_pct": f"100 * sum(gpus * {_RATIO} * limit_min) / sum(gpus * limit_min)",
        "mean_pct": f"100 * avg({_RATIO})",
        "median_pct": f"100 * median({_RATIO})",
    },
    say=_say,
    accounted=True,
    coverage="NULL",
)

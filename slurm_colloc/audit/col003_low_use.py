# SPDX-License-Identifier: Apache-2.0
"""COL003: low use of GPUs.

Over the window a user's GPUs were busy for less than a bound: SM activity over the allocated hours for which it is
known (used over measured GPU-hours, so that a long run counts for more than a short one). A run without SM activity
counts by GPU_UTIL for none of it: GPU_UTIL says that a kernel ran, not how much of the GPU it used, and so may be high
where this is low; both are named.

Runs at zero use are COL001's, and are left out; so are runs in which the profiling counters were taken
away or may have been (a slice that read 0 at any time), suspended ones, those that have just begun, and short ones,
whose readings are in good part of the time before and after them. job_defense_shield calls it low-gpu-efficiency, and
judges it by GPU_UTIL.
"""

from slurm_colloc.audit.rule import (
    ASLEEP,
    AWAKE,
    HELD,
    LONG,
    RUNNING,
    SETTLED,
    SHORT,
    SHORTEST,
    SM_SURE,
    UNHELD,
    UNSAMPLED,
    UNUSED,
    YOUNG,
    Bound,
    Bounds,
    Rule,
    Said,
    hours,
    runs,
    seen,
)
from slurm_colloc.core.audit_model import Subject


def _say(subject: Subject, bounds: Bounds) -> Said | None:
    used, util_pct = subject.figures["used"], subject.figures["util_pct"]
    if used is None:
        return None
    busy_pct, share_pct = 100 * used / subject.gpu_hours, 100 * subject.gpu_hours / subject.judged_gpu_hours
    if busy_pct >= bounds["below_pct"]:
        return None
    beside = "" if util_pct is None else f"; some kernel ran {util_pct:.0f} % of the time (GPU_UTIL)"
    return Said(
        f"SM activity of {busy_pct:.0f} % over {hours(subject.gpu_hours)} of {runs(subject)} ({share_pct:.0f} % of "
        f"what can be judged){beside}, {seen(subject)}; the site's threshold is {bounds['below_pct']:g} % of at least "
        f"{hours(bounds['min_gpu_hours'])}",
        "submit such jobs with csub, which gives them a piece of a GPU; 'colloc job JOB' shows what a job used",
    )


RULE = Rule(
    code="COL003",
    name="low use",
    title="GPUs used little",
    documentation=__doc__ or "",
    bounds={
        "below_pct": Bound(25.0, "SM activity in percent, weighted by time, below which it speaks"),
        "min_gpu_hours": Bound(50.0, "measured GPU-hours in the window, of one user, from which it speaks"),
        "shortest_min": SHORTEST,
        "running_min": RUNNING,
    },
    judged={ASLEEP: AWAKE, SHORT: LONG, YOUNG: SETTLED, UNSAMPLED: SM_SURE, UNHELD: HELD},
    found=f"NOT ({UNUSED})",
    hours="sm_measured",
    figures={
        "used": "sum(sm_used::DECIMAL(38, 12)) FILTER (found)::DOUBLE",
        "util_pct": "100 * sum(util_used::DECIMAL(38, 12)) FILTER (found)::DOUBLE "
        "/ nullif(sum(util_measured::DECIMAL(38, 12)) FILTER (found AND util_used IS NOT NULL)::DOUBLE, 0)",
    },
    say=_say,
)

# SPDX-License-Identifier: Apache-2.0
"""COL003: low use of GPUs.

Over the window a user's GPUs were busy for less than a bound: SM activity over the allocated hours for which it is
known (used over measured GPU-hours, so that a long run counts for more than a short one). A run without SM activity
counts by GPU_UTIL for none of it: GPU_UTIL says that a kernel ran, not how much of the GPU it used, and so may be high
where this is low; both are named.

Runs at zero use are COL001's, and are left out, as are GPUs that a run of several never used; so are runs in which the
profiling counters were taken away or may have been (a slice that read 0 at any time), suspended ones, those that have
just begun, and short ones, whose readings are in good part of the time before and after them. job_defense_shield calls
it low-gpu-efficiency, and judges it by GPU_UTIL.
"""

from collections.abc import Iterator

from slurm_colloc.audit.rule import (
    AWAKE,
    HELD,
    LONG,
    PIECE_ENOUGH,
    PIECES,
    RUNNING,
    SETTLED,
    SHORTEST,
    UNHELD,
    UNSAMPLED,
    Bound,
    Bounds,
    Rule,
    Said,
    ask_for_piece,
    hours,
    runs,
    seen,
)
from slurm_colloc.core.audit_model import Subject
from slurm_colloc.core.units import counted

# GPUs that were never used are told of by COL001.
_USED_GPUS = "sm_measured * if(fewer, 1 - idle_units / devices, 1)"


def _say(subject: Subject, bounds: Bounds) -> Said | None:
    used, util_pct = subject.figures["used"], subject.figures["util_pct"]
    if used is None:
        return None
    busy_pct, unused = 100 * used / subject.gpu_hours, subject.judged - subject.found
    if busy_pct >= bounds["below_pct"]:
        return None
    beside = "" if util_pct is None else f"; some kernel ran {util_pct:.0f} % of the time (GPU_UTIL)"
    left_out = f"; left out: {unused} of {subject.judged} judged runs, at zero use" if unused else ""
    return Said(
        f"SM activity of {busy_pct:.0f} % over {hours(subject.gpu_hours)} of {runs(subject)}{left_out}"
        f"{beside}, {seen(subject)}; the site's threshold is {bounds['below_pct']:g} % of at least "
        f"{hours(bounds['min_gpu_hours'])}",
        "; ".join((*_remedies(subject), "'colloc job JOB' shows what a job used")),
    )


def _remedies(subject: Subject) -> Iterator[str]:
    """Yield what can be done with these runs: a piece is for what fits one, and was one GPU."""
    fitting, large, several = (subject.figures[name] or 0 for name in ("fitting", "large", "several"))
    if fitting:
        yield ask_for_piece(subject, _those(fitting, subject))
    if large:
        yield f"give {_those(large, subject)} that no piece holds more work at a time, a larger batch for example"
    if several:
        yield f"ask for fewer GPUs in {_those(several, subject)} of several, each of which was used little"


def _those(runs_: float, subject: Subject) -> str:
    return "such jobs" if runs_ == subject.found else f"the {counted(int(runs_), 'run')} of these"


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
    judged={**AWAKE, **LONG, **SETTLED, UNSAMPLED: "sm_sure", UNHELD: HELD},
    found="NOT unused",
    hours=_USED_GPUS,
    figures={
        "fitting": "count(*) FILTER (found AND fits)",
        **PIECES,
        "large": "count(*) FILTER (found AND fit_judged AND NOT coalesce(fit_gpus < 1, false))",
        "several": "count(*) FILTER (found AND whole AND devices > 1)",
        "used": "sum(sm_used::DECIMAL(38, 12)) FILTER (found)::DOUBLE",
        "util_pct": "100 * sum(util_used::DECIMAL(38, 12)) FILTER (found)::DOUBLE "
        "/ nullif(sum(util_measured::DECIMAL(38, 12)) FILTER (found AND util_used IS NOT NULL)::DOUBLE, 0)",
    },
    say=_say,
    label=PIECE_ENOUGH,
)

# SPDX-License-Identifier: Apache-2.0
"""COL004: GPUs held with no process on them.

A user's runs held GPUs on which, for a good part of the time, there was no process of theirs and nothing at work: the
second of two GPUs that a program never opened, hours of preparation on CPUs, a server that was given GPUs and has none
to use. The driver's list of processes is the evidence, so that it works for slices without counters, too.

It says nothing of readings with a process of nobody's on the GPU (it may be the run's own, in a container), of a GPU
that was at work while the list was empty (programs that end between two readings; beside others on one GPU nobody could
tell, so of runs that shared theirs nothing is said), of suspended and of short runs, and of those that have just begun.
Runs without a single kernel are COL001's, and time since the last activity is COL005's. Where a partition gives out
whole nodes, asked for or not, exclude it: nobody can give back a GPU there.
"""

from slurm_colloc.audit.rule import (
    ASLEEP,
    AWAKE,
    COUNTED_SURE,
    HELD,
    LONG,
    RUNNING,
    SETTLED,
    SHORT,
    SHORTEST,
    SURE,
    UNHELD,
    UNSAMPLED,
    UNUSED,
    YOUNG,
    Bound,
    Bounds,
    Rule,
    Said,
)
from slurm_colloc.audit.words import hours, runs, seen
from slurm_colloc.audited import Subject

# Samples know slices by compute slices and shares by their whole GPU; allocated is by the site's convention.
_EMPTY = "coalesce(gpus / nullif(blocked, 0), gpus) * held_idle_hours"
# Of whom COL005 says nothing there is no tail.
_BEFORE = f"greatest(0, {_EMPTY} - if(blackout_s IS NULL, 0, coalesce(tail_s, 0)) / span_s * allocated)"


def _say(subject: Subject, bounds: Bounds) -> Said | None:
    allocated = subject.figures["allocated"]
    if allocated is None:
        return None
    return Said(
        f"{hours(subject.gpu_hours)} of {hours(allocated)} without a process of the job on the GPU, in "
        f"{runs(subject)}, {seen(subject)}; the site's bound is {hours(bounds['min_gpu_hours'])} of runs with at least "
        f"{bounds['empty_pct']:g} % of it",
        "ask for as many GPUs as the program opens ('colloc job JOB' shows each); prepare data in a job without a GPU "
        "and start the other after it with --dependency=afterok",
    )


RULE = Rule(
    code="COL004",
    name="held with no process",
    title="GPUs held with no process on them",
    documentation=__doc__ or "",
    bounds={
        "min_gpu_hours": Bound(24.0, "GPU-hours without a process in the window, of one user, from which it speaks"),
        "empty_pct": Bound(20.0, "percent of a run's GPU-hours without a process, from which the run counts"),
        "shortest_min": SHORTEST,
        "running_min": RUNNING,
    },
    judged={
        ASLEEP: AWAKE,
        SHORT: LONG,
        YOUNG: SETTLED,
        UNSAMPLED: SURE,
        "beside others on its GPU": "shared_hours = 0",
        "processes not known": "held_idle_hours IS NOT NULL",
        UNHELD: f"gpus IS NOT NULL AND {HELD}",
    },
    found=f"NOT coalesce({COUNTED_SURE} AND {UNUSED}, false) AND {_BEFORE} > 0 "
    f"AND 100 * {_BEFORE} >= $empty_pct * allocated",
    hours=_BEFORE,
    figures={"allocated": "sum(allocated::DECIMAL(38, 12)) FILTER (found)::DOUBLE"},
    say=_say,
)

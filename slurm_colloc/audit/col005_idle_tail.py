# SPDX-License-Identifier: Apache-2.0
"""COL005: GPUs idle after an active start.

A user's runs worked on their GPUs, then not one kernel ran any more on any of them for a long time, up to the run's end
or to now: a program that hangs, a notebook that was left open, results that are written on CPUs. Their mean use may
look well, which is why no rule about means finds them.

Counted is what was seen: from the last activity on any of a run's devices to its last reading, less all time for which
no reading of one of them tells, wherever that was. So a sampler that paused makes nobody idle. It says nothing of runs
that were suspended, of days of which only means are left, of slices (their one counter may have been taken away), or of
runs that never worked (COL001, COL006). It cannot tell a program that hangs from one that will go on, and so of a run
that has not ended it says how things stood at its last reading.
"""

from slurm_colloc.audit.rule import (
    ASLEEP,
    AWAKE,
    COUNTED_SURE,
    COUNTERS,
    IDLE_HOURS,
    IDLE_S,
    UNSAMPLED,
    UNUSED,
    Bound,
    Bounds,
    Rule,
    Said,
)
from slurm_colloc.audit.words import hours, runs, seen, zeros
from slurm_colloc.audited import Subject
from slurm_colloc.units import in_words


def _say(subject: Subject, bounds: Bounds) -> Said | None:
    longest_s, running = subject.figures["longest_s"], subject.figures["running"]
    if longest_s is None:
        return None
    still = f", {running:g} of them running at its last reading" if running else ""
    return Said(
        f"{hours(subject.gpu_hours)} without a kernel ({zeros(subject)}) after the last activity of "
        f"{runs(subject)}{still}, the longest for {in_words(longest_s)}, {seen(subject)}; the site's "
        f"bound is {hours(bounds['min_gpu_hours'])} of tails from {bounds['tail_min']:g} min",
        "look with 'colloc job JOB' when it fell idle; end notebooks after use, give programs that may hang a time "
        "limit near their need, and put long work on CPUs into a job of its own (--dependency=afterok)",
    )


RULE = Rule(
    code="COL005",
    name="idle tail",
    title="GPUs idle after an active start",
    documentation=__doc__ or "",
    bounds={
        "min_gpu_hours": Bound(24.0, "GPU-hours of such tails in the window, of one user, from which it speaks"),
        "tail_min": Bound(120.0, "minutes idle since the last activity, from which a run counts"),
    },
    judged={ASLEEP: AWAKE, UNSAMPLED: COUNTED_SURE, "only means are left of it": "tail_s IS NOT NULL"},
    found=f"NOT ({UNUSED}) AND {IDLE_S} > 0 AND {IDLE_S} >= 60 * $tail_min",
    hours=IDLE_HOURS,
    figures={
        "longest_s": f"max({IDLE_S}) FILTER (found)",
        "running": "count(*) FILTER (found AND end_s IS NULL)",
        **COUNTERS,
    },
    say=_say,
)

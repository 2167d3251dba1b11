# SPDX-License-Identifier: Apache-2.0
"""What a rule is: conditions on runs, and the words for what they find.

A rule's file has its documentation as the docstring and one RULE. Its conditions are SQL over the columns that
accounting/audited.py documents; they name no table, and every value in them is a parameter, so that a rule cannot
depend on anything but what is documented. Its words are a pure function of what was found of one subject.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from slurm_colloc.audited import RUNS, USER, Subject

# Why a run is not judged, where a condition has no words of its own.
UNKNOWN = "too little known of it"
UNSAMPLED, ASLEEP, YOUNG, SHORT = (
    "too little measured of it alone",
    "suspended, or its node failed",
    "only just begun",
    "too short",
)
UNSAMPLED_HOST = "too little measured of it on its nodes"
UNHELD, PIECE, UNDESCRIBED = "not known what it held", "a piece of a GPU", "its nodes not in site.toml"
HELD = "allocated > 0"
# Enough of it was seen, by a measurement of this run alone. What a neighbour did is never held against anybody.
SURE = "strong AND coverage_pct >= $min_coverage_pct"
# Beside it: a metric is judged by over as much of the allocated time as must be covered.
UTIL_SURE = f"{SURE} AND util_used IS NOT NULL AND 100 * util_measured >= $min_coverage_pct * allocated"
# While another program holds the profiling counters they read 0 and GPU_UTIL does not: such a run is not judged by SMs.
SM_SURE = f"{SURE} AND sm_used IS NOT NULL AND 100 * sm_measured >= $min_coverage_pct * allocated AND blackout_s = 0"
# What a run of a whole GPU would have fitted is known; its peak is none unless the run began inside the window.
FIT_NEEDS = {
    "begun before the window": "from_s <= start_s",
    "no completed run of one GPU measured alone on it": "fit_judged",
    UNHELD: HELD,
}
# Of suspensions only the length is known, not when they were: who was is not called idle, nor whose node broke.
AWAKE = "suspended_s = 0 AND NOT starts_with(state, 'SUSPENDED') AND state NOT IN ('NODE_FAIL', 'BOOT_FAIL')"
# A short run's readings are in good part of what came before and after it.
LONG = "span_s >= 60 * $shortest_min"
# What has just begun loads its program and its data.
SETTLED = "(end_s IS NOT NULL OR span_s >= 60 * $running_min)"
# For how many of its allocated GPU-hours a run's readings tell whether a kernel ran.
COUNTED = "greatest(if(util_used IS NULL, 0, util_measured), if(sm_used IS NULL, 0, sm_measured))"
COUNTED_SURE = (
    f"{SURE} AND {AWAKE} AND (util_used IS NOT NULL OR sm_used IS NOT NULL) AND allocated > 0 "
    f"AND 100 * {COUNTED} >= $min_coverage_pct * allocated AND blackout_s IS NOT NULL"
)
# Where its counters read 0 because they were taken away, a GPU was at work.
NEVER_USED = "coalesce(util_used, 0) = 0 AND coalesce(sm_used, 0) = 0 AND blackout_s = 0"
# A program that only opens a GPU shows some milliseconds of work on it, whatever it does then.
UNUSED = (
    "coalesce(100 * util_used <= $idle_pct * util_measured, true) "
    "AND coalesce(100 * sm_used <= $idle_pct * sm_measured, true) AND blackout_s = 0"
)
USED = {"at zero use": f"NOT coalesce({UNUSED}, false)"}
# The peak is of one node, the devices are of all.
MEMORY_KNOWN = "peak_mib IS NOT NULL AND (devices = 1 OR nodes IS NOT NULL)"
# What ends up in GPU memory before any work is a context, of some 600 MiB; more was put there. Where it is not known,
# something may have been.
PARKED = "coalesce(peak_mib * if(devices = 1, 1, nodes) >= $parked_mib * devices, true)"
# How long all of a run's devices were seen idle since its last activity: as if all that no reading tells of any of them
# lay in there, and at another time for each.
IDLE_S = f"greatest(0, tail_s - devices * greatest(0, span_s * (1 - {COUNTED} / allocated) - unseen_s))"
IDLE_HOURS = f"{IDLE_S} / span_s * allocated"
# A rule about jobs looks at those that run, and judges by a reading that is not old at the window's end: whoever takes
# in neither samples nor runs any more does not know who idles.
RUNS_ON = "end_s IS NULL"
READ_S = "(to_s - unseen_s)"
FRESH = f"$until_s - {READ_S} <= 60 * $reading_age_min"


class Bound(NamedTuple):
    """A number that a site may set: its default, and what it means, with the unit."""

    default: float
    meaning: str


SHORTEST = Bound(10.0, "minutes that a run must have had inside the window to be judged")
RUNNING = Bound(60.0, "minutes that a run must have had inside the window to be judged before it ends")
# How the CPU time, the memory and the reading of a job are known.
HOST = ("the job's own counters on its nodes",)
# Which counters a finding of the kernels of its runs stands on, and the most that they showed: words.kernels, zeros.
COUNTERS = {
    "util_most_pct": "max(100 * util_used / util_measured) FILTER (found AND util_measured > 0)",
    "sm_most_pct": "max(100 * sm_used / sm_measured) FILTER (found AND sm_measured > 0)",
    "by_util": "count(*) FILTER (found AND util_used IS NOT NULL)",
    "by_sm": "count(*) FILTER (found AND sm_used IS NOT NULL)",
}


class Said(NamedTuple):
    """A finding's words: what was seen, and what its reader should do."""

    evidence: str
    remedy: str


Bounds = Mapping[str, float]


class Rule(NamedTuple):
    """One rule; see audited.Question for the conditions (a ``judged`` without reasons has one), and for ``coverage``.

    ``say`` is asked only of subjects with as many hours found as the bound ``least`` says, and more than none; a rule
    without that bound of any hours. It returns None where other bounds of
    the site are not reached. A rule that is ``accounted`` can judge runs that nobody measured. ``methods`` say how it
    was measured where that is not how the GPUs of the runs were; of a rule without ``coverage`` nothing was measured.
    One about a JOB is of runs that go on, is judged by FRESH readings (its bound ``reading_age_min``), and has the
    figure ``idle_since_s``.
    """

    code: str
    name: str
    title: str
    documentation: str
    bounds: Mapping[str, Bound]
    judged: str | Mapping[str, str]
    found: str
    hours: str
    say: Callable[[Subject, Bounds], Said | None]
    figures: Mapping[str, str] = {}
    severity: str = "warning"
    about: str = USER
    source: str = RUNS
    subject: str = '"user"'
    accounted: bool = False
    coverage: str = "coverage_pct"
    methods: tuple[str, ...] = ()
    label: str = "NULL"
    least: str = "min_gpu_hours"

    @property
    def needs(self) -> Mapping[str, str]:
        """Return why a row cannot be judged -> the condition that it lacks then."""
        return {UNKNOWN: self.judged} if isinstance(self.judged, str) else self.judged

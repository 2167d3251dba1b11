# SPDX-License-Identifier: Apache-2.0
"""What a rule is: conditions on runs, and the words for what they find.

A rule's file has its documentation as the docstring and one RULE. Its conditions are SQL over the columns that
accounting/audited.py documents; they name no table, and every value in them is a parameter, so that a rule cannot
depend on anything but what is documented. Its words are a pure function of what was found of one subject.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from slurm_colloc.audited import USER, Subject

RUNS, NODES = "audited_runs", "audited_nodes"
# Enough of it was seen, by a measurement of this run alone. What a neighbour did is never held against anybody.
SURE = "strong AND coverage_pct >= $min_coverage_pct"
# Beside it: a metric is judged by over as much of the allocated time as must be covered.
UTIL_SURE = f"{SURE} AND util_used IS NOT NULL AND 100 * util_measured >= $min_coverage_pct * allocated"
# While another program holds the profiling counters they read 0 and GPU_UTIL does not: such a run is not judged by SMs.
SM_SURE = f"{SURE} AND sm_used IS NOT NULL AND 100 * sm_measured >= $min_coverage_pct * allocated AND blackout_s = 0"
# Of suspensions only the length is known, not when they were: who was suspended is not called idle.
AWAKE = "suspended_s = 0 AND NOT starts_with(state, 'SUSPENDED')"
# A short run's readings are in good part of what came before and after it.
LONG = "span_s >= 60 * $shortest_min"
# For how many of its allocated GPU-hours a run's readings tell whether a kernel ran.
COUNTED = "greatest(if(util_used IS NULL, 0, util_measured), if(sm_used IS NULL, 0, sm_measured))"
COUNTED_SURE = (
    f"{SURE} AND {AWAKE} AND (util_used IS NOT NULL OR sm_used IS NOT NULL) AND allocated > 0 "
    f"AND 100 * {COUNTED} >= $min_coverage_pct * allocated"
)
# Where its counters read 0 because they were taken away, a GPU was at work.
UNUSED = "coalesce(util_used, 0) = 0 AND coalesce(sm_used, 0) = 0 AND blackout_s = 0"
# What ends up in GPU memory before any work is a context, of some 600 MiB; more was put there.
PARKED = "coalesce(peak_mib * coalesce(nodes, 1) >= $parked_mib * devices, false)"
# How long all of a run's devices were seen idle since its last activity: as if all that no reading tells of any of them
# lay in there, and at another time for each.
IDLE_S = f"greatest(0, tail_s - devices * greatest(0, span_s * (1 - {COUNTED} / allocated) - unseen_s))"
IDLE_HOURS = f"{IDLE_S} / span_s * allocated"


class Bound(NamedTuple):
    """A number that a site may set: its default, and what it means, with the unit."""

    default: float
    meaning: str


SHORTEST = Bound(10.0, "minutes that a run must have had inside the window to be judged")


class Said(NamedTuple):
    """A finding's words: what was seen, and what its reader should do."""

    evidence: str
    remedy: str


Bounds = Mapping[str, float]


class Rule(NamedTuple):
    """One rule; see audited.Question for the conditions.

    ``say`` returns None where the site's bounds are not reached; it is asked only of subjects with something found. A
    rule that is ``accounted`` can judge runs that nobody measured.
    """

    code: str
    name: str
    title: str
    documentation: str
    bounds: Mapping[str, Bound]
    judged: str
    found: str
    hours: str
    say: Callable[[Subject, Bounds], Said | None]
    figures: Mapping[str, str] = {}
    severity: str = "warning"
    about: str = USER
    source: str = RUNS
    subject: str = '"user"'
    accounted: bool = False
    label: str = "NULL"

# SPDX-License-Identifier: Apache-2.0
"""COL006: GPU memory filled, and no kernel.

A user's runs put something into the memory of their GPUs, and over all of the samples hardly a kernel ran
(audit.idle_pct): a model that waits for requests, a notebook with its data loaded. That is no forgotten shell (COL001),
and the same run is never both: audit.parked_mib of site.toml tells them apart, by the peak over a run's GPUs of one
node, for each GPU.

The evidence is COL001's: enough of the time sampled by a measurement of this run alone, no suspension, a 0 that can be
believed, and no run that is short or has just begun. It does not say that a run was
useless, only that others could not have what it waited with. One that served a request now and then is, if these took
less.
"""

from slurm_colloc.audit.rule import (
    ASLEEP,
    AWAKE,
    COUNTED,
    COUNTED_SURE,
    COUNTERS,
    LONG,
    MEMORY_KNOWN,
    PARKED,
    RUNNING,
    SETTLED,
    SHORT,
    SHORTEST,
    UNSAMPLED,
    UNUSED,
    YOUNG,
    Bound,
    Bounds,
    Rule,
    Said,
)
from slurm_colloc.audit.words import hours, kernels, runs, seen
from slurm_colloc.audited import Subject
from slurm_colloc.units import significant


def _say(subject: Subject, bounds: Bounds) -> Said | None:
    peak_mib = subject.figures["peak_mib"]
    if peak_mib is None:
        return None
    return Said(
        f"{hours(subject.gpu_hours)} in {runs(subject)} with up to {significant(peak_mib / 1024)} GiB of GPU memory "
        f"filled and {kernels(subject)}, {seen(subject)}; the site's "
        f"bound is {hours(bounds['min_gpu_hours'])}",
        "what waits for requests can wait on a slice or beside others (csub), or be started when it is asked for; end "
        "notebooks after use",
    )


RULE = Rule(
    code="COL006",
    name="parked memory",
    title="GPU memory filled, and no kernel",
    documentation=__doc__ or "",
    bounds={
        "min_gpu_hours": Bound(24.0, "GPU-hours parked in the window, of one user, from which it speaks"),
        "shortest_min": SHORTEST,
        "running_min": RUNNING,
    },
    judged={
        ASLEEP: AWAKE,
        SHORT: LONG,
        YOUNG: SETTLED,
        UNSAMPLED: COUNTED_SURE,
        "GPU memory not known": MEMORY_KNOWN,
    },
    found=f"{UNUSED} AND {PARKED}",
    hours=COUNTED,
    figures={"peak_mib": "max(peak_mib) FILTER (found)", **COUNTERS},
    say=_say,
)

# SPDX-License-Identifier: Apache-2.0
"""COL012: GPUs that wait for data.

A user's runs left their GPUs idle for part of the time (GPU_UTIL, whether a kernel ran) and little used (SM activity),
while their own CPU cores were all busy, or while they read a lot: what the GPU works on comes too slowly. More GPUs
would not help; more cores or a nearer copy of the data would.

Cores are those that the job was given, busy by its own processes; bytes read are those of its own system calls, page
cache and sockets included, files in memory maps not. A GPU at work nearly all of the time is not waiting, however
little of it is used: a program that turns in a loop while it waits for the GPU keeps a core busy, too. Nothing is said
of slices, for which the driver has no GPU_UTIL, of runs whose profiling counters were taken away meanwhile, of short
and of suspended runs, of those that have just begun, or where nobody knows what the host did on each of their nodes.
Figures are means over a run: one that prepares its data on all cores before it begins on the GPU is named, too, and
better split in two.
"""

from collections.abc import Iterator, Mapping

from slurm_colloc.audit.rule import (
    AWAKE,
    HELD,
    LONG,
    RUNNING,
    SETTLED,
    SHORTEST,
    UNHELD,
    UNSAMPLED,
    UNSAMPLED_HOST,
    Bound,
    Bounds,
    Rule,
    Said,
    hours,
    runs,
    seen,
)
from slurm_colloc.core.audit_model import Subject
from slurm_colloc.core.units import counted, significant

_CORES = "coalesce(100 * cores >= $cores_pct * cpus AND cpus > 0, false)"
# Bytes read while nobody looked are not known; spread over all of the time, a rate is rather too low.
_READ = "coalesce(read_mib >= $read_mib_s * span_s * nodes AND read_mib > 0, false)"


def _say(subject: Subject, bounds: Bounds) -> Said | None:
    used, util = subject.figures["sm_used"], subject.figures["util_pct"]
    if used is None or util is None:
        return None
    return Said(
        f"SM activity of {significant(100 * used / subject.gpu_hours, 2)} % and GPU_UTIL of {util:.0f} % over "
        f"{hours(subject.gpu_hours)} of {runs(subject)}, while {' and '.join(_busy(subject.figures, bounds))}, "
        f"{seen(subject)}; the site's threshold is {hours(bounds['min_gpu_hours'])} below {bounds['below_pct']:g} % "
        f"and {bounds['util_below_pct']:g} %",
        "give the loader more cores, keep the data ready to use and near (node-local, few large files), or decode on "
        "the GPU",
    )


def _busy(figures: Mapping[str, float | None], bounds: Bounds) -> Iterator[str]:
    by_cores, by_reading = int(figures["by_cores"] or 0), int(figures["by_reading"] or 0)
    if by_cores:
        yield (
            f"{counted(by_cores, 'run')} kept {significant(figures['cores'] or 0)} of "
            f"{significant(figures['cpus'] or 0)} cores busy on average"
        )
    if by_reading:
        yield f"{counted(by_reading, 'run')} read at least {bounds['read_mib_s']:g} MiB/s on each node"


RULE = Rule(
    code="COL012",
    name="starved",
    title="GPUs that wait for data",
    documentation=__doc__ or "",
    bounds={
        "min_gpu_hours": Bound(24.0, "measured GPU-hours in the window, of one user, from which it speaks"),
        "below_pct": Bound(40.0, "a run's SM activity in percent, below which it counts"),
        "util_below_pct": Bound(70.0, "a run's GPU_UTIL in percent, below which it counts"),
        "cores_pct": Bound(90.0, "percent of its cores kept busy on average, from which they are the narrow place"),
        "read_mib_s": Bound(500.0, "MiB read per second on each node, from which reading is"),
        "shortest_min": SHORTEST,
        "running_min": RUNNING,
    },
    judged={
        **AWAKE,
        **LONG,
        **SETTLED,
        UNSAMPLED: "sm_sure AND util_sure",
        UNSAMPLED_HOST: "host_pct >= $min_coverage_pct "
        "AND (cores IS NOT NULL AND cpus > 0 OR read_mib IS NOT NULL AND nodes > 0)",
        UNHELD: HELD,
    },
    found="sm_used > 0 AND 100 * sm_used < $below_pct * sm_measured "
    f"AND 100 * util_used < $util_below_pct * util_measured AND ({_CORES} OR {_READ})",
    hours="sm_measured",
    figures={
        "sm_used": "sum(sm_used::DECIMAL(38, 12)) FILTER (found)::DOUBLE",
        "util_pct": "100 * sum(util_used::DECIMAL(38, 12)) FILTER (found)::DOUBLE "
        "/ nullif(sum(util_measured::DECIMAL(38, 12)) FILTER (found)::DOUBLE, 0)",
        "by_cores": f"count(*) FILTER (found AND {_CORES})",
        "by_reading": f"count(*) FILTER (found AND {_READ})",
        "cores": f"sum((cores * span_s)::DECIMAL(38, 6)) FILTER (found AND {_CORES})::DOUBLE "
        f"/ nullif(sum(span_s::DECIMAL(38, 6)) FILTER (found AND {_CORES})::DOUBLE, 0)",
        "cpus": f"sum((cpus * span_s)::DECIMAL(38, 6)) FILTER (found AND {_CORES})::DOUBLE "
        f"/ nullif(sum(span_s::DECIMAL(38, 6)) FILTER (found AND {_CORES})::DOUBLE, 0)",
    },
    say=_say,
)

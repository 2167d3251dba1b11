# SPDX-License-Identifier: Apache-2.0
"""DOC070 to DOC074: clocks, and how far ahead backfill plans."""

import re
from collections.abc import Iterator

from slurm_colloc.core.units import counted
from slurm_colloc.site.doctor.facts import Blank, Finder, Seen, Site, known

# Beyond what asking takes; a few seconds of difference are no harm.
_AHEAD_S = 5.0
_DAY_MIN = 1440


def _clocks(site: Site) -> Iterator[Seen | Blank]:
    ahead_s, unsure_s = known(site.clock_ahead_s)
    if abs(ahead_s) > _AHEAD_S + unsure_s:
        yield Seen(
            f"{site.this_node} (this machine)",
            f"its clock is {abs(ahead_s):.0f} s {'ahead of' if ahead_s > 0 else 'behind'} slurmctld's",
        )
    at_s = known(site.queue).at_s
    for node in site.nodes:
        late_s = (node.slurmd_start_s or 0.0) - at_s
        if late_s > _AHEAD_S + unsure_s:
            yield Seen(node.name, f"its slurmd started {late_s:.0f} s after now: its clock is ahead by that at least")


def _depth(site: Site) -> Iterator[Seen | Blank]:
    if site.settings.get("SchedulerType") != "sched/backfill":
        return
    queue = known(site.queue)
    if queue.depth_jobs is None or queue.queue_jobs is None:
        if queue.pending_jobs:
            yield Blank("backfill", f"{counted(queue.pending_jobs, 'job')} wait, and no cycle of it has ended yet")
        return
    if queue.depth_jobs < queue.queue_jobs:
        match = re.search(r"(?:^|,)bf_max_job_test=(\d+)", site.settings.get("SchedulerParameters", ""))
        yield Seen(
            "SchedulerParameters of slurm.conf",
            f"of {queue.queue_jobs} that waited the last cycle came to {queue.depth_jobs}; bf_max_job_test is "
            f"{match[1] if match else 'not set'}",
        )


def _no_default(site: Site) -> Iterator[Seen]:
    for partition in site.partitions:
        endless = partition.max_time_min is None or partition.max_time_min > _DAY_MIN
        if partition.record.get("DefaultTime") == "NONE" and endless and site.pieces(partition.name):
            yield Seen(f"partition '{partition.name}'", f"no DefaultTime; MaxTime={partition.record.get('MaxTime')}")


FINDERS: dict[str, Finder] = {
    "DOC070": _clocks,
    "DOC071": _depth,
    "DOC074": _no_default,
}

# SPDX-License-Identifier: Apache-2.0
"""DOC070 to DOC074: clocks, and how far ahead backfill plans."""

import re
from collections.abc import Iterator

from slurm_colloc.core.units import counted
from slurm_colloc.site.doctor.facts import Blank, Check, Seen, Site, known

# Beyond what asking takes; a few seconds of difference are no harm.
_AHEAD_S = 5.0
_DAY_MIN = 1440


def _clocks(site: Site) -> Iterator[Seen | Blank]:
    ahead_s, unsure_s = known(site.clock_ahead_s)
    if abs(ahead_s) > _AHEAD_S + unsure_s:
        side = "ahead of" if ahead_s > 0 else "behind"
        yield Seen(f"{site.this_node} (this machine)", f"its clock is {abs(ahead_s):.0f} s {side} slurmctld's")
    at_s = known(site.queue).at_s
    for node in site.nodes:
        if node.slurmd_start_s is not None and node.slurmd_start_s > at_s + _AHEAD_S + unsure_s:
            ahead = node.slurmd_start_s - at_s
            yield Seen(node.name, f"its slurmd started {ahead:.0f} s after now: its clock is ahead by that at least")


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
        most = match[1] if match else "not set"
        said = f"of {queue.queue_jobs} that waited the last cycle came to {queue.depth_jobs}; bf_max_job_test is {most}"
        yield Seen("SchedulerParameters of slurm.conf", said)


def _no_default(site: Site) -> Iterator[Seen]:
    for partition in site.partitions:
        endless = partition.max_time_min is None or partition.max_time_min > _DAY_MIN
        if partition.record.get("DefaultTime") == "NONE" and endless and site.pieces(partition.name):
            yield Seen(f"partition '{partition.name}'", f"no DefaultTime; MaxTime={partition.record.get('MaxTime')}")


CHECKS = (
    Check(
        "DOC070",
        "error",
        "clocks that do not agree",
        "samples fall outside the jobs that they are of; beyond five minutes munge refuses each message, and the node "
        "is lost",
        "run chrony or another NTP client on every node",
        "munge(7): a credential is good for five minutes by default; https://slurm.schedmd.com/quickstart_admin.html",
        _clocks,
    ),
    Check(
        "DOC071",
        "warning",
        "backfill does not reach the end of the queue",
        "small jobs for a free share wait behind others that cannot begin: sharing makes queues longer",
        "raise bf_max_job_test and bf_max_time, set bf_continue, and bf_max_job_user for those who queue thousands",
        "slurm.conf(5), SchedulerParameters; sdiag(1), Last depth cycle and Last queue length",
        _depth,
    ),
    Check(
        "DOC074",
        "warning",
        "jobs that name no time are planned for longer than a day",
        "backfill cannot put them before a larger job that waits: a free share stays free",
        "DefaultTime=01:00:00 or the like",
        "slurm.conf(5), DefaultTime; seen on Slurm 22.05.8 and 26.05.5",
        _no_default,
    ),
)

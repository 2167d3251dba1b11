# SPDX-License-Identifier: Apache-2.0
"""The hours that jobs waited beyond their replay, beside free GPUs or at a limit. Pure."""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cache
from itertools import accumulate, pairwise
from math import inf
from typing import NamedTuple

from slurm_colloc.plan.model import Job, Site
from slurm_colloc.plan.past import Past
from slurm_colloc.slurm.limits import Cap


class Unreplayed(NamedTuple):
    """The hours of waiting beyond the replay, and what was so meanwhile.

    ``at_limit_hours`` are those in which a job would have brought the GPUs of its QOS, account or user above their
    limit, None where no limits are known. ``beside_free_hours`` are those in which at least as many GPUs as it asked
    for were free in its partition, perhaps on several nodes. Both may be the same hours.
    """

    hours: float
    at_limit_hours: float | None
    beside_free_hours: float


def _seconds(changes: Iterable[tuple[float, int]]) -> Callable[[int, float, float], float]:
    """Return a function that tells the seconds of a time in which a number that changes so was no more than so much.

    There are none before the first change or after the last.
    """
    moments, steps = zip(*sorted(changes), strict=True)
    counts = list(accumulate(steps))

    @cache
    def sums(most: int) -> list[float]:
        spans = zip(counts, pairwise(moments), strict=False)
        return list(
            accumulate((end_s - begin_s if count <= most else 0.0 for count, (begin_s, end_s) in spans), initial=0.0)
        )

    def until(most: int, at_s: float) -> float:
        place = bisect_right(moments, at_s) - 1
        return sums(most)[place] + (at_s - moments[place] if counts[place] <= most else 0.0)

    return lambda most, from_s, until_s: until(most, until_s) - until(most, from_s)


def unreplayed(
    past: Past, site: Site, replayed_s: Mapping[int, float], caps: Sequence[Cap] | None
) -> Unreplayed | None:
    """Return the hours that jobs waited beyond a replay (by job number, in seconds); None where jobs had shares.

    A GPU with shares is not free, and accounting does not tell how many there were.
    """
    if any(run.job.shape.kind in ("mps", "shard") for run in past.runs):
        return None
    limits = {(cap.level, cap.key): cap.tres["gres/gpu"] for cap in caps or () if "gres/gpu" in cap.tres}
    first_s = min(run.job.submit_s for run in past.runs)
    changes = defaultdict[Hashable, list[tuple[float, int]]](lambda: [(first_s, 0)])
    for run in past.runs:
        gpus = run.job.shape.units_in_all
        for group in (run.job.shape.kind, *_limited(run.job, limits)):
            changes[group] += (run.begun_s, gpus), (run.begun_s + run.job.run_s, -gpus)
    counts = {group: _seconds(of_group) for group, of_group in changes.items()}
    offered = Counter[tuple[str, str]]()
    for node in site.nodes:
        offered.update({(name, kind): number for name in node.partitions for kind, number in node.gres})
    beyond_s = at_limit_s = beside_free_s = 0.0
    for run in past.counted:
        job, gpus = run.job, run.job.shape.units_in_all
        span = job.submit_s + replayed_s.get(job.number, inf), run.begun_s
        if (waited_s := span[1] - span[0]) <= 0:
            continue
        beyond_s += waited_s
        most = offered[job.partition, job.shape.kind] - gpus
        beside_free_s += counts[job.shape.kind](most, *span)
        within_s = (counts[group](limit - gpus, *span) for group, limit in _limited(job, limits).items())
        at_limit_s += waited_s - min(within_s, default=waited_s)
    return Unreplayed(beyond_s / 3600, None if caps is None else at_limit_s / 3600, beside_free_s / 3600)


def _limited(job: Job, limits: Mapping[tuple[str, str], int]) -> dict[Hashable, int]:
    """Return whose GPUs together are limited where this job is one of them, and to how many."""
    qos, account = f"QOS '{job.qos}'", f"account '{job.account}'"
    members = {
        (qos, "GrpTRES"): "",
        (qos, "MaxTRESPerUser"): job.user,
        (qos, "MaxTRESPerAccount"): job.account,
        (account, "GrpTRES"): "",
        (f"user '{job.user}' in {account}", "GrpTRES"): "",
    }
    return {(limit, whose): limits[limit] for limit, whose in members.items() if limit in limits}

# SPDX-License-Identifier: Apache-2.0
"""How long a pack's jobs may take, by one task's time limit and within the site's limits."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.model import JobRequest, Reason, because
from slurm_colloc.placement.candidate import asked_limit_min, asked_partitions
from slurm_colloc.placement.packing import jobs_needed, time_needed_min
from slurm_colloc.slurm.limits import MINUTES, Limits, broken_limit
from slurm_colloc.submit.plan import NotPackedError, Slurm
from slurm_colloc.submit.slurm_answers import limits_of_user


class PackTime(NamedTuple):
    """How long it takes, by which the tasks go over so many jobs, so many at a time.

    ``time_min`` is the jobs' time limit (None: they have none) without ``spare_min``, as much as one task takes that is
    run again; ``limit_min`` that of one task (None: its job's).
    """

    jobs: int
    at_once: int
    time_min: int | None
    spare_min: int
    limit_min: float | None


def time_of(
    request: JobRequest,
    tasks: int,
    jobs: int,
    at_once: int,
    most: int,
    factor: float,
    config: SiteConfig,
) -> PackTime:
    """Return the time that the tasks need; without --time a task has the partition's default as its limit, often days.

    Args:
        request: of one task.
        tasks: how many there are.
        jobs: over so many jobs they go at least.
        at_once: how many run at a time in each.
        most: how many may run at a time in all of them; 0: any number.
        factor: how much longer than alone each may take while ``at_once`` are running.
        config: the site.

    Raises:
        NotPackedError: there is not so much.
    """
    limit_min = asked_limit_min(request, config)
    if limit_min is None:
        return PackTime(jobs, at_once, None, 0, None)
    limits = [item.max_time_min for item in asked_partitions(request, config) if item.max_time_min is not None]
    longest_min = min(limits, default=None)
    lacks = [because("tasks-lack-time")] if request.time_limit_min is None else []
    needed = jobs_needed(tasks, at_once, limit_min, factor, longest_min)
    if isinstance(needed, Reason):
        raise NotPackedError(needed, *lacks)
    time_min = time_needed_min(-(-tasks // max(jobs, needed)), at_once, limit_min, factor)
    if needed > jobs:
        jobs, at_once = needed, min(at_once, -(-tasks // needed))
    if most and jobs * at_once > most:
        at_once = most // jobs
        if at_once < 1:
            raise NotPackedError(because("jobs-exceed-most", jobs=jobs, most=most), *lacks)
        time_min = time_needed_min(-(-tasks // jobs), at_once, limit_min, factor)
        if time_min > (longest_min or math.inf):
            raise NotPackedError(because("most-exceeds-time", most=most), *lacks)
    limit_min *= factor
    with_spare_min = math.floor(min(time_min + math.ceil(limit_min), longest_min or math.inf))
    return PackTime(jobs, at_once, time_min, with_spare_min - time_min, limit_min)


def within_limits(
    request: JobRequest,
    wanted: Mapping[str, int],
    time_min: int | None,
    spare_min: int,
    config: SiteConfig,
    slurm: Slurm,
) -> tuple[int | None, Reason | None]:
    """Return the time limit, within the accounting's limits; the time for tasks that are run again is given up first.

    Which limit that would have broken comes with the answer.

    Raises:
        NotPackedError: it would break one all the same, and Slurm might let it wait for ever.
    """
    with_spare_min = None if time_min is None else time_min + spare_min
    if not config.limits.enforced:
        return with_spare_min, None
    limits = limits_of_user(config, lambda: slurm.limits(config.cluster))
    if isinstance(limits, Reason):
        raise NotPackedError(limits)
    if broken := _broken(request, wanted, time_min, config, limits):
        raise NotPackedError(broken)
    why = _broken(request, wanted, with_spare_min, config, limits)
    return time_min if why else with_spare_min, why


def _broken(
    request: JobRequest, wanted: Mapping[str, int], time_min: int | None, config: SiteConfig, limits: Limits
) -> Reason | None:
    """Return the limit that the job would break."""
    every = dict(wanted)
    if time_min is not None and time_min > (asked_limit_min(request, config) or 0):
        every[MINUTES] = time_min
    for item in asked_partitions(request, config):
        if why := broken_limit(limits, every, request.account, request.qos, item.name, item.qos):
            return why
    return None

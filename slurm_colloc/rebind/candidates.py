# SPDX-License-Identifier: Apache-2.0
"""Which waiting jobs may be given a piece late, and which: pure functions of a job, its record and the site."""

from collections.abc import Callable

from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.model import Footprint, Gres, Placement
from slurm_colloc.estimate.calibration import RUNNING
from slurm_colloc.placement.candidate import asked_limit_min, partition_names
from slurm_colloc.placement.choose import place
from slurm_colloc.rebind.forms import Form
from slurm_colloc.rebind.waiting import Waiting
from slurm_colloc.slurm.free_gpus import kind_of
from slurm_colloc.slurm.limits import Limits
from slurm_colloc.slurm.pending import PendingJob
from slurm_colloc.submit.slurm_answers import access_of

# Why a job may wait and be changed: all others are a limit, somebody's hold, or an error. An administrator's hold has a
# reason of its own.
_WAITS_FOR = frozenset({"None", "Priority", "Resources", "Dependency", "JobHeldUser", "JobArrayTaskLimit"})
# With these fields a job is not changed (facts of each: docs/how-to/late-binding.md).
_ODD = ("AdminComment", "HetJobId", "Reservation", "TresFreq")
_UNSET = ("", "(null)", "N/A", "None", "Unknown")


def placed_late(
    job: Waiting, footprint: Footprint, config: SiteConfig, limits: Callable[[], Limits], late: str
) -> Placement:
    """Return what a waiting job would be given today in its own partitions: it is not moved to others."""
    partitions = tuple(partition._replace(pieces_in=()) for partition in config.partition)
    slices = tuple(mode for mode in config.sharing.order if mode == "mig")
    order = slices if late == "slices" else config.sharing.order
    config = config._replace(partition=partitions, sharing=config.sharing._replace(order=order))
    return place(job.request, footprint, config, access_of(job.request, footprint, config, limits))


def why_not(job: Waiting, placement: Placement, footprint: Footprint, form: Form, *, costs_priority: bool) -> str:
    """Return why a job is not given a piece late, whatever became of it; empty where it may be.

    ``costs_priority`` says that a job without a whole GPU has less of it (PriorityWeightTRES).
    """
    if placement.gres is None or not form.allows(job.request, placement.gres):
        return "form"
    if form.completed and footprint.rung == RUNNING:
        return "completed"
    return "priority" if costs_priority and placement.gres.name != "gpu" else ""


def why_not_now(record: PendingJob, job: Waiting, placement: Placement, form: Form, config: SiteConfig) -> str:
    """Return why a record is left as it is, empty where it may be changed: one that anybody has changed is not."""
    asked_min = asked_limit_min(job.request, config) if placement.time_limit_min else job.request.time_limit_min
    if record.reason not in _WAITS_FOR:
        return "reason"
    if not record.asks(form.field, job.request.gres) or asked_min not in (None, record.time_limit_min):
        return "changed"
    if {*record.record.get("Partition", "").split(",")} ^ {*partition_names(job.request, config)}:
        return "changed"
    if placement.time_limit_min is not None and record.record.get("Deadline", "") not in _UNSET:
        return "deadline"
    if record.has_node_alone:
        return "exclusive"
    # A slice is a GPU, and has what the partition gives for one.
    if record.per_gpu and (placement.mode != "mig" or job.request.cpus_per_gpu or job.request.mem_per_gpu):
        return "per-gpu"
    return next((name for name in _ODD if record.record.get(name, "") not in _UNSET), "")


def whole_kinds(job: Waiting, config: SiteConfig) -> set[str]:
    """Return the kinds of whole GPUs that a job could have as asked, as ``Free.units`` calls them."""
    kinds = {kind_of(gres) for gres in job.request.gres}
    pools = (pool for pool in config.pool if set(partition_names(job.request, config)) & set(pool.partitions))
    return kinds | {kind_of(Gres("gpu", pool.gpu_type, 1)) for pool in pools} if "gpu" in kinds else kinds


def take(free: dict[tuple[str, str], int], kinds: set[str], units: int, job: Waiting, config: SiteConfig) -> bool:
    """Take units of one of these kinds off what is free, in each partition that may be the job's.

    Returns whether there were so many.
    """
    keys = [
        (name, kind)
        for name in partition_names(job.request, config)
        for kind in kinds
        if free.get((name, kind), 0) >= units
    ]
    for key in keys:
        free[key] -= units
    return bool(keys)

# SPDX-License-Identifier: Apache-2.0
"""Types of samples, runs and usage.

As in model.py, units are the last word of a name, and None means not known and is never 0.
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

from slurm_colloc.core.model import Gres

# Figures of a device that add up over the jobs on it: at a time each holds so much of it, and the rest is nobody's.
ADDITIVE = (
    "gpu_util_pct",
    "gr_active_pct",
    "sm_active_pct",
    "sm_occupancy_pct",
    "tensor_active_pct",
    "dram_active_pct",
    "energy_j",
)
# A run of which less of its time was sampled is not judged, and nobody is named: the rest may have been otherwise.
MIN_COVERAGE_PCT = 60.0
# How it is known what of a device's reading is a job's; the most certain first.
MEASURED = "measured"
BY_GPU_TIME, BY_MEMORY, BY_SHARES, EQUALLY = "split by GPU time", "split by memory", "split by shares", "split equally"
WHOLE_DEVICE, UNATTRIBUTED = "whole device", "unattributed"


class DeviceSample(NamedTuple):
    """One reading of a GPU or of a MIG slice; percentages are of this unit, not of the card.

    ``process_list`` says whether the driver offered the list of this unit's processes. ``gpu_util_pct`` to
    ``dram_active_pct`` are means over the interval (docs/explanation/metrics.md says of what), ``energy_j`` is what
    the unit took in it, ``power_w`` its draw at the moment of reading.
    """

    uuid: str
    gres_index: int
    model: str
    profile: str
    mem_total_mib: int
    sm_count: int
    whole_sm_count: int
    process_list: bool
    gpu_util_pct: float | None
    gr_active_pct: float | None
    sm_active_pct: float | None
    sm_occupancy_pct: float | None
    tensor_active_pct: float | None
    dram_active_pct: float | None
    gpu_mem_used_mib: int | None
    power_w: float | None
    energy_j: float | None


class Lost(NamedTuple):
    """The most that rejected rows may have been: so many GPU-hours, beside those of the rows used.

    ``unknown_rows`` are rejected rows that name a GPU and of which nobody can tell; ``used_rows`` are those with one.
    """

    gpu_hours: float = 0.0
    unknown_rows: int = 0
    used_gpu_hours: float = 0.0
    used_rows: int = 0

    @property
    def too_many(self) -> bool:
        """Return whether more than one in a hundred GPU-hours, or rows with a GPU, may be lost."""
        return self.gpu_hours > 0.01 * (self.gpu_hours + self.used_gpu_hours) or self.unknown_rows > 0.01 * (
            self.unknown_rows + self.used_rows
        )


def lost_of_all(lost: Iterable[Lost]) -> Lost:
    """Return what the rejected rows of several sources may have been."""
    return Lost(*(sum(values) for values in zip(*lost, strict=True)))


class ProcessKind(StrEnum):
    """How a process came onto the GPU; COMPUTE has a context of its own, of UNKNOWN that is not known."""

    UNKNOWN = "unknown"
    COMPUTE = "compute"
    MPS_CLIENT = "client"
    MPS_SERVER = "server"


class ProcessSample(NamedTuple):
    """One process on a GPU; ``job_id`` is empty when no job of this node could be found for it.

    ``start_ticks`` tells it from a later process of the same pid; None for one that cannot be seen from here.
    """

    uuid: str
    pid: int
    start_ticks: int | None
    kind: str
    job_id: str
    gpu_mem_used_mib: int | None
    sm_util_pct: float | None


class DeviceAllocation(NamedTuple):
    """A job that Slurm gave a GPU or slice to; ``weight`` is its part beside the others' there, None when unknown."""

    uuid: str
    job_id: str
    weight: float | None


class HostSample(NamedTuple):
    """A job's use of the node besides: CPU time and bytes moved in the interval, memory at its end."""

    job_id: str
    cpu_s: float | None
    host_mem_mib: int | None
    read_mib: float | None
    written_mib: float | None


class NodeSample(NamedTuple):
    """All that one pass of the sampler saw on a node.

    ``interval_s`` is the time this reading stands for, ending at ``at_s``; 0 in a sampler's first pass.
    ``holders`` are the jobs that Slurm gave a GPU to, whether they run anything on it or not.
    """

    at_s: float
    interval_s: float
    node: str
    boot_id: str
    devices: tuple[DeviceSample, ...]
    processes: tuple[ProcessSample, ...]
    holders: tuple[DeviceAllocation, ...]
    hosts: tuple[HostSample, ...]


class AttributedUse(NamedTuple):
    """The part of one device's reading that belongs to one job; ``job_id`` is empty for the unattributed rest.

    ``process_count`` is of its processes on the device: 0 is a device held idle, None is not known. ``direct_count`` is
    of those among them that are no clients of MPS; None where that is not known of each. ``method`` is one
    of the above, and holds for all figures of ADDITIVE; memory is the processes' own.
    """

    uuid: str
    job_id: str
    process_count: int | None
    direct_count: int | None
    gpu_util_pct: float | None
    gr_active_pct: float | None
    sm_active_pct: float | None
    sm_occupancy_pct: float | None
    tensor_active_pct: float | None
    dram_active_pct: float | None
    energy_j: float | None
    gpu_mem_used_mib: int | None
    method: str


class AllocationRow(NamedTuple):
    """One run of one job in the accounting, from whatever source; times in UTC epoch seconds.

    ``limit_min`` is its time limit, None where there is none or it is not known.
    """

    cluster: str
    job_id: str
    job_id_raw: str
    user: str
    account: str
    partition: str
    qos: str
    state: str
    submit_s: int | None
    start_s: int | None
    end_s: int | None
    suspended_s: int
    gres: tuple[Gres, ...]
    node_list: str
    job_name: str
    limit_min: int | None = None


class JobUsage(NamedTuple):
    """One run's GPUs and use inside a window; GPU-hours are in whole-GPU equivalents.

    ``gpu_type`` names its gres types. ``held_gpu_hours`` is the time of GPUs that it kept from others, suspensions
    included: a GPU counts whole, a slice as its part by slices, a share as one nth if n jobs were seen to share, and it
    is None where nobody ever saw them; the time in which nobody counted them is ``held_unknown_hours``.
    ``*_measured_gpu_hours`` are the allocated GPU-hours that samples of the metric cover, the denominator of the used
    ones: used <= measured <= allocated, and all are None where the size of its share is not known.
    ``sm_beyond_gpu_hours`` is what a share used beyond its size, and in none of them. ``coverage_pct`` is the sampled
    part of the run's device time; None where the source does not record it.
    ``gpu_mem_peak_mib`` is the sum over the run's devices of one node at one time, the largest of several nodes.
    ``held_idle_gpu_hours`` is sampled time without a process of the run on its device, ``idle_tail_s`` the time from
    the last reading with activity on any of its devices to its last reading, less all that nobody measured and all
    suspensions, ``energy_j`` what its part of the devices took. ``cpu_cores_used`` to ``written_mib`` are of the host:
    CPU time over sampled time, memory at peak on one node, bytes moved. ``suspended_s``, ``elapsed_s`` (without it) and
    the limit are of the whole run, whatever of it is in the window.
    """

    cluster: str
    job_id: str
    job_id_raw: str
    user: str
    account: str
    partition: str
    qos: str
    state: str
    job_name: str
    gres: str
    gpu_type: str
    start_s: float
    end_s: float
    allocated_gpu_hours: float | None
    held_gpu_hours: float | None
    held_unknown_hours: float
    util_measured_gpu_hours: float | None
    util_used_gpu_hours: float | None
    sm_measured_gpu_hours: float | None
    sm_used_gpu_hours: float | None
    sm_beyond_gpu_hours: float | None
    gpu_mem_peak_mib: int | None
    coverage_pct: float | None
    shared_hours: float | None
    held_idle_gpu_hours: float | None
    idle_tail_s: float | None
    energy_j: float | None
    cpu_cores_used: float | None
    host_mem_peak_mib: int | None
    read_mib: float | None
    written_mib: float | None
    methods: tuple[str, ...]
    suspended_s: int | None = None
    elapsed_s: float | None = None
    limit_min: int | None = None


class StrayUse(NamedTuple):
    """How long processes outside any job were on GPUs of one node; ``gpu_hours`` counts each GPU or slice as one."""

    cluster: str
    node: str
    gpus: int
    gpu_hours: float
    last_s: float


class GroupUsage(NamedTuple):
    """The runs of one user, account or the like, added up; see JobUsage for the terms.

    Runs whose share's size is not known (``jobs_without_size``) are in the counts and in ``held_unknown_hours``, not
    in the GPU-hours.
    ``jobs_measured`` are those with either metric. ``*_idle_gpu_hours`` are measured less used, each metric
    for itself (they are never added). ``*_weighted_pct`` is used
    over measured GPU-hours; ``*_plain_pct`` the mean over runs, each counting once.
    ``gpu_mem_peak_mib`` is the largest of a run, ``energy_kwh`` of what was sampled of the GPUs,
    ``coverage_known_gpu_hours`` what was allocated to the runs whose coverage is known: the denominator of
    ``coverage_pct``. ``billing_hours`` is the billing that Slurm counts for them times their hours, cores and memory
    included where a site prices those.
    """

    name: str
    jobs: int
    jobs_measured: int
    jobs_without_size: int
    allocated_gpu_hours: float | None
    held_gpu_hours: float | None
    held_unknown_hours: float
    util_measured_gpu_hours: float
    util_used_gpu_hours: float | None
    util_idle_gpu_hours: float | None
    util_weighted_pct: float | None
    util_plain_pct: float | None
    sm_measured_gpu_hours: float
    sm_used_gpu_hours: float | None
    sm_idle_gpu_hours: float | None
    sm_beyond_gpu_hours: float | None
    sm_weighted_pct: float | None
    sm_plain_pct: float | None
    held_idle_gpu_hours: float | None
    gpu_mem_peak_mib: int | None
    energy_kwh: float | None
    coverage_pct: float | None
    coverage_known_gpu_hours: float
    methods: tuple[str, ...]
    billing_hours: float | None = None

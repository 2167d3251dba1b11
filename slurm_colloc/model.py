# SPDX-License-Identifier: Apache-2.0
"""The nouns of the project. Units are the last word of a name; None means not known and is never 0.

NamedTuples rather than dataclasses: csub imports this file at every submission, and dataclasses cost it 20 ms.
"""

from enum import StrEnum
from typing import NamedTuple


class SharingMode(StrEnum):
    """How a job gets at its GPU, in Slurm's own words."""

    EXCLUSIVE = "exclusive"
    MIG = "mig"
    MPS = "mps"
    SHARD = "shard"


# Of the memory that a job holds on a whole GPU or slice, what it shows as a client of MPS with a limit on its threads:
# contexts and workspaces grow with the SMs in reach. [measured on an H100 with 25 % of the threads]
MPS_PEAK_PART = 0.76


class Gres(NamedTuple):
    """A generic resource: ``gpu:a100_1g.10gb:2``, ``shard:4``, ``mps:50``; ``type`` is empty when untyped."""

    name: str
    type: str
    quantity: int

    def __str__(self) -> str:
        kind = f":{self.type}" if self.type else ""
        return f"{self.name}{kind}:{self.quantity}"


class JobRequest(NamedTuple):
    """What decides a job's placement, as sbatch would understand it.

    ``untouchable`` holds the reasons why the request must reach Slurm exactly as it was written.
    ``gpu_style`` is the option that asks for the GPU: gres, gpus, gpus-per-node or gpus-per-task. ``partitions`` are
    those named, in the user's order; none: the default one. ``cpus_per_gpu`` and ``mem_per_gpu`` (as --mem takes it)
    are what the user asked for each GPU; ``min_cpus`` what --mincpus asks; ``tasks`` what --ntasks or --ntasks-per-node
    asks, None without them. ``cpus_given`` and ``mem_given`` say that
    cores per task or host memory are asked for otherwise, so that a partition's defaults per GPU do not hold.
    ``cores_unclear`` says that other options have a say in the number of cores.
    ``numbers`` are the names of the numbers in ``signature``, in their order.
    ``time_limit_min`` is None where none was asked, and infinite where it was asked for. ``no_share`` and
    ``untouchable`` hold the reasons why the job cannot run on a share (MPS, shard), and why the request must reach
    Slurm exactly as it was written. ``components`` are the partitions of each component of a heterogeneous job, this
    one among them; empty for any other job. ``origins`` says of each option where it came from: argv, environment,
    directive. ``command`` is what past jobs of the same file and arguments are known by whose script is not known.
    ``folder`` is where it will run.
    """

    name: str
    script_args: tuple[str, ...]
    interpreter: str
    partitions: tuple[str, ...]
    account: str
    qos: str
    gres: tuple[Gres, ...]
    gpu_style: str
    cpus_per_gpu: int | None
    mem_per_gpu: str
    min_cpus: int
    tasks: int | None
    cpus_given: bool
    cores_unclear: bool
    mem_given: bool
    time_limit_min: float | None
    array: bool
    signature: str
    numbers: tuple[str, ...]
    no_share: tuple[str, ...]
    untouchable: tuple[str, ...]
    components: tuple[tuple[str, ...], ...]
    origins: tuple[tuple[str, str], ...]
    command: str = ""
    folder: str = ""

    @property
    def sh_like(self) -> bool:
        """Return whether lines of sh may be put into the script."""
        words = self.interpreter.split()
        if words and words[0].rsplit("/", 1)[-1] == "env":
            words = words[1:]
        return bool(words) and words[0].rsplit("/", 1)[-1] in ("sh", "bash", "dash", "ksh", "zsh")

    @property
    def asked(self) -> str:
        """Return the gres as the user asked for them; empty for none."""
        return ",".join(str(gres) for gres in self.gres)

    @property
    def gpu_count(self) -> int:
        """Return how many entries of gres/gpu (whole GPUs or slices) are asked for."""
        return sum(gres.quantity for gres in self.gres if gres.name == "gpu")


class Quantiles(NamedTuple):
    """Quantiles of what a job may need; memory is sized by q99, SM activity by q95."""

    q50: float
    q95: float
    q99: float


class Footprint(NamedTuple):
    """What a job is expected to need of one GPU.

    ``sm_active_pct`` is in percent of a whole GPU's SMs, ``dram_active_pct`` in percent of the time in which a whole
    GPU's memory moves data. ``rung`` names the step of the evidence ladder it stands on
    and ``provenance`` says in words what it was taken from. ``gpu_model`` is the GPU it was measured on, empty for a
    hint. ``run_time_s`` is of runs on a whole GPU. Unknown parts are None. The q99 of memory is the margin of the name
    ``margin`` times ``expected_mib`` or more, and ``confidence`` the share of such q99s, at least and with 95 percent
    certainty, that what was then measured kept within; None of a hint.
    """

    gpu_mem_peak_mib: Quantiles | None
    sm_active_pct: Quantiles | None
    run_time_s: Quantiles | None
    gpu_model: str
    rung: str
    evidence_count: int
    provenance: str
    dram_active_pct: Quantiles | None = None
    margin: str = ""
    expected_mib: float | None = None
    confidence: float | None = None


class Load(NamedTuple):
    """What one task is counted for on the GPU: memory with its headroom, and the SMs it keeps busy alone.

    ``dram_active_pct`` is how long it keeps the GPU's memory busy; None where that is not known, or not to count.
    """

    memory_mib: int
    sm_active_pct: float
    dram_active_pct: float | None = None


class Room(NamedTuple):
    """What the tasks on one GPU may come to: memory in MiB, percent of the SMs, and how many of them."""

    memory_mib: int
    sm_active_pct: float
    tasks: int


class Rejected(NamedTuple):
    """An option that was weighed and not taken, and why."""

    option: str
    reason: str


class Weighed(NamedTuple):
    """When a job would end with one of the options: of these, and of the whole GPU, one was taken.

    ``free_now`` is None where nobody was asked; ``waited_*`` are of jobs that got the same last week, from submission
    to start. ``run_s`` is the run time expected on a whole GPU, ``turnaround_s`` from submission to end.
    """

    option: str
    free_now: bool | None
    waited_median_s: float | None
    waited_p90_s: float | None
    waited_runs: int
    slowdown: float
    run_s: float | None
    turnaround_s: float | None


class Placement(NamedTuple):
    """Where a job goes: with mode EXCLUSIVE and no gres it is submitted as asked.

    ``memory_mib`` is the GPU memory that the piece was sized for. The other parts are what follows from the change:
    another ``partition`` (empty: as asked), ``cpu_option`` (as "mincpus=4") and host memory ``mem`` (as --mem
    takes it) that so far followed from the GPU, a longer ``time_limit_min``; None or empty where nothing needs saying.
    ``weighed`` are the options, the job as asked last, whose waits were looked up. ``withheld`` is what the job would
    have got where the site's policy is shadow.
    """

    mode: SharingMode
    gres: Gres | None
    memory_mib: int | None
    headroom_mib: int | None
    partition: str
    cpu_option: str
    mem: str
    time_limit_min: int | None
    reasons: tuple[str, ...]
    rejected: tuple[Rejected, ...]
    weighed: tuple[Weighed, ...] = ()
    withheld: "Placement | None" = None

    @property
    def given(self) -> str:
        """Return the gres that is asked for in place of the user's, in words."""
        return str(self.gres) if self.gres else "as asked"

    @property
    def as_asked(self) -> bool:
        """Return whether the resource request stays as the user wrote it."""
        return self.gres is None


# The variable by which a companion job tells csub what it submits again; never handed on to sbatch.
AGAIN_VARIABLE = "CSUB_AGAIN"

# The first reason of a decision for a pack begins so.
PACK_OF = "pack of "

# Why shadow mode would have left a job as asked, in a word of its decision and in words.
WOULD_NOT = {
    "off": "--colloc=off was given",
    "request": "the request rules pieces out: several GPUs, whole nodes, a reservation and the like",
    "need": "what it needs was not known",
    "fit": "no piece holds it or may be had, its script cannot be changed, or a whole GPU would have been sooner",
    "pack": "it would have been one pack with the other tasks of its array",
}

# So ends the signature under which two jobs are kept that shared a GPU, one having joined the other.
JOINED_SUFFIX = "-joined"


class Decision(NamedTuple):
    """What csub decided for one submission and why: the ledger's entry.

    ``numbers`` are the names of the numbers in ``signature``, in their order; ``command`` is the request's, ``line``
    the beginning of the script's name and its arguments as they were given. ``gpu_mem_expected_mib`` is what the margin
    of the name ``margin`` was put on; None and empty where the q99 was not made that way. ``out_of_memory`` says
    afterwards that what the job was given did not suffice.

    Under the policy shadow, ``would`` is the gres that the job would have been given, in ``would_partition`` (empty: as
    asked) with at most ``would_memory_mib`` where that is limited; empty where it would have been left as asked,
    because of ``would_not``, one of WOULD_NOT. ``would_wait_s`` is how long it might have waited for that: 0 where it
    was free, else the median of ``would_wait_runs`` jobs.
    """

    job_id: str
    cluster: str
    at_s: float
    user: str
    job_name: str
    signature: str
    asked: str
    given: str
    mode: str
    rung: str
    gpu_mem_q99_mib: float | None
    sm_active_q95_pct: float | None
    reasons: tuple[str, ...]
    numbers: tuple[str, ...] = ()
    command: str = ""
    line: str = ""
    gpu_mem_expected_mib: float | None = None
    margin: str = ""
    out_of_memory: bool = False
    shadow: bool = False
    would: str = ""
    would_not: str = ""
    would_partition: str = ""
    would_memory_mib: int | None = None
    would_wait_s: float | None = None
    would_wait_runs: int | None = None

    @property
    def is_pack(self) -> bool:
        """Return whether many tasks were submitted as one job."""
        return bool(self.reasons) and self.reasons[0].startswith(PACK_OF)

    @property
    def notes_a_guest(self) -> bool:
        """Return whether it says that another job has joined this one; what was decided stands in an earlier one."""
        return self.signature.endswith(JOINED_SUFFIX) and "." not in self.job_id

    @property
    def how(self) -> str:
        """Return what was given and, where that differs from what was asked, in which mode."""
        return self.given if self.given == "as asked" else f"{self.given} ({self.mode})"


# What a device does that adds up over the jobs on it: at a time each holds so much of it, and the rest is nobody's.
ADDITIVE = (
    "gpu_util_pct",
    "gr_active_pct",
    "sm_active_pct",
    "sm_occupancy_pct",
    "tensor_active_pct",
    "dram_active_pct",
    "energy_j",
)


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


class ProcessKind(StrEnum):
    """How a process came onto the GPU."""

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


class Holder(NamedTuple):
    """A job that Slurm gave a GPU or slice to; ``weight`` is its part beside the others' there, None when unknown."""

    uuid: str
    job_id: str
    weight: float | None


class HostSample(NamedTuple):
    """What a job did on the node besides: CPU time and bytes moved in the interval, memory at its end."""

    job_id: str
    cpu_s: float | None
    host_mem_mib: int | None
    read_mib: float | None
    written_mib: float | None


class Round(NamedTuple):
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
    holders: tuple[Holder, ...]
    hosts: tuple[HostSample, ...]


class JobShare(NamedTuple):
    """What of one device's reading belongs to one job; ``job_id`` is empty for the unattributed rest.

    ``process_count`` is of its processes on the device: 0 is a device held idle, None is not known. ``method`` is one
    of those that ``observe/attribute.py`` names, and holds for all figures of ADDITIVE; memory is the processes' own.
    """

    uuid: str
    job_id: str
    process_count: int | None
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
    """One run of one job in the accounting, from whatever source; times in UTC epoch seconds."""

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


class JobUsage(NamedTuple):
    """What one run had and used inside a window; GPU-hours are in whole-GPU equivalents.

    ``gpu_type`` names its gres types. ``held_gpu_hours`` is the time of GPUs that it kept from others, suspensions
    included: of its GPUs all, of a slice its part by slices, of a share one nth where n jobs were seen to share, None
    where nobody ever saw them; the time in which nobody counted them is ``held_unknown_hours``.
    ``*_measured_gpu_hours`` are the allocated GPU-hours that samples of the metric cover: the denominator of the used
    ones. ``coverage_pct`` is the sampled part of the run's device time; None where the source does not record it.
    ``gpu_mem_peak_mib`` is the sum over the run's devices of one node at one time; of several nodes the largest.
    ``held_idle_gpu_hours`` is sampled time without a process of the run on its device, ``idle_tail_s`` the time from
    the last reading with activity on any of its devices to its last reading, ``energy_j`` what its part of the devices
    took. ``cpu_cores_used`` to ``written_mib`` are of the host: CPU time over sampled time, memory at peak on one
    node, bytes moved.
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
    util_measured_gpu_hours: float
    util_used_gpu_hours: float | None
    sm_measured_gpu_hours: float
    sm_used_gpu_hours: float | None
    gpu_mem_peak_mib: int | None
    coverage_pct: float | None
    shared_hours: float
    held_idle_gpu_hours: float | None
    idle_tail_s: float | None
    energy_j: float | None
    cpu_cores_used: float | None
    host_mem_peak_mib: int | None
    read_mib: float | None
    written_mib: float | None
    methods: tuple[str, ...]


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
    for itself (they are never added), and negative where shares used more than their count. ``*_weighted_pct`` is used
    over measured GPU-hours; ``*_plain_pct`` the mean over runs, each counting once.
    ``gpu_mem_peak_mib`` is the largest of a run, ``energy_kwh`` of what was sampled of the GPUs.
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
    sm_weighted_pct: float | None
    sm_plain_pct: float | None
    held_idle_gpu_hours: float | None
    gpu_mem_peak_mib: int | None
    energy_kwh: float | None
    coverage_pct: float | None
    methods: tuple[str, ...]


class Collocation(NamedTuple):
    """How long GPUs and slices (units) had so many ``jobs`` on them, as far as they were sampled.

    ``unit_hours`` counts each unit as one, ``gpu_hours`` a slice as its part of a GPU, by slices. A job is on a unit
    when Slurm gave it the unit, whether it runs anything there or not.
    """

    jobs: int
    units: int
    unit_hours: float
    gpu_hours: float

    @property
    def saved_gpu_hours(self) -> float:
        """Return the GPU-hours more that a whole GPU for each of the jobs, for the same time, would have taken."""
        return self.jobs * self.unit_hours - self.gpu_hours if self.jobs else 0.0


class Prediction(NamedTuple):
    """How the footprints of one rung compare with what the jobs placed by them were measured to use.

    Of ``jobs`` runs, ``mem_known`` completed with a measured peak; in ``mem_within`` it was at most the q99 predicted,
    and ``mem_*_ratio`` are of peak over q99. ``sm_*`` are of the mean SM activity of a run over the q95 predicted.
    """

    rung: str
    jobs: int
    mem_known: int
    mem_within: int
    mem_median_ratio: float | None
    mem_max_ratio: float | None
    sm_known: int
    sm_within: int
    sm_median_ratio: float | None
    sm_max_ratio: float | None


class ShadowPiece(NamedTuple):
    """What would have become of the runs that shadow mode would have given one kind of piece.

    Of ``runs``, ``fitted`` completed with a measured peak that the piece holds; ``out_of_memory`` had one above it, and
    ``over_share`` one above a share that nobody enforces; the others cannot be judged. The fitted had
    ``allocated_gpu_hours``, and would have held ``piece_gpu_hours``; those too large for it up to ``lost_gpu_hours``
    before they failed. Of the fitted, how long they might have waited is known of
    ``waits_known``, of ``waits_free`` because a piece was free; ``sooner`` of them waited longer than that, and
    ``earlier_median_s`` is the median over users of each one's median difference, negative for later.
    """

    piece: str
    runs: int
    fitted: int
    out_of_memory: int
    over_share: int
    allocated_gpu_hours: float
    piece_gpu_hours: float
    lost_gpu_hours: float
    waits_known: int
    waits_free: int
    sooner: int
    earlier_median_s: float | None

    @property
    def judged(self) -> int:
        """Return how many runs it is known of whether the piece holds them."""
        return self.fitted + self.out_of_memory + self.over_share

    @property
    def freed_gpu_hours(self) -> float:
        """Return the GPU-hours by which the fitted would have held less; negative where slower costs more."""
        return self.allocated_gpu_hours - self.piece_gpu_hours


class ShadowLeft(NamedTuple):
    """Runs that would have been left as asked, or of which nobody knows what they would have had, and why.

    ``allocated_gpu_hours`` is of the runs whose size is known, None where it is of none.
    """

    why: str
    runs: int
    allocated_gpu_hours: float | None


# Slurm's word for a run that came to a good end: only its peak is one.
COMPLETED = "COMPLETED"
# The state of a run that ended because the GPU memory it was given did not suffice; no word of Slurm's.
GPU_OOM = "GPU_OOM"


class Evidence(NamedTuple):
    """What one past run used: the input of the estimate.

    ``gpu_mem_peak_mib`` is a peak only where ``state`` is COMPLETED; otherwise it is a lower bound.
    ``elapsed_s`` is the run's time from start to end, for an unfinished one so far; None where it is not known.
    ``sm_active_pct`` are (mean, 95th percentile) in percent of a whole GPU; ``sm_is_bound`` says that they are an
    upper bound taken from GPU_UTIL because the driver offers no SM activity. ``dram_active_q95_pct`` is of a run that
    had a whole GPU for itself, None of any other. ``gpu_mem_total_mib`` is what its GPU or slice had in all, and
    ``grew_until_s`` how long after it first held memory that still grew by more than one percent.
    ``run_count`` is 1, or of how many old runs this one record keeps what matters. ``source`` names who measured it,
    empty where we did; who else did says nothing of samples.
    """

    job_id: str
    signature: str
    state: str
    mode: str
    gpu_model: str
    gpu_mem_peak_mib: int | None
    sm_active_mean_pct: float | None
    sm_active_q95_pct: float | None
    sm_is_bound: bool
    sample_count: int
    sampled_s: float
    ended_s: float
    elapsed_s: float | None
    dram_active_q95_pct: float | None = None
    gpu_mem_total_mib: int | None = None
    grew_until_s: float | None = None
    run_count: int = 1
    source: str = ""


class Answered(NamedTuple):
    """What csub had expected of one job's memory, by which margin, and what one run of it then had at its peak."""

    margin: str
    user: str
    job_id: str
    at_s: float
    expected_mib: float
    q99_mib: float
    measured_mib: float | None
    state: str


class Finding(NamedTuple):
    """What an audit rule says of one subject."""

    code: str
    severity: str
    subject: str
    evidence: str
    remedy: str
    reproduce: str

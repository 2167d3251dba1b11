# SPDX-License-Identifier: Apache-2.0
"""Types of jobs, requests, footprints, placements and evidence. Units are the last word of a name.

None means not known and is never 0.

NamedTuples rather than dataclasses: csub imports this file at every submission, and dataclasses cost it 20 ms.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import NamedTuple


class SharingMode(StrEnum):
    """How a job gets at its GPU, in Slurm's own words."""

    EXCLUSIVE = "exclusive"
    MIG = "mig"
    MPS = "mps"
    SHARD = "shard"


Params = Mapping[str, "str | int | float | tuple[str, ...] | None"]


class Reason(NamedTuple):
    """Why something is decided so, or what it is decided by: a code, and its parameters by name.

    ``wording`` has the words of each code. Nothing is decided by words.
    """

    code: str
    params: Params


def because(code: str, **params: "str | int | float | tuple[str, ...] | None") -> Reason:
    """Return the reason of this code."""
    return Reason(code, params)


class Gres(NamedTuple):
    """A generic resource: ``gpu:a100_1g.10gb:2``, ``shard:4``, ``mps:50``; ``type`` is empty when untyped."""

    name: str
    type: str
    quantity: int

    def __str__(self) -> str:
        kind = f":{self.type}" if self.type else ""
        return f"{self.name}{kind}:{self.quantity}"


class JobRequest(NamedTuple):
    """A job as sbatch would understand it: all that decides its placement."""

    name: str = ""
    script_args: tuple[str, ...] = ()
    interpreter: str = ""
    partitions: tuple[str, ...] = ()  # those named, in the user's order; none: the default one
    account: str = ""
    qos: str = ""
    gres: tuple[Gres, ...] = ()
    gpu_style: str = ""  # the option that asks for the GPU: gres, gpus, gpus-per-node or gpus-per-task
    cpus_per_gpu: int | None = None
    mem_per_gpu: str = ""  # as --mem takes it
    min_cpus: int = 0  # --mincpus
    tasks: int | None = None  # --ntasks or --ntasks-per-node
    cpus_given: bool = False  # cores per task are asked for: a partition's default for each GPU does not hold
    cores_unclear: bool = False  # other options have a say in the number of cores
    mem_given: bool = False  # host memory is asked for otherwise than for each GPU
    time_limit_min: float | None = None  # None: none was asked; infinite where that was asked for
    array: bool = False
    array_at_once: int = 1
    signature: str = ""
    numbers: tuple[str, ...] = ()  # names of the numbers in the signature, in their order
    no_slice: tuple[Reason, ...] = ()  # why the job cannot run on a slice
    no_mps: tuple[Reason, ...] = ()  # under MPS
    no_share: tuple[Reason, ...] = ()  # on any share (MPS, shard)
    untouchable: tuple[Reason, ...] = ()  # why the request must reach Slurm as it was written
    options: tuple[str, ...] = ()  # names of those in force
    command: str = ""  # past jobs of the same file and arguments, whose script is not known, are known by it
    folder: str = ""  # the job will run there
    cpus_asked: int | None = None  # cores on a node by --cpus-per-task; None: not known
    mem_asked_mib: int | None = None  # host memory on a node; None: not known
    mem_per_cpu: str = ""  # as --mem takes it; memory then follows from the cores
    submitted: tuple[tuple[str, bytes], ...] = ()  # paths in one folder, with texts to keep there once it is submitted
    differs: Reason | None = None  # how it differs from the last one of its script; None: it does not, or none was
    features: tuple[str, ...] = ()  # each of its nodes must have these; alternatives are apart by |
    excluded: tuple[str, ...] = ()  # nodes that it will not run on

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
    def names_no_type(self) -> bool:
        """Return whether no type of GPU is asked for."""
        return not any(gres.type for gres in self.gres)

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
    """The expected need of a job of one GPU.

    ``sm_active_pct`` is in percent of a whole GPU's SMs, ``dram_active_pct`` in percent of the time in which a whole
    GPU's memory moves data. ``rung`` names the step of the evidence ladder it stands on, ``provenance`` what it was
    taken from, or why it is not known. ``gpu_model`` is the GPU it was measured on, empty for a hint. ``run_time_s`` is
    of runs on a whole GPU. Unknown parts are None. The q99 of memory is the margin of the name
    ``margin`` times ``expected_mib`` or more, and ``confidence`` the share of such q99s, at least and with 95 percent
    certainty, that what was then measured kept within; None of a hint. ``cpu_cores`` and ``host_mem_mib`` are what it
    needs of the host, margins included. ``keep_whole`` says why it gets no piece of a GPU for now, whatever it needs.
    ``part_taken`` is which part of the memory of whatever GPU it finds its program takes, None of others;
    ``part_usable`` which part of a slice it then has for that need. ``busy_pct`` is in which percent of the time a
    kernel of it runs at all on a whole GPU.
    """

    gpu_mem_peak_mib: Quantiles | None
    sm_active_pct: Quantiles | None
    run_time_s: Quantiles | None
    gpu_model: str
    rung: str
    evidence_count: int
    provenance: tuple[Reason, ...]
    dram_active_pct: Quantiles | None = None
    margin: str = ""
    expected_mib: float | None = None
    confidence: float | None = None
    cpu_cores: int | None = None
    host_mem_mib: int | None = None
    keep_whole: Reason | None = None
    part_taken: float | None = None
    part_usable: float = 1.0
    busy_pct: Quantiles | None = None


class Load(NamedTuple):
    """One task's load on the GPU: memory with its headroom, and the SMs it keeps busy alone.

    ``dram_active_pct`` is how long it keeps the GPU's memory busy; None where that is not known, or not to count.
    """

    memory_mib: int
    sm_active_pct: float
    dram_active_pct: float | None = None


class Room(NamedTuple):
    """The most that the tasks on one GPU may come to: memory in MiB, percent of the SMs, and how many of them."""

    memory_mib: int
    sm_active_pct: float
    tasks: int


class Rejected(NamedTuple):
    """An option that was weighed and not taken, and why."""

    option: str
    reason: Reason


class Weighed(NamedTuple):
    """The case for one of the options, of which one, or the whole GPU, was taken.

    ``free_now`` is None where nobody was asked or Slurm did not say. ``rounds`` is how many of an array's tasks run
    after each other, since the site has no more of these.
    """

    option: str
    free_now: bool | None
    slowdown: float
    rounds: int = 1


class Placement(NamedTuple):
    """The piece that a job gets: with mode EXCLUSIVE and no gres it is submitted as asked.

    ``memory_mib`` is the GPU memory that the piece was sized for. The other parts are what follows from the change:
    another ``partition`` (empty: as asked), ``cpu_option`` (as "mincpus=4") and host memory ``mem`` (as --mem takes
    it) that so far followed from the GPU, a longer ``time_limit_min``; None or empty where nothing needs saying.
    ``slowdown_expected`` and ``slowdown_upper`` are how many times as long as on a whole GPU it takes there, at the
    median and as few jobs exceed; None where that is not foretold. ``weighed`` are the options of which it was
    looked up what is free, the job as asked last. ``withheld`` is what the job would have got under the policy shadow.
    """

    mode: SharingMode
    gres: Gres | None
    memory_mib: int | None
    headroom_mib: int | None
    partition: str
    cpu_option: str
    mem: str
    time_limit_min: int | None
    reasons: tuple[Reason, ...]
    rejected: tuple[Rejected, ...]
    weighed: tuple[Weighed, ...] = ()
    withheld: "Placement | None" = None
    slowdown_expected: float | None = None
    slowdown_upper: float | None = None

    @property
    def given(self) -> str:
        """Return the gres that is asked for in place of the user's, in words."""
        return str(self.gres) if self.gres else "as asked"

    @property
    def as_asked(self) -> bool:
        """Return whether the resource request stays as the user wrote it."""
        return self.gres is None


# The code of the first reason of a decision for a pack.
PACK = "pack"

# Why shadow mode would have left a job as asked; ``wording`` has the words.
WOULD_NOT = ("off", "request", "need", "fit", "pack")

# The arms of jobs that were drawn: a piece of a GPU where one fits, or as asked, to compare with. Those that got their
# piece while they waited, drawn or not, are in one of their own.
PLACED, CONTROL, LATE = "placed", "control", "late"


class Decision(NamedTuple):
    """The decision of csub for one submission and why: the ledger's entry.

    ``numbers`` are the names of the numbers in ``signature``, in their order; ``command`` is the request's, ``line``
    the beginning of the script's name and its arguments as they were given. ``gpu_mem_expected_mib`` is what the margin
    of the name ``margin`` was put on; None and empty where the q99 was not made that way. The slowdowns are those of
    the placement, under the policy shadow of the one withheld. ``out_of_memory`` says
    afterwards that what the job was given did not suffice.

    ``would`` is the gres that the job would have been given under the policy shadow, in ``would_partition`` (empty: as
    asked) with at most ``would_memory_mib`` where that is limited; empty where it would have been left as asked,
    because of ``would_not``, one of WOULD_NOT. ``would_wait_s`` is how long it would have waited for that, 0 if it was
    free, None if that is not known. ``arm`` is PLACED or CONTROL of a job that was drawn by
    ``rule``, in words, and LATE of one that got its piece while it waited; empty of others.
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
    reasons: tuple[Reason, ...]
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
    slowdown_expected: float | None = None
    slowdown_upper: float | None = None
    arm: str = ""
    rule: str = ""

    @property
    def is_pack(self) -> bool:
        """Return whether many tasks were submitted as one job."""
        return bool(self.reasons) and self.reasons[0].code == PACK

    @property
    def how(self) -> str:
        """Return what was given and, where that differs from what was asked, in which mode."""
        return self.given if self.given == "as asked" else f"{self.given} ({self.mode})"


# Slurm's word for a run that came to a good end: only its peak is one.
COMPLETED = "COMPLETED"
# The state of a run that ended because the GPU memory it was given did not suffice; no word of Slurm's.
GPU_OOM = "GPU_OOM"


# The largest of so many samples is a peak, that of fewer a bound.
LEAST_SAMPLES = 3


class Evidence(NamedTuple):
    """The use of one past run: the input of the estimate.

    ``gpu_mem_peak_mib`` is a peak only where ``state`` is COMPLETED; otherwise it is a lower bound. ``elapsed_s``
    is the run's time from start to end, for an unfinished one so far; None where it is not known.
    ``sm_active_*_pct`` are in percent of a whole GPU; ``sm_is_bound`` says that the mean is an upper bound, taken from
    GPU_UTIL or from few readings of others; otherwise it is over the samples in which kernels ran.
    ``dram_active_q95_pct`` is of a run that had a whole GPU for itself, None of any other. ``gpu_mem_total_mib`` is
    what its GPU or slice had in all, and ``grew_until_s`` how long after it first held memory that still grew by
    more than one percent. ``run_count`` is 1, or of how many old runs this one record keeps what matters.
    ``source`` names who measured it, empty where we did; others say nothing of samples. ``cpu_cores_q95`` is
    the least number of cores that the run stayed at or below for 95 % of the sampled time, ``host_mem_peak_mib``
    its largest memory on the host. ``busy_mean_pct`` is the part of the time in which a kernel ran at all, over the
    samples of ``sm_active_mean_pct`` and of a run that had a whole GPU for itself; None of any other. ``ran_s`` is
    the length of the samples in which kernels ran, where our sampler in the job knows it.
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
    cpu_cores_q95: float | None = None
    host_mem_peak_mib: int | None = None
    busy_mean_pct: float | None = None
    ran_s: float | None = None


class Answered(NamedTuple):
    """The memory that csub had expected of one job, by which margin, and what one run of it then had at its peak."""

    margin: str
    user: str
    job_id: str
    at_s: float
    expected_mib: float
    q99_mib: float
    measured_mib: float | None
    state: str

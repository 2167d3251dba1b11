# SPDX-License-Identifier: Apache-2.0
"""The keys of site.toml: each with its type and what may stand there, its default, and below it what it means.

``config_schema.section`` goes by them, and errors and the reference page are made of them: none is told elsewhere.
"""

import os
import re
from typing import Annotated, NamedTuple

from slurm_colloc.core.config_audit import Audit, Notices
from slurm_colloc.core.config_schema import Place, number_from, one_of, parse_address, parse_url
from slurm_colloc.core.files import is_not_own_folder

TIERS = {
    "report": "colloc reports what jobs use, and csub changes no job",
    "pack": "colloc reports what jobs use, and csub runs a user's tasks together on a GPU if the user asks for it",
    "place": "colloc reports what jobs use, and csub may give jobs pieces of GPUs",
}
Policy = Annotated[str, one_of("auto", "shadow", "pack", "off")]
_LATE = ("off", "shadow", "slices", "on")
# Reasons for which a partition may refuse jobs, or hold them back for as long as it exists; see slurm.conf(5),
# "PARTITION CONFIGURATION".
RESTRICTIONS = (
    *("AllowAccounts", "DenyAccounts", "AllowQos", "DenyQos", "AllowGroups", "RootOnly", "ReqResv", "OverSubscribe"),
    *("MinNodes", "MaxNodes", "MaxCPUsPerNode", "MaxCPUsPerSocket", "MaxMemPerNode", "MaxMemPerCPU"),
)


def _is_restriction(text: str) -> bool:
    key, _, value = text.partition("=")
    is_number = re.fullmatch("[0-9]{1,15}", value) is not None
    return key in RESTRICTIONS and bool(value) and (is_number or not key.startswith(("Max", "Min")))


_RESTRICTION = (_is_restriction, "'KEY=VALUE' of scontrol's, as 'AllowAccounts=lab,physics'")
_READER = (lambda text: re.fullmatch("nvml|simulated:/.*", text), "'nvml' or 'simulated:/FOLDER'")
_DCGM = (lambda text: text in ("", "dcgmi") or parse_url(text), "'http://host:port/path' of a dcgm-exporter or 'dcgmi'")
_ADDRESS = (lambda text: not text or parse_address(text), "'ADDRESS:PORT', as '127.0.0.1:9499'")


class MigSlice(NamedTuple):
    """One kind of MIG slice that the nodes of a pool offer."""

    type: str
    """gres type of the slice, in full, as slurmd -G prints it"""
    profile: str
    """MIG profile, e.g. '1g.10gb'"""
    mem_mib: Annotated[int, number_from(1)]
    """usable memory of the slice in MiB"""
    sm_count: Annotated[int, number_from(1)]
    """streaming multiprocessors of the slice"""
    quantity: int
    """slices of this kind per node"""


class Pool(NamedTuple):
    """Nodes of one shape."""

    name: str
    """a name for people"""
    nodes: str
    """the nodes, in Slurm's bracket form"""
    partitions: tuple[str, ...]
    """partitions that contain these nodes"""
    gpu_type: str = ""
    """gres type of the whole GPUs, e.g. 'h100'; empty when all GPUs are cut into slices"""
    gpu_model: str = ""
    """the GPU's name as the driver gives it; evidence of past jobs is matched by it"""
    gpus_per_node: int = 0
    """whole GPUs per node"""
    gpu_mem_mib: Annotated[int | None, number_from(1)] = None
    """memory of one whole GPU in MiB; without it no share is placed here"""
    sm_count: Annotated[int | None, number_from(1)] = None
    """streaming multiprocessors of one whole GPU; without it no job is placed here"""
    mps_per_gpu: int = 0
    """gres/mps count per GPU (gres.conf), usually 100; 0: none"""
    shards_per_gpu: int = 0
    """gres/shard count per GPU (gres.conf); 0: none"""
    cpus_per_node: int = 0
    """CPUs for jobs on one node; the policy offers no slice to who asks for more; 0: not known"""
    mem_per_node_mib: int = 0
    """host memory, likewise"""
    features: tuple[str, ...] = ()
    """features that each of its nodes has (ActiveFeatures): a job that asks for others, or by more than names and & or
    |, gets no piece here"""
    slice: tuple[MigSlice, ...] = ()
    """one [[pool.slice]] for each kind of MIG slice"""


class Partition(NamedTuple):
    """A partition with GPUs: what it gives and who may use it, as Slurm itself has it."""

    name: str
    """its name"""
    qos: str = ""
    """its QOS; empty: none"""
    cpus_per_gpu: int = 0
    """DefCpuPerGPU, its own or slurm.conf's: given to shares in words, which would lose it"""
    mem_per_gpu_mib: int = 0
    """DefMemPerGPU, likewise"""
    default_mem: str = ""
    """DefMemPerCPU=... or DefMemPerNode=... of its own; empty: default_mem, the cluster's"""
    default_time_min: float | None = None
    """DefaultTime in minutes; without it max_time_min"""
    max_time_min: float | None = None
    """MaxTime in minutes; without it none"""
    pieces_in: tuple[str, ...] = ()
    """other partitions to which a job of this one may be moved for a piece of a GPU"""
    restrictions: tuple[Annotated[str, _RESTRICTION], ...] = ()
    """whom and what it does not take, in scontrol's words, as 'AllowAccounts=lab,physics' and 'MaxCPUsPerNode=4': no
    job is moved there that it would refuse or keep waiting for ever"""
    suspends: bool = False
    """true where PreemptMode has SUSPEND or GANG: suspended jobs keep GPU memory, so no mps, no shard and no pack is
    placed there"""
    mps_users: Annotated[str, one_of("", "one", "each", "all")] = ""
    """whose jobs run beside each other on a GPU under gres/mps: 'one' user's (ExclusiveUser=YES: a node serves one user
    at a time), 'each' user's under a daemon of their own, which take turns, or 'all' users' under one daemon of root's,
    with nothing between them; empty: no gres/mps"""
    job_submit: Annotated[str, one_of("off", "shadow", "advise", "default", "enforce")] = "off"
    """what job_submit.lua does about jobs that ask for a whole GPU and need less: 'off', 'shadow' (records it),
    'advise', 'default' (moves them to a slice), 'enforce' (refuses them)"""
    interactive_gres: str = ""
    """what salloc and srun --pty get there instead of one whole GPU, e.g. 'gpu:h100_1g.10gb:1' or 'shard:1'; empty: as
    asked"""
    interactive_names: tuple[str, ...] = ()
    """names of batch jobs that are interactive, too, e.g. 'spawner-jupyterhub'"""
    billing_weights: str = ""
    """TRESBillingWeights, by which csub says what a placed job's GPU counts in billing"""

    def restriction(self, key: str) -> tuple[str, ...]:
        """Return the values of one of its restrictions; empty where it has none of this key."""
        given = dict(text.partition("=")[::2] for text in self.restrictions)
        return tuple(given[key].split(",")) if key in given else ()


class Rule(NamedTuple):
    """Jobs that go by another policy than the site's: every list that is not empty must name the job's."""

    policy: Policy
    """likewise"""
    users: tuple[str, ...] = ()
    """the job is of one of these users; empty: of any"""
    groups: tuple[str, ...] = ()
    """its user is in one of these groups"""
    accounts: tuple[str, ...] = ()
    """it goes to one of these accounts, the user's default one where it names none"""
    partitions: tuple[str, ...] = ()
    """it asks for one of these partitions, or for none and the default is one of them"""
    qos: tuple[str, ...] = ()
    """it asks for one of these QOS"""
    percent: Annotated[float, number_from(0, 100)] = 100.0
    """of the jobs that it is for, the policy is in force for so many, drawn by user, job and day; the others are
    recorded as under 'shadow', to compare with ('report --rollout')"""
    late_binding: Annotated[str, one_of("", *_LATE)] = ""
    """likewise, with 'auto'; empty: sharing.late_binding"""


class Limits(NamedTuple):
    """The accounting's limits."""

    enforced: bool = False
    """true when AccountingStorageEnforce has limits: csub then proposes nothing that breaks one"""


class Sharing(NamedTuple):
    """The sharing that the site allows."""

    order: tuple[Annotated[str, one_of("mig", "mps", "shard")], ...] = ("mig", "mps")
    """sharing modes in the order in which they are tried: 'mig', 'mps', 'shard'; a site that names 'shard' accepts that
    jobs on shards are not isolated from each other"""
    mps_daemon: Annotated[str, one_of("none", "site", "prolog")] = "none"
    """who runs the MPS daemons of GPUs: 'prolog' (colloc-mps, by the scripts that 'colloc site render -o FOLDER'
    writes), 'site' (the site's own way), or 'none': no gres/mps"""
    unbilled: tuple[Annotated[str, one_of("mps", "shard")], ...] = ()
    """shares, 'mps' or 'shard', that are given although the cluster tracks or bills GPUs and not them: 'site init' then
    leaves them on, and to 'site check' that is no difference"""
    headroom_mib: int = 256
    """memory added to the estimate before a share is chosen"""
    max_slowdown: Annotated[float, number_from(1.0)] = 1.25
    """how much slower than on a whole GPU a job on a slice or a share may be; few are slower. csub makes its time limit
    longer where it needs that, by as much at most"""
    protected_types: tuple[str, ...] = ()
    """GPU types whose jobs are never changed"""
    ask_free: bool = True
    """false: a job gets the first piece that holds it, whatever is free, and nobody is asked"""
    settle_s: float = 600.0
    """a run that is not over counts for the next job like it after so many seconds of samples and a tenth of its time
    limit, with GPU memory at rest and kernels running; 0: never"""
    late_binding: Annotated[str, one_of(*_LATE)] = "off"
    """whether a job that waits as asked, because nobody knew its need, is changed to ask for a piece once a run of the
    same job has shown it: 'off', 'shadow' (only recorded), 'slices' (MIG alone) or 'on'"""
    late_forms: tuple[Annotated[str, one_of("gres", "gpus", "gpus-per-node", "gpus-per-task")], ...] = ()
    """options of which 'colloc late --probe PARTITION' has shown to change a waiting job; for a Slurm release that csub
    does not know"""
    late_back: Annotated[str, one_of("off", "single", "any")] = "single"
    """whether such a job asks for a whole GPU again, once, where one is free and its piece is not: 'single' (only on
    nodes with one GPU of its type: of several, one may be kept free for a larger job), 'any' or 'off'; never on nodes
    that Slurm plans for a job"""
    rerun: Annotated[str, one_of("requeue", "allowed")] = "requeue"
    """which jobs begin again with more where their piece has too little GPU memory: 'requeue' (those with --requeue),
    or 'allowed' (all without --no-requeue whose piece csub alone chose, if Slurm requeues jobs by default,
    JobRequeue=1); their users did not ask for a second run"""


class Observe(NamedTuple):
    """How use is measured."""

    agent: bool = False
    """true when 'colloc agent' runs on every GPU node; else jobs are sampled from inside"""
    # A sampler that never rested would take the node from its jobs.
    period_s: Annotated[float, number_from(0.05)] = 10.0
    """seconds between two samples"""
    gpu_reader: Annotated[str, _READER] = "nvml"
    """'nvml', or on a test cluster 'simulated:FOLDER' with a <node>.json for each node"""
    dcgm: Annotated[str, _DCGM] = ""
    """what to ask where NVML has no SM activity: 'http://host:port/path' of a dcgm-exporter, or 'dcgmi'"""
    prometheus: Annotated[str, _ADDRESS] = ""
    """where the agent answers Prometheus, e.g. '127.0.0.1:9499', without a password: on another address the network
    sees job ids; empty: it does not"""
    # Neither may mean "keep nothing": data that is deleted has often not been read yet.
    keep_raw_days: Annotated[float, number_from(1)] = 14.0
    """for how long the store keeps every sample; then what each run used of a GPU in an hour"""
    keep_job_days: Annotated[float, number_from(1)] = 1825.0
    """for how long it keeps that, at least as long"""


class Paths(NamedTuple):
    """Where things lie."""

    state: Place = ""
    """folder of journals, store and history; empty: the user's own data folder"""
    journal: Place = ""
    """folder of a node's own journal, on its own disk; empty: below paths.state"""
    decisions: str = ""
    """folder (mode 1777) where csub drops one file per submission; empty: the user's data folder"""
    templates: str = ""
    """folder whose templates are taken before the shipped ones of the same name; keep what mps and shard include from
    exported.sbatch.j2, without which srun steps may take a whole GPU"""
    sbatch: str = ""
    """the real sbatch; empty: the first on PATH that is not csub"""


class Timeouts(NamedTuple):
    """How long to wait."""

    decide_s: Annotated[float, number_from(0.1)] = 2.0
    """after so many seconds without a decision csub hands the job to sbatch as asked"""


class Prices(NamedTuple):
    """The prices that reports reckon with; they name no money if there is none."""

    currency: str = "EUR"
    """what the prices are in"""
    gpu_hour: float | None = None
    """price of a whole GPU for an hour; reports then say what was allocated in money"""
    kwh: float | None = None
    """price of a kilowatt-hour; reports then say what the measured energy of the GPUs costs"""
    co2_g_per_kwh: float | None = None
    """grams of CO2 for each kilowatt-hour; reports then say how much the measured energy caused"""


class SiteConfig(NamedTuple):
    """All that a site declares."""

    schema: int
    """version of this file's form; 1"""
    cluster: str
    """ClusterName of slurm.conf"""
    slurm_release: str
    """Slurm's release, e.g. '22.05'; one newer than csub knows is read as the newest, an older one makes csub plain
    sbatch"""
    default_partition: str = ""
    """the partition of a job that names none"""
    default_mem: str = ""
    """DefMemPerCPU=... or DefMemPerNode=... of slurm.conf, for partitions without one of their own; empty: neither"""
    sbatch_options: tuple[str, ...] = ()
    """options that SPANK plugins add to sbatch: 'name' (a flag), 'name=' (needs a value), 'name=?'"""
    policy: Policy = "shadow"
    """'auto' places jobs, 'shadow' records what it would have done and changes nothing, 'pack' packs what users ask to
    have packed and places nothing, 'off' is plain sbatch"""
    user_file: Annotated[str, one_of("allowed", "forbidden")] = "allowed"
    """'forbidden' has csub and colloc pass over a user's own site.toml, in ~/.config or $COLLOC_CONF; 'allowed' does
    not. It counts in /etc/slurm_colloc/site.toml alone"""
    rollout: tuple[Rule, ...] = ()
    """[[rollout]] after [[rollout]], for whom another policy holds: the first that a job meets is in force, and policy
    where it meets none"""
    pool: tuple[Pool, ...] = ()
    """one [[pool]] for the nodes of one shape"""
    partition: tuple[Partition, ...] = ()
    """one [[partition]] for each partition with GPUs, as 'scontrol show partition' has it"""
    limits: Limits = Limits()
    sharing: Sharing = Sharing()
    observe: Observe = Observe()
    paths: Paths = Paths()
    timeouts: Timeouts = Timeouts()
    audit: Audit = Audit()
    notices: Notices = Notices()
    prices: Prices = Prices()

    @property
    def policies(self) -> set[str]:
        """Return the policies that may be in force for some job."""
        drawn = {"shadow" for rule in self.rollout if rule.percent < 100}
        return {self.policy, *(rule.policy for rule in self.rollout), *drawn}

    @property
    def binds_late(self) -> bool:
        """Return whether some job may get a piece while it waits, or have it recorded that it might have."""
        return {self.sharing.late_binding, *(rule.late_binding for rule in self.rollout)} - {"off", ""} != set()

    @property
    def tier(self) -> str:
        """Return how far the site goes, one of TIERS; further installation and checks follow from that."""
        policies = self.policies
        if policies & {"auto", "shadow"} or any(partition.job_submit != "off" for partition in self.partition):
            return "place"
        return "pack" if "pack" in policies else "report"

    @property
    def state_folder(self) -> str:
        """Return the folder of journals, store and history."""
        return self.paths.state or user_data_folder()

    @property
    def journal_folder(self) -> str:
        """Return the folder of the nodes' journals."""
        return self.paths.journal or os.path.join(self.state_folder, "journal")

    @property
    def store_folder(self) -> str:
        """Return the folder of the store."""
        return os.path.join(self.state_folder, "store")

    @property
    def audit_folder(self) -> str:
        """Return the folder of what audits remember."""
        return self.notices.state or os.path.join(self.state_folder, "audit")

    @property
    def decisions_folder(self) -> str:
        """Return where this user's decisions are dropped, a folder of their own in the site's spool, or at home.

        Everybody may write into the spool, and so be the first to have a folder of that name.
        """
        own = self.own_spool
        return own if own and not is_not_own_folder(own) else os.path.join(user_data_folder(), "decisions")

    @property
    def own_spool(self) -> str:
        """Return this user's folder in the site's spool, whoever made it; empty where the site has none."""
        return os.path.join(self.paths.decisions, str(os.geteuid())) if self.paths.decisions else ""


def user_data_folder() -> str:
    """Return the user's own folder for decisions, evidence and samples."""
    base = os.environ.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local", "share")
    return os.path.join(base, "slurm_colloc")

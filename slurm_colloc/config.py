# SPDX-License-Identifier: Apache-2.0
"""site.toml -> frozen SiteConfig: every key checked, documented and with a default, none ignored.

The NamedTuples below are the schema: a field's annotation is the key's type, its default is the key's default, and
``DOCUMENTATION`` says what it means. The reference page is generated from them.
"""

import os
import re
import stat
import tomllib
import types
from collections.abc import Mapping
from typing import Any, NamedTuple, get_args, get_origin

from slurm_colloc.errors import ConfigError

SCHEMA = 1
ENVIRONMENT_VARIABLE = "COLLOC_CONF"
SYSTEM_FILE = "/etc/slurm_colloc/site.toml"


class MigSlice(NamedTuple):
    """One kind of MIG slice that the nodes of a pool offer."""

    type: str
    profile: str
    mem_mib: int
    sm_count: int
    quantity: int


class Pool(NamedTuple):
    """Nodes of one shape."""

    name: str
    nodes: str
    partitions: tuple[str, ...]
    gpu_type: str = ""
    gpu_model: str = ""
    gpus_per_node: int = 0
    gpu_mem_mib: int | None = None
    sm_count: int | None = None
    mps_per_gpu: int = 0
    shards_per_gpu: int = 0
    slice: tuple[MigSlice, ...] = ()


class Partition(NamedTuple):
    """What a partition with GPUs gives and who may use it, as Slurm itself has it."""

    name: str
    qos: str = ""
    cpus_per_gpu: int = 0
    mem_per_gpu_mib: int = 0
    default_mem: str = ""
    default_time_min: float | None = None
    max_time_min: float | None = None
    pieces_in: tuple[str, ...] = ()
    allow_accounts: tuple[str, ...] = ()
    deny_accounts: tuple[str, ...] = ()
    allow_qos: tuple[str, ...] = ()
    deny_qos: tuple[str, ...] = ()
    allow_groups: tuple[str, ...] = ()
    suspends: bool = False


class Limits(NamedTuple):
    """The accounting's limits."""

    enforced: bool = False
    max_age_s: float = 3600.0


class Sharing(NamedTuple):
    """What the site allows."""

    order: tuple[str, ...] = ("mig", "mps", "shard")
    mps_daemon: str = "none"
    mps_single_user: bool = False
    shard_consent: bool = False
    pack: bool = True
    mps_on_mig: bool = True
    headroom_mib: int = 256
    max_slowdown: float = 1.25
    max_time_stretch: float = 1.25
    protected_types: tuple[str, ...] = ()
    weigh_waits: bool = True
    keep_piece_factor: float = 1.5
    trust_prior: bool = False
    pack_max_sm_pct: float = 120.0
    pack_max_tasks: int = 48
    canary: str = "ask"


class Recovery(NamedTuple):
    """Jobs that ran out of the memory of their piece of a GPU."""

    companion: bool = True
    partition: str = ""


class Probe(NamedTuple):
    """Short runs that only measure (csub --probe)."""

    partition: str = ""
    minutes: float = 3.0


class Observe(NamedTuple):
    """How use is measured."""

    agent: bool = False
    period_s: float = 10.0
    gpu_reader: str = "nvml"
    dcgm: str = ""
    simulated_devices: str = ""
    prometheus_port: int = 0
    prometheus_address: str = "127.0.0.1"
    keep_journal_days: float = 3.0
    keep_raw_days: float = 14.0
    keep_minute_days: float = 180.0
    keep_job_days: float = 1825.0
    keep_history_runs: int = 100_000


class Paths(NamedTuple):
    """Where things lie."""

    state: str = ""
    journal: str = ""
    decisions: str = ""
    templates: str = ""
    sbatch: str = ""


class Timeouts(NamedTuple):
    """How long to wait."""

    ask_slurm_s: float = 5.0
    decide_s: float = 2.0


class Trace(NamedTuple):
    """Programs that are run without a GPU on the user's word (csub --trace)."""

    timeout_s: float = 60.0
    memory_mib: int = 32768


class Audit(NamedTuple):
    """Bounds of the audit rules."""

    min_coverage_pct: float = 60.0
    zero_use_min_gpu_hours: float = 24.0
    outside_jobs_min_gpu_hours: float = 1.0


class Prices(NamedTuple):
    """What reports reckon with; without a price they name no money."""

    currency: str = "EUR"
    gpu_hour: float | None = None
    kwh: float | None = None
    co2_g_per_kwh: float | None = None


class Engine(NamedTuple):
    """The jobs that make a report with --engine slurm."""

    partition: str = ""
    account: str = ""
    qos: str = ""
    cpus_per_job: int = 2
    mem_gib: float = 4.0
    time_min: int = 60
    jobs_at_once: int = 32
    wait_min: float = 240.0


class SiteConfig(NamedTuple):
    """All that a site declares."""

    schema: int
    cluster: str
    slurm_release: str
    default_partition: str = ""
    sbatch_options: tuple[str, ...] = ()
    policy: str = "auto"
    pool: tuple[Pool, ...] = ()
    partition: tuple[Partition, ...] = ()
    limits: Limits = Limits()
    sharing: Sharing = Sharing()
    recovery: Recovery = Recovery()
    probe: Probe = Probe()
    observe: Observe = Observe()
    paths: Paths = Paths()
    timeouts: Timeouts = Timeouts()
    trace: Trace = Trace()
    audit: Audit = Audit()
    prices: Prices = Prices()
    engine: Engine = Engine()

    @property
    def state_folder(self) -> str:
        """Return the folder of journals, store and history."""
        return self.paths.state or user_data_folder()

    @property
    def decisions_folder(self) -> str:
        """Return where this user's decisions are dropped: in a folder of their own in the site's spool, or at home."""
        if self.paths.decisions:
            return os.path.join(self.paths.decisions, str(os.geteuid()))
        return os.path.join(user_data_folder(), "decisions")


DOCUMENTATION: dict[str, str] = {
    "schema": "version of this file's form; 1",
    "cluster": "ClusterName of slurm.conf",
    "slurm_release": "Slurm's release as major.minor, e.g. '22.05'; an unknown one makes csub plain sbatch",
    "default_partition": "the partition of a job that names none",
    "sbatch_options": "options that SPANK plugins add to sbatch: 'name' (a flag), 'name=' (needs a value), 'name=?'",
    "policy": "'auto' places jobs, 'shadow' records what it would have done and changes nothing, 'off' is plain sbatch",
    "pool": "one [[pool]] for the nodes of one shape",
    "pool.name": "a name for people",
    "pool.nodes": "the nodes, in Slurm's bracket form",
    "pool.partitions": "partitions that contain these nodes",
    "pool.gpu_type": "gres type of the whole GPUs, e.g. 'h100'; empty when all GPUs are cut into slices",
    "pool.gpu_model": "the GPU's name as the driver gives it; evidence of past jobs is matched by it",
    "pool.gpus_per_node": "whole GPUs per node",
    "pool.gpu_mem_mib": "memory of one whole GPU in MiB; without it no share is placed here",
    "pool.sm_count": "streaming multiprocessors of one whole GPU; without it no job is placed here",
    "pool.mps_per_gpu": "gres/mps count per GPU (gres.conf), usually 100; 0: none",
    "pool.shards_per_gpu": "gres/shard count per GPU (gres.conf); 0: none",
    "pool.slice": "one [[pool.slice]] for each kind of MIG slice",
    "pool.slice.type": "gres type of the slice, in full, as slurmd -G prints it",
    "pool.slice.profile": "MIG profile, e.g. '1g.10gb'",
    "pool.slice.mem_mib": "usable memory of the slice in MiB",
    "pool.slice.sm_count": "streaming multiprocessors of the slice",
    "pool.slice.quantity": "slices of this kind per node",
    "partition": "one [[partition]] for each partition with GPUs, as 'scontrol show partition' has it",
    "partition.name": "its name",
    "partition.qos": "its QOS; empty: none",
    "partition.cpus_per_gpu": "DefCpuPerGPU, its own or slurm.conf's: given to shares in words, which would lose it",
    "partition.mem_per_gpu_mib": "DefMemPerGPU, likewise",
    "partition.default_mem": "DefMemPerCPU=... or DefMemPerNode=... of its own; empty: the cluster's",
    "partition.default_time_min": "DefaultTime in minutes; without it max_time_min",
    "partition.max_time_min": "MaxTime in minutes; without it none",
    "partition.pieces_in": "other partitions to which a job of this one may be moved for a piece of a GPU",
    "partition.allow_accounts": "AllowAccounts; empty: all",
    "partition.deny_accounts": "DenyAccounts",
    "partition.allow_qos": "AllowQos; empty: all",
    "partition.deny_qos": "DenyQos",
    "partition.allow_groups": "AllowGroups; empty: all",
    "partition.suspends": "true where PreemptMode has SUSPEND or GANG: suspended jobs keep GPU memory, so no mps, no "
    "shard and no pack is placed there",
    "limits.enforced": "true when AccountingStorageEnforce has limits: csub then proposes nothing that breaks one",
    "limits.max_age_s": "for how long a user's limits are taken as they were; then sacctmgr is asked again",
    "sharing.order": "sharing modes in the order in which they are tried: 'mig', 'mps', 'shard'",
    "sharing.mps_daemon": "'site' when prolog or SPANK runs one MPS daemon per (GPU, user), else 'none': no gres/mps",
    "sharing.mps_single_user": "true when a GPU serves one user at a time under gres/mps; else no gres/mps",
    "sharing.shard_consent": "true when the site accepts that shard jobs are not isolated from each other",
    "sharing.pack": "false when MPS must not run inside a job: csub then packs no tasks (--pack)",
    "sharing.mps_on_mig": "false when MPS must not run on a MIG slice: packs then get whole GPUs only",
    "sharing.headroom_mib": "memory added to the estimate before a share is chosen",
    "sharing.max_slowdown": "a slice is refused when its SMs would slow the job beyond this factor",
    "sharing.max_time_stretch": "how much longer than asked a time limit may become for a slower slice; 1: no longer",
    "sharing.protected_types": "GPU types whose jobs are never changed",
    "sharing.weigh_waits": "false: waits and what is free do not count, and nobody is asked for them",
    "sharing.keep_piece_factor": "the first piece that fits is left for another, or a whole GPU, only where the job "
    "would otherwise take more than so many times as long from submission to end; 1: wherever it would end later",
    "sharing.trust_prior": "true: a job of which nothing is known is placed by what 49 or more other jobs of its user "
    "used; one in fifty needs more than foretold",
    "sharing.pack_max_sm_pct": "what the SM activity of a pack's tasks, each measured alone, may come to on one GPU",
    "sharing.pack_max_tasks": "most tasks of a pack at a time on one GPU; MPS takes 48, fewer on a slice; 1: no packs",
    "sharing.canary": "'ask': the first task of an array is measured before the rest is sized where --canary says so; "
    "'auto': also where nothing is known of the array and csub is called from a terminal; 'off': never",
    "recovery.companion": "false: no job is run again after it ran out of GPU memory, whatever its user allows",
    "recovery.partition": "partition of the small jobs that see to that; empty: that of the job they follow",
    "probe.partition": "partition in which 'csub --probe' measures a job; empty: there are no probes",
    "probe.minutes": "time limit of a probe",
    "observe.agent": "true when 'colloc agent' runs on every GPU node; else jobs are sampled from inside",
    "observe.period_s": "seconds between two samples",
    "observe.gpu_reader": "'nvml', 'nvidia-smi' where only that answers, or 'simulated' on a test cluster",
    "observe.dcgm": "what to ask where NVML has no SM activity: 'http://host:port/path' of a dcgm-exporter, or 'dcgmi'",
    "observe.simulated_devices": "folder of <node>.json for the simulated reader",
    "observe.prometheus_port": "port on which the agent answers Prometheus; 0: it does not",
    "observe.prometheus_address": "address on which it does; any other than the default lets the network see job ids",
    "observe.keep_journal_days": "for how long a node keeps journal hours that are sealed; 1 at least",
    "observe.keep_raw_days": "for how long the store keeps every sample; then one row for each job, GPU and minute",
    "observe.keep_minute_days": "for how long it keeps those, at least as long; then one row for each job, GPU and day",
    "observe.keep_job_days": "for how long it keeps those, at least as long",
    "observe.keep_history_runs": "of how many runs of each user csub is told at most; those of the jobs that ran last",
    "paths.journal": "folder of a node's own journal, on its own disk; empty: below paths.state",
    "paths.state": "folder of journals, store and history; empty: the user's own data folder",
    "paths.decisions": "folder (mode 1777) where csub drops one file per submission; empty: the user's data folder",
    "paths.templates": "folder whose templates are taken before the shipped ones of the same name; keep what "
    "mps and shard include from exported.sbatch.j2, without which srun steps may take a whole GPU",
    "paths.sbatch": "the real sbatch; empty: the first on PATH that is not csub",
    "timeouts.ask_slurm_s": "bound on one question to Slurm",
    "timeouts.decide_s": "after so many seconds without a decision csub hands the job to sbatch as asked",
    "trace.timeout_s": "for so many seconds csub --trace runs a job's program on the submit host, without a GPU",
    "trace.memory_mib": "bound on the address space of that program in MiB, of which torch itself takes some thousands",
    "audit.min_coverage_pct": "nobody is named on numbers with less sampled time than this",
    "audit.zero_use_min_gpu_hours": "GPU-hours at zero use from which COL001 speaks",
    "audit.outside_jobs_min_gpu_hours": "GPU-hours outside any job from which COL002 names a node; 0: never",
    "engine.partition": "partition of the jobs of 'colloc report --engine slurm'; empty: the cluster's default",
    "engine.account": "their account; empty: the user's default",
    "engine.qos": "their QOS; empty: the default",
    "engine.cpus_per_job": "CPUs of each; a job makes one day",
    "engine.mem_gib": "memory of each in GiB; what does not fit is spilled below paths.state",
    "engine.time_min": "time limit of each in minutes",
    "engine.jobs_at_once": "how many of them may run at a time",
    "engine.wait_min": "for how many minutes a report waits for all of them, the queue's time included",
    "prices.currency": "what the prices are in",
    "prices.gpu_hour": "price of a whole GPU for an hour; reports then say what was allocated in money",
    "prices.kwh": "price of a kilowatt-hour; reports then say what the measured energy of the GPUs costs",
    "prices.co2_g_per_kwh": "grams of CO2 for each kilowatt-hour; reports then say how much the measured energy caused",
}

_CHOICES = {
    "policy": ("auto", "shadow", "off"),
    "sharing.order": ("mig", "mps", "shard"),
    "sharing.mps_daemon": ("none", "site"),
    "sharing.canary": ("off", "ask", "auto"),
    "observe.gpu_reader": ("nvml", "nvidia-smi", "simulated"),
}

# Below these a value is a mistake with consequences: a sampler that never rests, a question that never gets an answer.
_LEAST = {
    "observe.period_s": 0.05,
    # None of these may mean "keep nothing": what is deleted has often not been read yet.
    "observe.keep_journal_days": 1,
    "observe.keep_raw_days": 1,
    "observe.keep_minute_days": 1,
    "observe.keep_job_days": 1,
    "observe.keep_history_runs": 100,
    "sharing.max_slowdown": 1.0,
    "sharing.max_time_stretch": 1.0,
    "sharing.keep_piece_factor": 1.0,
    # Less is a fraction where a percentage was meant.
    "sharing.pack_max_sm_pct": 10,
    "sharing.pack_max_tasks": 1,
    "probe.minutes": 1,
    "timeouts.ask_slurm_s": 0.1,
    "timeouts.decide_s": 0.1,
    "trace.timeout_s": 1,
    "trace.memory_mib": 1024,
    "engine.cpus_per_job": 1,
    "engine.mem_gib": 0.25,
    "engine.time_min": 1,
    "engine.jobs_at_once": 1,
    "engine.wait_min": 1,
    "pool.sm_count": 1,
    "pool.gpu_mem_mib": 1,
    "pool.slice.sm_count": 1,
    "pool.slice.mem_mib": 1,
}
# MPS takes 48 clients on one GPU since Volta.
_MOST = {"observe.prometheus_port": 65535, "sharing.pack_max_tasks": 48}
# Scheme, host, port, and path with query: what parse_exporter_url takes.
_EXPORTER_URL = r"(https?)://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?(/[!-~]*)?"
# Services would look for them wherever they were started.
_ABSOLUTE = ("paths.state", "paths.journal")


def user_data_folder() -> str:
    """Return the user's own folder for decisions, evidence and samples."""
    base = os.environ.get("XDG_DATA_HOME") or os.path.join(os.path.expanduser("~"), ".local", "share")
    return os.path.join(base, "slurm_colloc")


def user_config_file() -> str:
    """Return the path of the user's own site.toml."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(base, "slurm_colloc", "site.toml")


def site_files() -> tuple[str, ...]:
    """Return where a site.toml may lie; the first that is there is in force. One that was named must be there."""
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    return (named,) if named else (user_config_file(), SYSTEM_FILE)


def find_site_file() -> str | None:
    """Return the site.toml in force: $COLLOC_CONF, the user's own, or the system's; None when there is none."""
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    return named or next((path for path in site_files() if os.path.isfile(path)), None)


def file_to_write(user: bool) -> str:
    """Return where ``site init`` writes: the file that would then be in force."""
    return user_config_file() if user else os.environ.get(ENVIRONMENT_VARIABLE) or SYSTEM_FILE


def how_to_write_one() -> str:
    """Return the command that gives whoever runs this a site.toml."""
    return "colloc site init" if os.geteuid() == 0 else "colloc site init --user"


def load_site(path: str) -> SiteConfig:
    """Read and check a site.toml.

    Raises:
        ConfigError: unreadable, not TOML, an unknown key, a value of the wrong type or outside its choices.
    """
    try:
        # O_NONBLOCK: a FIFO in its place must not hang a submission.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise ConfigError(f"site file '{path}' is no file")
            text = stream.read(16 * 1024 * 1024)
        table = tomllib.loads(text.decode())
    except OSError as error:
        by = f" (named by ${ENVIRONMENT_VARIABLE})" if path == os.environ.get(ENVIRONMENT_VARIABLE) else ""
        raise ConfigError(f"site file '{path}'{by} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, UnicodeDecodeError, a number of 5000 digits
        raise ConfigError(f"site file '{path}' is not valid TOML: {error}") from error
    schema = table.get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        raise ConfigError(f"site file '{path}' has schema {schema}, newer than this release's {SCHEMA}; upgrade")
    return parse_site(table, path)


def parse_exporter_url(text: str) -> tuple[bool, str, int, str] | None:
    """Return whether TLS is asked for, host, port and path of an exporter's URL; None when it is none."""
    match = re.fullmatch(_EXPORTER_URL, text)
    if match is None:
        return None
    tls = match[1] == "https"
    port = int(match[3] or (443 if tls else 80))
    return (tls, match[2].strip("[]"), port, match[4] or "/metrics") if 0 < port < 65536 else None


def parse_site(table: Mapping[str, Any], source: str) -> SiteConfig:
    """Return the SiteConfig that ``table`` declares; ``source`` names it in errors.

    Raises:
        ConfigError: see load_site.
    """
    site = SiteConfig(**_section(SiteConfig, table, "", source))
    kept = site.observe
    if not kept.keep_raw_days <= kept.keep_minute_days <= kept.keep_job_days:
        raise ConfigError(
            f"{source}: 'observe.keep_raw_days', 'keep_minute_days' and 'keep_job_days' must not decrease, "
            f"but are {kept.keep_raw_days:g}, {kept.keep_minute_days:g} and {kept.keep_job_days:g}"
        )
    return site


def _section(schema: Any, table: Mapping[str, Any], prefix: str, source: str) -> dict[str, Any]:
    fields: dict[str, Any] = schema.__annotations__
    for key in table:
        if key not in fields:
            raise ConfigError(f"{source}: unknown key '{prefix}{key}'{_nearest(key, fields)}")
    values = {}
    for key, kind in fields.items():
        if key in table:
            values[key] = _value(kind, table[key], f"{prefix}{key}", source)
        elif key not in schema._field_defaults:
            raise ConfigError(f"{source}: key '{prefix}{key}' is missing ({DOCUMENTATION[prefix + key]})")
    return values


def _nearest(key: str, fields: Mapping[str, Any]) -> str:
    import difflib  # costs csub 5 ms, needed only on the way to an error

    near = difflib.get_close_matches(key, list(fields), n=1)
    return f"; did you mean '{near[0]}'?" if near else f"; valid keys: {', '.join(fields)}"


def _value(kind: Any, value: Any, key: str, source: str) -> Any:
    if hasattr(kind, "_fields"):
        if not isinstance(value, dict):
            raise ConfigError(f"{source}: '{key}' must be a table, not '{value}'")
        return kind(**_section(kind, value, f"{key}.", source))
    if get_origin(kind) is tuple:
        if not isinstance(value, list):
            raise ConfigError(f"{source}: '{key}' must be a list, not '{value}'")
        return tuple(_value(get_args(kind)[0], item, key, source) for item in value)
    return _scalar(kind, value, key, source)


def _scalar(kind: Any, value: Any, key: str, source: str) -> Any:
    plain = get_args(kind)[0] if isinstance(kind, types.UnionType) else kind
    accepted = (int, float) if plain is float else (plain,)
    # bool is an int to Python, not to a person who wrote period_s = true.
    if not isinstance(value, accepted) or (isinstance(value, bool) and plain is not bool):
        raise ConfigError(f"{source}: '{key}' must be {_kind_name(plain)}, not '{value}'")
    least, most = _LEAST.get(key, 0), _MOST.get(key, float("inf"))
    if plain in (int, float) and not (least <= value <= most and value < float("inf")):
        upto = f"to {most}" if key in _MOST else "up"
        raise ConfigError(f"{source}: '{key}' must be a number from {least} {upto}, not '{value}'")
    if key in _ABSOLUTE and value and not os.path.isabs(str(value)):
        raise ConfigError(f"{source}: '{key}' must be an absolute path, not '{value}'")
    if key == "observe.dcgm" and value not in ("", "dcgmi") and parse_exporter_url(str(value)) is None:
        raise ConfigError(
            f"{source}: '{key}' must be 'http://host:port/path' of a dcgm-exporter or 'dcgmi', not '{value}'"
        )
    if key == "observe.prometheus_address" and not value:
        raise ConfigError(f"{source}: '{key}' must not be empty; '0.0.0.0' is every address of the node")
    if key in _CHOICES and value not in _CHOICES[key]:
        raise ConfigError(f"{source}: '{key}' must be one of {', '.join(_CHOICES[key])}, not '{value}'")
    return float(value) if plain is float else value


def _kind_name(kind: type) -> str:
    return {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}[kind]


def reference() -> str:
    """Return the reference of site.toml in Markdown, generated from the schema."""
    lines = ["# site.toml", "", "Generated by `make docs`; the schema is `slurm_colloc/config.py`.", ""]
    lines += ["| key | type | default | meaning |", "| --- | --- | --- | --- |"]
    lines += _reference_rows(SiteConfig, "")
    return "\n".join(lines) + "\n"


def _reference_rows(schema: Any, prefix: str) -> list[str]:
    rows = []
    for key, kind in schema.__annotations__.items():
        inner = get_args(kind)[0] if get_origin(kind) is tuple else kind
        if hasattr(inner, "_fields"):
            rows += [*_reference_rows(inner, f"{prefix}{key}.")]
            continue
        default = repr(schema._field_defaults[key]) if key in schema._field_defaults else "required"
        name = kind.__name__ if isinstance(kind, type) and get_origin(kind) is None else str(kind)
        shown = name.replace("|", "or")
        rows.append(f"| `{prefix}{key}` | {shown} | `{default}` | {DOCUMENTATION[prefix + key]} |")
    return rows

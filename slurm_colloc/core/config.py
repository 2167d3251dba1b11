# SPDX-License-Identifier: Apache-2.0
"""site.toml -> frozen SiteConfig: every key checked, documented and with a default, none ignored.

The NamedTuples below are the schema: a field's annotation is the key's type, its default is the key's default, and
``config_keys.py`` says what it means. The reference page is generated from both.
"""

import os
import re
import stat
import tomllib
from collections.abc import Mapping
from typing import Any, NamedTuple

from slurm_colloc.core.config_audit import Audit, Notices
from slurm_colloc.core.config_check import section
from slurm_colloc.core.errors import ConfigError
from slurm_colloc.core.files import is_not_own_folder

SCHEMA = 1
ENVIRONMENT_VARIABLE = "COLLOC_CONF"
SYSTEM_FILE = "/etc/slurm_colloc/site.toml"
TIERS = {
    "report": "colloc reports what jobs use, and csub changes no job",
    "pack": "colloc reports what jobs use, and csub runs a user's tasks together on a GPU if the user asks for it",
    "place": "colloc reports what jobs use, and csub may give jobs pieces of GPUs",
}


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
    cpus_per_node: int = 0
    mem_per_node_mib: int = 0
    features: tuple[str, ...] = ()
    slice: tuple[MigSlice, ...] = ()


class Partition(NamedTuple):
    """A partition with GPUs: what it gives and who may use it, as Slurm itself has it."""

    name: str
    qos: str = ""
    cpus_per_gpu: int = 0
    mem_per_gpu_mib: int = 0
    default_mem: str = ""
    default_time_min: float | None = None
    max_time_min: float | None = None
    pieces_in: tuple[str, ...] = ()
    restrictions: tuple[str, ...] = ()
    suspends: bool = False
    mps_users: str = ""
    job_submit: str = "off"
    interactive_gres: str = ""
    interactive_names: tuple[str, ...] = ()
    billing_weights: str = ""

    def restriction(self, key: str) -> tuple[str, ...]:
        """Return the values of one of its restrictions; empty where it has none of this key."""
        given = dict(text.partition("=")[::2] for text in self.restrictions)
        return tuple(given[key].split(",")) if key in given else ()


class Rule(NamedTuple):
    """Jobs that go by another policy than the site's: every list that is not empty must name the job's."""

    policy: str
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    qos: tuple[str, ...] = ()
    percent: float = 100.0
    late_binding: str = ""


class Limits(NamedTuple):
    """The accounting's limits."""

    enforced: bool = False


class Sharing(NamedTuple):
    """The sharing that the site allows."""

    order: tuple[str, ...] = ("mig", "mps")
    mps_daemon: str = "none"
    unbilled: tuple[str, ...] = ()
    headroom_mib: int = 256
    max_slowdown: float = 1.25
    protected_types: tuple[str, ...] = ()
    ask_free: bool = True
    settle_s: float = 600.0
    late_binding: str = "off"
    late_forms: tuple[str, ...] = ()
    late_back: str = "single"
    rerun: str = "requeue"


class Observe(NamedTuple):
    """How use is measured."""

    agent: bool = False
    period_s: float = 10.0
    gpu_reader: str = "nvml"
    dcgm: str = ""
    prometheus: str = ""
    keep_raw_days: float = 14.0
    keep_job_days: float = 1825.0


class Paths(NamedTuple):
    """Where things lie."""

    state: str = ""
    journal: str = ""
    decisions: str = ""
    templates: str = ""
    sbatch: str = ""


class Timeouts(NamedTuple):
    """How long to wait."""

    decide_s: float = 2.0


class Prices(NamedTuple):
    """The prices that reports reckon with; they name no money if there is none."""

    currency: str = "EUR"
    gpu_hour: float | None = None
    kwh: float | None = None
    co2_g_per_kwh: float | None = None


class SiteConfig(NamedTuple):
    """All that a site declares."""

    schema: int
    cluster: str
    slurm_release: str
    default_partition: str = ""
    default_mem: str = ""
    sbatch_options: tuple[str, ...] = ()
    policy: str = "shadow"
    user_file: str = "allowed"
    rollout: tuple[Rule, ...] = ()
    pool: tuple[Pool, ...] = ()
    partition: tuple[Partition, ...] = ()
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


class Proposed(NamedTuple):
    """Audit rules that are in force nowhere yet."""

    audit: Audit


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
    if passed_over():
        return (SYSTEM_FILE,)
    return (named,) if named else (user_config_file(), SYSTEM_FILE)


def passed_over() -> str:
    """Return the site.toml that is not in force because the system's forbids users' own; empty where there is none.

    Root may name any file, and everybody one of root's or of whoever wrote the system's: services and plugins do.
    """
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    path = named or user_config_file()
    if os.geteuid() == 0 or not (named or os.path.lexists(path)):
        return ""
    try:
        if load_site(SYSTEM_FILE).user_file == "allowed":
            return ""
        trusted = {0, os.stat(SYSTEM_FILE).st_uid}
    except (ConfigError, OSError):  # then it forbids nothing
        return ""
    try:
        return "" if named and os.stat(path).st_uid in trusted else path
    except OSError:
        return path


def how_passed_over(path: str) -> str:
    """Return in words that a site.toml is passed over, and what to do."""
    by = f"unset {ENVIRONMENT_VARIABLE}" if os.environ.get(ENVIRONMENT_VARIABLE) else "move it away"
    return f"site file '{path}' is not used, because '{SYSTEM_FILE}' forbids users' own (user_file); {by}"


def typed(command: str) -> str:
    """Return a command as it is typed elsewhere to go by the same site.toml; there $COLLOC_CONF may not be set."""
    named = os.environ.get(ENVIRONMENT_VARIABLE)
    if not named or passed_over():
        return command
    import shlex  # csub loads this file at every submission

    return f"{ENVIRONMENT_VARIABLE}={shlex.quote(os.path.abspath(named))} {command}"


def find_site_file() -> str | None:
    """Return the site.toml in force: $COLLOC_CONF, the user's own, or the system's; None when there is none."""
    paths = site_files()
    return next((path for path in paths if os.path.isfile(path) or path == os.environ.get(ENVIRONMENT_VARIABLE)), None)


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
    return parse_site(_read(path), path)


def load_audit(path: str) -> Audit:
    """Read and check proposed rules: a whole site.toml, or a file with nothing but its [audit].

    Raises:
        ConfigError: see load_site.
    """
    table = _read(path)
    if "schema" in table:
        return parse_site(table, path).audit
    if not table:
        raise ConfigError(f"{path}: no rules in it; write them as [[audit.rule]]")
    return Proposed(**section(Proposed, table, "", path)).audit


def _read(path: str) -> dict[str, Any]:
    try:
        # O_NONBLOCK: a FIFO in its place must not hang a submission.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(
                    f"site file '{path}' is no file; put a site.toml there, or name one in ${ENVIRONMENT_VARIABLE}"
                )
            if path == user_config_file() and status.st_uid not in (0, os.geteuid()):  # which programs run stands in it
                raise ConfigError(
                    f"site file '{path}' belongs to uid {status.st_uid}, neither to you nor to root; move it away"
                )
            text = stream.read(1 << 24)
        # tomllib takes time and memory by the square of a key's parts, and an error cannot print a longer number.
        is_long = (line.count(b".") > 31 or len(line) > 999 for line in text.split(b"\n"))
        absurd = rb"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){32}|(?<!\w)(?:\d|0[xob])\w{999}"""
        if any(is_long) and re.search(absurd, text):
            raise ValueError("a key of more than 32 parts, or a number of more than 1000 digits")
        table = tomllib.loads(text.decode())
    except OSError as error:
        by = f" (named by ${ENVIRONMENT_VARIABLE})" if path == os.environ.get(ENVIRONMENT_VARIABLE) else ""
        raise ConfigError(f"site file '{path}'{by} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, UnicodeDecodeError, a number of 5000 digits
        raise ConfigError(f"site file '{path}' is not valid TOML: {error}") from error
    schema = table.get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        raise ConfigError(f"site file '{path}' has schema {schema}, newer than this release's {SCHEMA}; upgrade")
    return table


def parse_site(table: Mapping[str, Any], source: str) -> SiteConfig:
    """Return the SiteConfig that ``table`` declares; ``source`` names it in errors.

    Raises:
        ConfigError: see load_site.
    """
    site = SiteConfig(**section(SiteConfig, table, "", source))
    kept = site.observe
    if kept.keep_raw_days > kept.keep_job_days:
        raise ConfigError(
            f"{source}: 'observe.keep_raw_days' must be at most 'keep_job_days', but they are {kept.keep_raw_days:g} "
            f"and {kept.keep_job_days:g}"
        )
    return site

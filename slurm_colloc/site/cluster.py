# SPDX-License-Identifier: Apache-2.0
"""Asks the live cluster for its configuration, once. site.toml is made from it and compared with it.

Slurm counts gres/mps and gres/shard as no gres/gpu: a job on a share passes by limits and prices that name GPUs alone.
``free_of_charge`` says where shares are not accounted for or billed as GPUs are.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

from slurm_colloc.core.config import Partition as DeclaredPartition
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.errors import InputError
from slurm_colloc.gpu.reader import GpuUnit
from slurm_colloc.slurm.client import CliClient
from slurm_colloc.slurm.limits import has_database, holds_to_limits, names_tres
from slurm_colloc.slurm.option_tables import SBATCH_OPTIONS, known_as
from slurm_colloc.slurm.parse import Node, Partition, parse_job_defaults
from slurm_colloc.slurm.setup import parse_weights

Key = TypeVar("Key")
Value = TypeVar("Value")
SHARES = ("mps", "shard")
DEVICES = ("gpu", *SHARES)
# How a site file keeps csub from giving shares.
OFF = {"mps": 'write sharing.mps_daemon = "none"', "shard": 'take "shard" out of sharing.order'}


class NodeGpus(NamedTuple):
    """The GPUs of one node by its driver; ``complete`` is false where the driver was asked inside a job."""

    node: str
    units: tuple[GpuUnit, ...]
    complete: bool = True


class Cluster(NamedTuple):
    """A cluster as it is now; ``gpus`` are those of nodes whose drivers were asked."""

    release: str
    settings: Mapping[str, str]
    nodes: tuple[Node, ...]
    partitions: tuple[Partition, ...]
    plugin_options: tuple[str, ...]
    unloaded_plugins: tuple[str, ...]
    gpus: tuple[NodeGpus, ...]

    @property
    def name(self) -> str:
        """Return ClusterName."""
        return self.settings.get("ClusterName", "")

    @property
    def default_partition(self) -> str:
        """Return the partition of a job that names none; empty for none."""
        return next((partition.name for partition in self.partitions if partition.default), "")

    @property
    def accounts(self) -> bool:
        """Return whether jobs are accounted for by slurmdbd."""
        return has_database(self.settings)

    @property
    def enforced(self) -> bool:
        """Return whether slurmctld holds jobs to the accounting's limits."""
        return holds_to_limits(self.settings)


def look(client: CliClient, gpus: Sequence[NodeGpus] = ()) -> Cluster:
    """Return the cluster as it is now, with GPUs as drivers described them.

    Raises:
        ProcessError: Slurm does not answer.
        InputError: it answers what is not understood, or a driver's node is none of the cluster's.
    """
    settings, release = client.config(), client.release()
    shares = client.shares()
    nodes = tuple(node._replace(shares=shares.get(node.name, ())) for node in client.nodes())
    strange = sorted({item.node for item in gpus} - {node.name for node in nodes})
    if strange:
        raise InputError(
            f"the cluster has no node '{strange[0]}', of which GPUs were read; say by --node what Slurm calls it "
            "('sinfo -N'), and read them again"
        )
    options, unloaded = _plugin_options(client, release), client.unloaded_plugins()
    return Cluster(release, settings, nodes, client.partitions(), options, unloaded, tuple(gpus))


def with_gpus(cluster: Cluster) -> list[Partition]:
    """Return the partitions with a GPU, in Slurm's order."""
    names = {name for node in cluster.nodes if node.quantity("gpu") for name in node.partitions}
    return [partition for partition in cluster.partitions if partition.name in names]


_VALUE = {"required": "=", "optional": "=?", "none": ""}


def _plugin_options(client: CliClient, release: str) -> tuple[str, ...]:
    """Return what sbatch knows beyond its release's own options, as site.toml writes it; nothing if it is unknown."""
    if not (known := known_as(release)):
        return ()
    options = client.further_options({option.name for option in SBATCH_OPTIONS[known]})
    if known != release:  # an option of a newer sbatch itself is no plugin's, and how it is written is not known
        options = {name: options[name] for name in client.plugin_options() & options.keys()}
    return tuple(f"{name}{_VALUE[options[name]]}" for name in sorted(options))


# The keys of a [[partition]] of which Slurm speaks; the others are the site's own.
PARTITION_KEYS = tuple(key for key in DeclaredPartition._fields if key in (*Partition._fields, "suspends"))


def partition_table(partition: Partition, settings: Mapping[str, str]) -> dict[str, object]:
    """Return the keys of a [[partition]] that are not the default."""
    cpus, mem_mib = brought_by_gpu(partition, settings)
    suspends = _suspends(partition, settings)
    table = partition._asdict() | {"cpus_per_gpu": cpus, "mem_per_gpu_mib": mem_mib, "suspends": suspends}
    declared = DeclaredPartition("")
    return {key: table[key] for key in PARTITION_KEYS if key == "name" or table[key] != getattr(declared, key)}


def brought_by_gpu(partition: Partition, settings: Mapping[str, str]) -> tuple[int, int]:
    """Return the cores and the MiB that a GPU brings by default, 0 where none: a partition's own go before all's."""
    cpus, mem_mib = parse_job_defaults(settings.get("JobDefaults", ""))
    own = partition.cpus_per_gpu, partition.mem_per_gpu_mib
    return (cpus or 0) if own[0] is None else own[0], (mem_mib or 0) if own[1] is None else own[1]


def default_mem(settings: Mapping[str, str]) -> str:
    """Return the host memory of a job that asks for none, as slurm.conf says for all partitions; empty: none."""
    keys = ("DefMemPerCPU", "DefMemPerNode")
    return next((f"{key}={settings[key]}" for key in keys if settings.get(key, "").isdigit()), "")


def _suspends(partition: Partition, settings: Mapping[str, str]) -> bool:
    """Return whether Slurm may suspend a job of this partition by itself; see slurm.conf(5), PreemptMode.

    A partition's own mode goes before the cluster's, but neither do jobs that are preempted by QOS heed it, nor those
    that take turns on shared resources.
    """
    own, of_all = set(partition.preempt_mode), set(settings.get("PreemptMode", "").split(","))
    by_qos = settings.get("PreemptType") == "preempt/qos"
    takes_turns = "GANG" in of_all and partition.oversubscribe.startswith(("FORCE", "YES"))
    return bool({"SUSPEND", "GANG"} & (own | of_all if by_qos or takes_turns else own))


def least_for_jobs(nodes: Sequence[Node]) -> tuple[tuple[str, int, str], ...]:
    """Return key, value and source of the CPUs and MiB that jobs may have of each of these nodes; 0 is not known."""
    return tuple(
        (key, min((value for value in of_nodes if value), default=0), source)
        for key, of_nodes, source in (
            ("cpus_per_node", [node.cpus for node in nodes], "CPUEfctv"),
            ("mem_per_node_mib", [node.mem_mib for node in nodes], "RealMemory without MemSpecLimit"),
        )
    )


def uses(config: SiteConfig, share: str) -> bool:
    """Return whether csub may give shares of this kind, as far as the site file goes."""
    sharing = config.sharing
    return sharing.mps_daemon != "none" if share == "mps" else share in sharing.order


def free_of_charge(cluster: Cluster, share: str) -> list[str]:
    """Return why jobs on gres/``share`` would not be billed where jobs on GPUs are; each with what to do.

    Raises:
        InputError: billing weights outside their grammar.
    """
    if not cluster.accounts:
        return []
    tracked = cluster.settings.get("AccountingStorageTRES", "").split(",")
    if names_tres(tracked, "gres/gpu") and not names_tres(tracked, f"gres/{share}"):
        return [
            f"AccountingStorageTRES names gres/gpu and not gres/{share}, so that such jobs could neither be accounted "
            f"for nor billed nor limited: add gres/{share} there"
        ]
    sharing = {name for node in cluster.nodes if node.quantity(share) for name in node.partitions}
    return [
        f"partition '{partition.name}' bills gres/gpu and not gres/{share}: add gres/{share} to its TRESBillingWeights"
        for partition in with_gpus(cluster)
        for charged in [[name for name, weight in parse_weights(partition.billing_weights).items() if weight]]
        if partition.name in sharing and names_tres(charged, "gres/gpu") and not names_tres(charged, f"gres/{share}")
    ]


def grouped(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """Return the values of each key, in their order."""
    groups: dict[Key, list[Value]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups

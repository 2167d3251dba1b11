# SPDX-License-Identifier: Apache-2.0
"""Write a site.toml from the live cluster: each figure with its source, and the figures that nobody could tell.

Consents are never assumed: sharing by mps or shard stays off until a person with the right to say so says so.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

from slurm_colloc.core.config import TIERS
from slurm_colloc.core.config_file import SCHEMA
from slurm_colloc.core.errors import InputError
from slurm_colloc.core.toml_text import key_line, note
from slurm_colloc.site.admin_remarks import read_as_another
from slurm_colloc.site.cluster import SHARES, Cluster, default_mem, free_of_charge, partition_table, with_gpus
from slurm_colloc.site.pools import pool_lines
from slurm_colloc.slurm.parse import Partition

_POLICIES = {"report": "off", "pack": "pack", "place": "shadow"}

# scontrol's words for the keys of a [[partition]].
_SAID = {
    "name": "scontrol show partition",
    "qos": "QoS",
    "cpus_per_gpu": "DefCpuPerGPU, its own or slurm.conf's",
    "mem_per_gpu_mib": "DefMemPerGPU, its own or slurm.conf's",
    "default_time_min": "DefaultTime",
    "max_time_min": "MaxTime",
    "billing_weights": "TRESBillingWeights",
    "suspends": "PreemptMode, its own or slurm.conf's",
}
# Whom the MPS of a GPU serves, as far as slurm.conf decides it.
_MPS_USERS = {
    "one": "ExclusiveUser: a node serves one user at a time; to more users 'each' or 'all' would give its other GPUs",
    "each": "a GPU's users have a daemon each and take turns, so jobs need more shares; 'all': one daemon for all",
}


def discover(
    cluster: Cluster,
    models: Mapping[str, str],
    vouched: Collection[str],
    extra: Mapping[str, Mapping[str, object]],
    tier: str = "place",
    *,
    own: bool = False,
) -> str:
    """Return the text of a site.toml for the cluster as it is now, with no more than its tier needs.

    Args:
        cluster: the cluster.
        models: gres type -> the GPU's name as the driver gives it, where the type alone does not say it.
        vouched: the kinds of shares that the caller vouches for.
        extra: further sections and their keys, as given on the command line.
        tier: one of TIERS.
        own: it is one user's, for their own jobs only.

    Raises:
        InputError: a model for a gres type that no node has, or another card than the driver's; a name outside UTF-8.
    """
    types = sorted({gres.type for node in cluster.nodes for gres in node.gres if gres.name == "gpu"})
    strange = sorted(set(models) - set(types))
    if strange:
        raise InputError(f"no node has gpu:{strange[0]}; the cluster's types are {', '.join(types) or 'none'}")
    lines = [
        note("site.toml of slurm_colloc, written by 'colloc site init' from the live cluster."),
        note(
            "Every key is explained in docs/reference/site.toml.md; 'colloc site check' compares it with the cluster."
        ),
        *_section("", _top(cluster, tier, own=own), extra),
        *pool_lines(cluster, models),
    ]
    sections: dict[str, tuple[Iterable[str], _Keys]] = {name: ((), {}) for name in extra if name and extra[name]}
    if tier != "report":
        for partition in with_gpus(cluster):
            lines += ["", *_partition(partition, cluster)]
        enforced = cluster.settings.get("AccountingStorageEnforce", "not set")
        enforced_key = {"enforced": (cluster.enforced, f"AccountingStorageEnforce is {enforced}")}
        sections["limits"] = ((), enforced_key)
    if tier == "place":
        meant = extra.get("sharing", {}).get("unbilled")
        sharing, why_not = _sharing(cluster, vouched, meant if isinstance(meant, list) else [])
        sections["sharing"] = (map(note, why_not), sharing)
        if own:
            sharing["late_binding"] = ("on", "your own jobs may get a piece while they wait")
    for name, (about, keys) in sections.items():
        lines += ["", *about, f"[{name}]", *_section(name, keys, extra)]
    return "\n".join(lines) + "\n"


_Keys = Mapping[str, tuple[object, str]]


def _section(name: str, keys: _Keys, extra: Mapping[str, Mapping[str, object]]) -> Iterator[str]:
    """Yield the keys of a section: those that were found, and those that were given, which go before them."""
    chosen = {key: (value, "as given by --set") for key, value in extra.get(name, {}).items()}
    for key, (value, source) in {**keys, **chosen}.items():
        yield key_line(key, value, source)


def _top(cluster: Cluster, tier: str, *, own: bool) -> dict[str, tuple[object, str]]:
    keys: dict[str, tuple[object, str]] = {"schema": (SCHEMA, ""), "cluster": (cluster.name, "scontrol show config")}
    release = read_as_another(cluster.release) or "scontrol --version"
    default = "scontrol show partition" if cluster.default_partition else "no partition is the default"
    keys["slurm_release"] = (cluster.release, release)
    policy = (_POLICIES[tier], f"tier '{tier}': {TIERS[tier]}")
    if tier == "report":
        return {**keys, "policy": policy}
    return {
        **keys,
        "default_partition": (cluster.default_partition, default),
        **({"default_mem": (memory, "scontrol show config")} if (memory := default_mem(cluster.settings)) else {}),
        "sbatch_options": (cluster.plugin_options, "options of SPANK plugins, asked of sbatch"),
        "policy": ("auto", "your own jobs") if own and tier == "place" else policy,
    }


def _partition(partition: Partition, cluster: Cluster) -> Iterator[str]:
    """Yield a [[partition]], as far as csub goes by what scontrol says of it."""
    yield "[[partition]]"
    for key, value in partition_table(partition, cluster.settings).items():
        yield key_line(key, value, _SAID.get(key, ""))
    if any(partition.name in node.partitions for node in cluster.nodes if node.quantity("mps")):
        users = "one" if partition.one_user else "each"
        yield key_line("mps_users", users, _MPS_USERS[users])
    yield note("pieces_in = []  # partitions to which its jobs may be moved for a piece of a GPU")


def _sharing(
    cluster: Cluster, vouched: Collection[str], unbilled: Collection[object]
) -> tuple[dict[str, tuple[object, str]], list[str]]:
    """Return the keys of [sharing], and in words why what was vouched for is off."""
    offered = [share for share in SHARES if any(node.quantity(share) for node in cluster.nodes)]
    reasons = {share: free_of_charge(cluster, share) for share in offered}
    off = {share for share, texts in reasons.items() if texts and share not in unbilled}
    mps, shard = (share in vouched and share not in off for share in SHARES)
    lines = [f"gres/{share}: {reason}" for share, texts in reasons.items() for reason in texts]
    if off:
        lines.append("Such a share stays off here, whoever vouched for it, unless sharing.unbilled names it.")
    somebody = "vouched for when this was written"
    nobody = "on by 'colloc site init --mps-daemon': MPS daemons on the nodes; write who runs them"
    return {
        "mps_daemon": ("site" if mps else "none", somebody if mps else nobody),
        "order": (
            ["mig", "mps", "shard"] if shard else ["mig", "mps"],
            somebody if shard else "'shard' too by 'colloc site init --shard-consent': jobs on shards are not isolated",
        ),
    }, lines

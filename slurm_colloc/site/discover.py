# SPDX-License-Identifier: Apache-2.0
"""Write a site.toml from the live cluster, and check one against it.

Consents are never assumed: sharing by mps or shard stays off until a person with the right to say so says so.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from ClusterShell.NodeSet import NodeSet, NodeSetException

from slurm_colloc.config import SCHEMA, Pool, SiteConfig
from slurm_colloc.config import Partition as DeclaredPartition
from slurm_colloc.errors import InputError
from slurm_colloc.gpu.mig import GpuModel, model_named, parse_profile
from slurm_colloc.slurm.client import SlurmClient
from slurm_colloc.slurm.option_tables import SBATCH_OPTIONS
from slurm_colloc.slurm.parse import Node, Partition, parse_job_defaults


class Consent(NamedTuple):
    """What the person who runs ``site init`` vouches for."""

    mps_daemon: bool = False
    shard: bool = False


def discover(
    client: SlurmClient, models: Mapping[str, str], consent: Consent, extra: Mapping[str, Mapping[str, object]]
) -> str:
    """Return the text of a site.toml for the cluster as it is now.

    Args:
        client: the cluster.
        models: gres type -> the GPU's name as the driver gives it, where the type alone does not say it.
        consent: what the caller vouches for.
        extra: further sections and their keys, as given on the command line.

    Raises:
        ProcessError: Slurm does not answer.
        InputError: a model for a gres type that no node has.
    """
    nodes, partitions, settings = client.nodes(), client.partitions(), client.config()
    types = sorted({gres.type for node in nodes for gres in node.gres if gres.name == "gpu"})
    strange = sorted(set(models) - set(types))
    if strange:
        raise InputError(f"no node has gpu:{strange[0]}; the cluster's types are {', '.join(types) or 'none'}")
    default = next((partition.name for partition in partitions if partition.default), "")
    release = client.release()
    top: dict[str, object] = {
        "schema": SCHEMA,
        "cluster": settings.get("ClusterName", ""),
        "slurm_release": release,
        "default_partition": default,
        "sbatch_options": _plugin_options(client, release),
        "policy": "auto",
    }
    lines = [
        "# site.toml of slurm_colloc, written by 'colloc site init' from the live cluster.",
        "# Every key is explained in docs/reference/site.toml.md; 'colloc site check' compares it with the cluster.",
        *(f"{key} = {_toml(value)}" for key, value in {**top, **extra.get("", {})}.items()),
    ]
    for group in _alike(node for node in nodes if any(gres.name == "gpu" for gres in node.gres)):
        lines += ["", *_pool(group, models)]
    for partition in _with_gpus(partitions, nodes):
        table = _partition_table(partition, settings)
        lines += ["", "[[partition]]", *(f"{key} = {_toml(value)}" for key, value in table.items())]
        lines.append("# pieces_in = []  # partitions to which its jobs may be moved for a piece of a GPU")
    found: dict[str, dict[str, object]] = {"limits": {"enforced": _enforced(settings)}, "sharing": _sharing(consent)}
    sections = {**extra, **{name: {**keys, **extra.get(name, {})} for name, keys in found.items()}}
    for name, section in sections.items():
        if section and name:
            lines += ["", f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in section.items())]
    return "\n".join(lines) + "\n"


_VALUE = {"required": "=", "optional": "=?", "none": ""}


def _plugin_options(client: SlurmClient, release: str) -> list[str]:
    """Return what sbatch knows beyond its release's own options, as site.toml writes it; nothing if it is unknown."""
    if release not in SBATCH_OPTIONS:
        return []
    options = client.further_options({option.name for option in SBATCH_OPTIONS[release]})
    return [f"{name}{_VALUE[options[name]]}" for name in sorted(options)]


def _sharing(consent: Consent) -> dict[str, object]:
    return {
        "mps_daemon": "site" if consent.mps_daemon else "none",
        "mps_single_user": consent.mps_daemon,
        "shard_consent": consent.shard,
    }


def _enforced(settings: Mapping[str, str]) -> bool:
    """Return whether slurmctld holds jobs to the accounting's limits; see slurm.conf(5), AccountingStorageEnforce."""
    enforce = set(settings.get("AccountingStorageEnforce", "").lower().split(","))
    return bool(enforce & {"limits", "safe", "all"})


def _with_gpus(partitions: Sequence[Partition], nodes: Sequence[Node]) -> list[Partition]:
    names = {name for node in nodes if any(gres.name == "gpu" for gres in node.gres) for name in node.partitions}
    return [partition for partition in partitions if partition.name in names]


def _partition_table(partition: Partition, settings: Mapping[str, str]) -> dict[str, object]:
    """Return the keys of a [[partition]] that are not the default; a partition's own JobDefaults go before all's."""
    cpus, mem = parse_job_defaults(settings.get("JobDefaults", ""))
    table = partition._asdict() | {
        "cpus_per_gpu": (cpus or 0) if partition.cpus_per_gpu is None else partition.cpus_per_gpu,
        "mem_per_gpu_mib": (mem or 0) if partition.mem_per_gpu_mib is None else partition.mem_per_gpu_mib,
    }
    table["suspends"] = _suspends(partition, settings)
    declared = DeclaredPartition("")
    return {
        key: table[key]
        for key in declared._fields
        if key in table and (key == "name" or table[key] != getattr(declared, key))
    }


def _suspends(partition: Partition, settings: Mapping[str, str]) -> bool:
    """Return whether Slurm may suspend a job of this partition by itself; see slurm.conf(5), PreemptMode.

    A partition's own mode goes before the cluster's, but neither do jobs that are preempted by QOS heed it, nor those
    that take turns on shared resources.
    """
    own, of_all = set(partition.preempt_mode), set(settings.get("PreemptMode", "").split(","))
    by_qos = settings.get("PreemptType") == "preempt/qos"
    takes_turns = "GANG" in of_all and partition.oversubscribe.startswith(("FORCE", "YES"))
    return bool({"SUSPEND", "GANG"} & (own | of_all if by_qos or takes_turns else own))


def _alike(nodes: Iterable[Node]) -> list[list[Node]]:
    groups: dict[object, list[Node]] = {}
    for node in nodes:
        groups.setdefault((tuple(sorted(node.gres)), node.partitions), []).append(node)
    return list(groups.values())


def _pool(nodes: Sequence[Node], models: Mapping[str, str]) -> list[str]:
    gres = nodes[0].gres
    whole = [item for item in gres if item.name == "gpu" and parse_profile(item.type) is None]
    slices = [item for item in gres if item.name == "gpu" and parse_profile(item.type) is not None]
    named = next((models[item.type] for item in (*whole, *slices) if item.type in models), None)
    model = model_named(named or (slices[0].type if slices else whole[0].type))
    gpus = sum(item.quantity for item in whole)
    others = ", ".join(f"gpu:{item.type}" for item in whole[1:])
    name = str(NodeSet.fromlist([node.name for node in nodes]))
    lines = [
        "[[pool]]",
        f"name = {_toml(name)}",
        f"nodes = {_toml(name)}",
        f"partitions = {_toml(list(nodes[0].partitions))}",
        f"gpu_type = {_toml(whole[0].type if whole else '')}",
        *([f"# These nodes also have {others}, which this pool cannot describe."] if others else []),
        f"gpus_per_node = {whole[0].quantity if whole else 0}",
        *_size(model, named),
    ]
    for share, key in (("mps", "mps_per_gpu"), ("shard", "shards_per_gpu")):
        count = sum(item.quantity for item in gres if item.name == share)
        if count and gpus:
            lines.append(f"{key} = {count // gpus}")
    for item in slices:
        lines += _slice(item.type, item.quantity, model)
    return lines


def _size(model: GpuModel | None, named: str | None) -> list[str]:
    if model is None:
        known = f"gpu_model = {_toml(named)}" if named else '# gpu_model = "..."      # as nvidia-smi -L prints it'
        return [
            "# The gres type does not say which card this is; without these keys csub places nothing here.",
            known,
            "# gpu_mem_mib = 0        # nvidia-smi --query-gpu=memory.total --format=csv",
            "# sm_count = 0",
        ]
    return [
        f"gpu_model = {_toml(model.name)}",
        f"gpu_mem_mib = {model.mem_total_mib}",
        f"sm_count = {model.sm_count}",
    ]


def _slice(gres_type: str, quantity: int, model: GpuModel | None) -> list[str]:
    profile = parse_profile(gres_type)
    size = model.profiles.get(profile.name) if model and profile else None
    if profile is None or size is None:
        return [f"# slice {gres_type}: its memory and SMs are not known here; add a [[pool.slice]] for it"]
    return [
        "[[pool.slice]]",
        f"type = {_toml(gres_type)}",
        f"profile = {_toml(profile.name)}",
        f"mem_mib = {size[0]}",
        f"sm_count = {size[1]}",
        f"quantity = {quantity}",
    ]


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(item) for item in value) + "]"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return '"' + "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped) + '"'
    return str(value)


def check(config: SiteConfig, client: SlurmClient) -> list[str]:
    """Return what in ``config`` does not hold on the live cluster; nothing when all does.

    Raises:
        ProcessError: Slurm does not answer.
    """
    problems = []
    settings = client.config()
    release, cluster = client.release(), settings.get("ClusterName", "")
    if release != config.slurm_release:
        problems.append(f"slurm_release is '{config.slurm_release}', the cluster runs {release}")
    if cluster != config.cluster:
        problems.append(f"cluster is '{config.cluster}', slurm.conf says '{cluster}'")
    if _enforced(settings) != config.limits.enforced:
        declared, actual = _toml(config.limits.enforced), _toml(_enforced(settings))
        problems.append(f"limits.enforced is {declared}, the cluster's is {actual}")
    plugins = _plugin_options(client, release)
    if sorted(config.sbatch_options) != plugins:
        declared, actual = ", ".join(sorted(config.sbatch_options)) or "empty", ", ".join(plugins) or "none"
        problems.append(f"sbatch_options is {declared}, the cluster's plugins add {actual}")
    partitions = client.partitions()
    default = next((partition.name for partition in partitions if partition.default), "")
    if default != config.default_partition:
        problems.append(f"default_partition is '{config.default_partition}', the cluster's is '{default}'")
    nodes = {node.name: node for node in client.nodes()}
    problems += _partition_problems(config, _with_gpus(partitions, list(nodes.values())), settings)
    described: set[str] = set()
    for pool in config.pool:
        try:
            names = list(NodeSet(pool.nodes))
        except NodeSetException as error:
            problems.append(f"pool '{pool.name}': nodes '{pool.nodes}' cannot be read: {error}")
            described.update(nodes)  # nobody knows which
            continue
        described.update(names)
        for name in names:
            if name not in nodes:
                problems.append(f"pool '{pool.name}': node '{name}' does not exist")
            else:
                problems += [f"pool '{pool.name}', node '{name}': {what}" for what in _differences(pool, nodes[name])]
    for name, node in nodes.items():
        if name not in described and any(gres.name == "gpu" for gres in node.gres):
            problems.append(f"node '{name}' has GPUs and no pool describes it")
    return problems


def _partition_problems(
    config: SiteConfig, partitions: Sequence[Partition], settings: Mapping[str, str]
) -> Iterable[str]:
    declared = {partition.name: partition for partition in config.partition}
    for partition in partitions:
        table = _partition_table(partition, settings)
        found = declared.get(partition.name)
        if found is None:
            yield f"partition '{partition.name}' has GPUs and no [[partition]] describes it: no share is placed there"
            continue
        for key, default in DeclaredPartition("")._asdict().items():
            value = table.get(key, default)
            if key != "pieces_in" and getattr(found, key) != value:
                yield f"partition '{partition.name}': {key} is {getattr(found, key)}, the cluster's is {value}"
    for name in sorted(set(declared) - {partition.name for partition in partitions}):
        yield f"partition '{name}' has no GPUs, or does not exist"
    for found in config.partition:
        for name in found.pieces_in:
            if name not in declared:
                yield f"partition '{found.name}': pieces_in names '{name}', which no [[partition]] describes"


def gaps(config: SiteConfig) -> list[str]:
    """Return where ``config`` keeps csub from placing jobs, by its own words and not by mistake."""
    found = [] if config.policy == "auto" else [f"policy is '{config.policy}': no job is placed"]
    if not config.pool:
        found.append("no pool: no node with GPUs is described, so no job is placed")
    if config.slurm_release not in SBATCH_OPTIONS:
        known = ", ".join(SBATCH_OPTIONS)
        found.append(f"slurm_release is '{config.slurm_release}', csub knows {known}: csub is plain sbatch")
    if not config.paths.state and config.observe.agent:
        found.append("observe.agent is set and paths.state is not: the samples of the nodes would lie in root's home")
    found += [
        f"partition '{partition.name}': its jobs may be suspended and keep their GPU memory: no mps, no shard, no packs"
        for partition in config.partition
        if partition.suspends
    ]
    for pool in config.pool:
        shares = pool.mps_per_gpu or pool.shards_per_gpu
        if pool.sm_count is None or (pool.gpu_mem_mib is None and shares):
            missing = " and ".join(key for key in ("sm_count", "gpu_mem_mib") if getattr(pool, key) is None)
            what = "no job" if pool.sm_count is None else "no share"
            found.append(f"pool '{pool.name}': {what} is placed without its {missing}; 'site init --gpu' may know them")
        elif not (pool.slice or shares):
            found.append(f"pool '{pool.name}': no slices, mps or shard, so jobs get whole GPUs")
        else:
            found += [f"pool '{pool.name}': {why}" for why in _off(pool, config)]
    return found


def _off(pool: Pool, config: SiteConfig) -> Iterable[str]:
    sharing = config.sharing
    if pool.mps_per_gpu and (sharing.mps_daemon != "site" or not sharing.mps_single_user):
        yield "gres/mps is not used: nobody vouched for the daemon (--mps-daemon)"
    if pool.shards_per_gpu and not sharing.shard_consent:
        yield "gres/shard is not used: nobody vouched that it is accepted (--shard-consent)"


def _differences(pool: Pool, node: Node) -> Iterable[str]:
    gpus = {item.type: item.quantity for item in node.gres if item.name == "gpu"}
    shares = {item.name: item.quantity for item in node.gres if item.name in ("mps", "shard")}
    if set(pool.partitions) != set(node.partitions):
        yield f"partitions are {', '.join(node.partitions)}, not {', '.join(pool.partitions)}"
    if pool.gpu_type and gpus.get(pool.gpu_type, 0) != pool.gpus_per_node:
        yield f"it has {gpus.get(pool.gpu_type, 0)} of gpu:{pool.gpu_type}, not {pool.gpus_per_node}"
    for part in pool.slice:
        if gpus.get(part.type, 0) != part.quantity:
            yield f"it has {gpus.get(part.type, 0)} of gpu:{part.type}, not {part.quantity}"
    whole = sum(count for kind, count in gpus.items() if parse_profile(kind) is None)
    for name, per_gpu in (("mps", pool.mps_per_gpu), ("shard", pool.shards_per_gpu)):
        if shares.get(name, 0) != per_gpu * whole:
            yield f"it has {shares.get(name, 0)} of {name}, not {per_gpu} for each of {whole} GPUs"

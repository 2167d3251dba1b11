# SPDX-License-Identifier: Apache-2.0
"""Compare a site.toml with the cluster as it is: each difference comes with the line to write instead.

Keys that the cluster says nothing of are not compared.
"""

import grp
import pwd
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping

from slurm_colloc.core.config import MigSlice, Pool, SiteConfig
from slurm_colloc.core.config import Partition as DeclaredPartition
from slurm_colloc.core.errors import InputError
from slurm_colloc.core.toml_text import value_text
from slurm_colloc.gpu.mig import gres_type_of, model_named, parse_profile
from slurm_colloc.gpu.reader import GpuUnit
from slurm_colloc.placement.pieces import shares_per_gpu, shut_by
from slurm_colloc.site.cluster import (
    OFF,
    PARTITION_KEYS,
    SHARES,
    Cluster,
    default_mem,
    free_of_charge,
    grouped,
    least_for_jobs,
    partition_table,
    uses,
    with_gpus,
)
from slurm_colloc.site.node_gpus import Card, Known, Shape, card_of, shapes_of, units_of
from slurm_colloc.slurm.hostlist import expand, fold
from slurm_colloc.slurm.parse import Node

# Drivers differ by so much in the memory of a card that they leave to jobs.
_OTHER_DRIVER = 0.05
# Our SPANK plugin adds these to sbatch.
_OURS = frozenset(("colloc=", "gpu-footprint="))


def differences(config: SiteConfig, cluster: Cluster) -> list[str]:
    """Return what in ``config`` does not hold on the live cluster; nothing when all does.

    A site that only reports needs none of what a submission goes by.
    """
    submits = config.tier != "report"
    return [
        *_top(config, cluster, submits=submits),
        *(_partitions(config, cluster) if submits else ()),
        *_names(config, cluster),
        *_pools(config, cluster),
        *_shares(config, cluster),
    ]


def _differs(where: str, key: str, declared: object, actual: object, source: str = "the cluster's") -> str:
    """Return one difference; ``actual`` of None is a key that should not be there."""
    value, instead = (
        ("none", f"leave {key} out") if actual is None else (text := value_text(actual), f"write {key} = {text}")
    )
    return f"{where}{key} is {value_text(declared)}, {source} is {value}: {instead}"


def _top(config: SiteConfig, cluster: Cluster, *, submits: bool) -> Iterator[str]:
    rows = [
        ("slurm_release", config.slurm_release, cluster.release),
        ("cluster", config.cluster, cluster.name),
        ("limits.enforced", config.limits.enforced, cluster.enforced),
        ("default_partition", config.default_partition, cluster.default_partition),
        ("default_mem", config.default_mem, default_mem(cluster.settings)),
    ]
    for key, declared, actual in rows if submits else rows[:2]:
        if declared != actual:
            yield _differs("", key, declared, actual)
    if submits:
        yield from _options(config, cluster)


def _options(config: SiteConfig, cluster: Cluster) -> Iterator[str]:
    """Yield how sbatch's further options differ; a plugin that is not loaded is to be mended, and not the file."""
    declared = tuple(sorted(config.sbatch_options))
    lost = sorted(_OURS & set(declared) - set(cluster.plugin_options))
    faults = [f"sbatch says at each call of each user: 'spank: {text}'" for text in cluster.unloaded_plugins] or [
        f"sbatch has not loaded our SPANK plugin, for it does not know '--{option}'" for option in lost[:1]
    ]
    for fault in faults:
        yield (
            f"{fault}: to keep the plugin, install the file that plugstack.conf names, made for Slurm "
            f"{cluster.release} ('colloc site build-plugin' makes ours); to remove it, delete its line in "
            "plugstack.conf and its options in sbatch_options"
        )
    if declared != cluster.plugin_options and not faults:
        yield _differs("", "sbatch_options", declared, cluster.plugin_options)


def _partitions(config: SiteConfig, cluster: Cluster) -> Iterator[str]:
    declared = {partition.name: partition for partition in config.partition}
    partitions = with_gpus(cluster)
    for partition in partitions:
        table = partition_table(partition, cluster.settings)
        described = declared.get(partition.name)
        if described is None:
            yield (
                f"partition '{partition.name}' has GPUs and no [[partition]] describes it, so no share is placed "
                "there: add what 'colloc site init -o -' prints of it"
            )
            continue
        for key in PARTITION_KEYS:
            value = table.get(key, getattr(DeclaredPartition(""), key))
            # A site file without a partition's weights leaves its billing alone.
            if getattr(described, key) not in (value, *([""] if key == "billing_weights" else [])):
                yield _differs(f"partition '{partition.name}': ", key, getattr(described, key), value)
        if described.mps_users and (described.mps_users == "one") != partition.one_user:
            who, instead = ("only one user", "one") if partition.one_user else ("several users", "each")
            most = max(node.quantity("gpu") for node in cluster.nodes if partition.name in node.partitions)
            either, costs = "change ExclusiveUser there, or ", ""
            if most > 1 and not partition.one_user:
                either, costs = "", "; ExclusiveUser=YES would give all GPUs of a node to one user at a time"
            yield (
                f"partition '{partition.name}': mps_users is {value_text(described.mps_users)}, and {who} may be on "
                f"one of its nodes: {either}write mps_users = {value_text(instead)}{costs}"
            )
    for name in sorted(set(declared) - {partition.name for partition in partitions}):
        yield f"partition '{name}' has no GPUs, or does not exist: take its [[partition]] away"
    by_name = {partition.name: partition for partition in cluster.partitions}
    for described in config.partition:
        for name in described.pieces_in:
            pieces_in = f"partition '{described.name}': pieces_in names '{name}', which"
            if name not in declared:
                yield f"{pieces_in} no [[partition]] describes"
            elif name in by_name:
                state = by_name[name].record.get("State", "UP")
                shut = shut_by(by_name[name].restrictions) or ("" if state == "UP" else f"State={state}")
                if shut:
                    yield (
                        f"{pieces_in} has {shut}, so no job on a piece of a GPU is of use there: take '{name}' out of "
                        "pieces_in, or change the partition"
                    )


def _shares(config: SiteConfig, cluster: Cluster) -> Iterator[str]:
    """Yield why jobs on shares that csub gives would cost nothing: 'site init' leaves such shares off."""
    for share in SHARES:
        shared = any(shares_per_gpu(pool, share) for pool in config.pool)
        if shared and uses(config, share) and share not in config.sharing.unbilled:
            for reason in free_of_charge(cluster, share):
                yield (
                    f'gres/{share} is in use: {reason}, or {OFF[share]}, or add "{share}" to sharing.unbilled where '
                    "that is meant"
                )


def _names(config: SiteConfig, cluster: Cluster) -> Iterator[str]:
    """Yield names in the other sections that the cluster does not have."""
    partitions = {partition.name for partition in cluster.partitions}
    for rule in config.audit.rule:
        for key in ("only", "excluded"):
            for name in sorted(set(getattr(rule, key).get("partition", ())) - partitions):
                yield (
                    f"[[audit.rule]] '{rule.name or rule.code}': '{key}' names the partition '{name}', and there is no "
                    "such: take it away"
                )
    for number, rollout in enumerate(config.rollout, start=1):
        unknown = [("partition", sorted(set(rollout.partitions) - partitions), "the cluster")]
        unknown += [("user", [name for name in rollout.users if not _on_host(pwd.getpwnam, name)], "this host")]
        unknown += [("group", [name for name in rollout.groups if not _on_host(grp.getgrnam, name)], "this host")]
        for kind, names, where in unknown:
            for name in names:
                yield f"[[rollout]] {number} names the {kind} '{name}', and {where} has none: it reaches nobody by it"
    types = {item.type for node in cluster.nodes for item in node.gres if item.name == "gpu"}
    for name in config.sharing.protected_types:
        if name not in types:
            yield f"sharing.protected_types names '{name}', and no node has gpu:{name}: take it away"


def _on_host(find: Callable[[str], object], name: str) -> bool:
    try:
        find(name)
    except KeyError:
        return False
    return True


def _pools(config: SiteConfig, cluster: Cluster) -> Iterator[str]:
    nodes = {node.name: node for node in cluster.nodes}
    described: list[tuple[str, Pool]] = []
    all_read = True
    for name in sorted(name for name, count in Counter(pool.name for pool in config.pool).items() if count > 1):
        yield f"pool '{name}': two pools have this name, and csub knows pools by it: give one another name"
    for pool in config.pool:
        try:
            names = expand(pool.nodes)
        except InputError as error:
            yield f"pool '{pool.name}': nodes '{pool.nodes}' cannot be read: {error}"
            all_read = False
            continue
        described += [(name, pool) for name in names]
        existing = [nodes[name] for name in names if name in nodes]
        faults = [("it does not exist: take it out of nodes", name) for name in names if name not in nodes]
        faults += [(text, node.name) for node in existing for text in _node_faults(pool, node, cluster)]
        yield from (f"pool '{pool.name}', {text}" for text in _of_nodes(faults))
        yield from _for_jobs(pool, existing, config)
    if all_read:
        yield from _of_nodes(_undescribed(grouped(described), cluster))


def _of_nodes(faults: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield each text once, with all of its nodes."""
    for text, names in grouped(faults).items():
        yield f"node{'s' if len(names) > 1 else ''} '{fold(names)}': {text}"


def _for_jobs(pool: Pool, nodes: list[Node], config: SiteConfig) -> Iterator[str]:
    """Yield where the policy would weigh requests by other CPUs and host memory than jobs may have there.

    A key that is not there is missed only where there is such a policy.
    """
    judged = any(item.job_submit != "off" and item.name in pool.partitions for item in config.partition)
    for key, actual, source in least_for_jobs(nodes):
        declared = getattr(pool, key)
        if actual and declared != actual and (declared or judged):
            least = f"the least of its nodes by scontrol show node, {source},"
            yield _differs(f"pool '{pool.name}': ", key, declared, actual, least)


def _undescribed(described: Mapping[str, list[Pool]], cluster: Cluster) -> Iterator[tuple[str, str]]:
    """Yield GPUs that no pool of their node has, and the node; 'site render' refuses those that two pools have."""
    for node in cluster.nodes:
        if node.name not in described:
            if node.quantity("gpu"):
                yield "no pool describes its GPUs: add what 'colloc site init -o -' prints of them", node.name
            continue
        types = [kind for pool in described[node.name] for kind in _types(pool)]
        for shape in shapes_of(node):
            for kind in ([shape.gpu_type] if shape.gpus else []) + [item.type for item in shape.slices]:
                if kind not in types:
                    yield f"no pool of it has {_named(kind)}: add what 'colloc site init -o -' says", node.name


def _types(pool: Pool) -> list[str]:
    return [*([pool.gpu_type] if pool.gpus_per_node else []), *(part.type for part in pool.slice if part.quantity)]


def _node_faults(pool: Pool, node: Node, cluster: Cluster) -> Iterable[str]:
    if set(pool.partitions) != set(node.partitions):
        yield _differs("", "partitions", sorted(pool.partitions), sorted(node.partitions))
    if not set(pool.features) <= set(node.features):
        yield _differs("", "features", sorted(pool.features), sorted({*pool.features} & {*node.features}))
    shapes = shapes_of(node)
    # A pool with slices alone is of the card that these slices are of, or of none that is whole.
    kinds = {part.type for part in pool.slice}
    shape = next(
        (card for card in shapes if card.gpus > 0 and card.gpu_type == pool.gpu_type and pool.gpus_per_node > 0),
        next(
            (card for card in shapes if kinds & {item.type for item in card.slices}), Shape(pool.gpu_type, 0, (), 0, 0)
        ),
    )
    gpus = shape.gpus if shape.gpu_type == pool.gpu_type else 0
    slices = Counter({item.type: item.quantity for item in shape.slices})
    per_gpu = "what Slurm has for each of its GPUs"
    for key, declared, actual, source in (
        ("gpus_per_node", pool.gpus_per_node, gpus, f"its number of {_named(pool.gpu_type)}"),
        *(("quantity", part.quantity, slices[part.type], f"its number of gpu:{part.type}") for part in pool.slice),
        ("mps_per_gpu", pool.mps_per_gpu, shape.mps, per_gpu),
        ("shards_per_gpu", pool.shards_per_gpu, shape.shard, per_gpu),
    ):
        if actual is not None and declared != actual:
            yield _differs("", key, declared, actual, source)
    yield from _card(pool, shape, node, cluster)


def _named(gpu_type: str) -> str:
    return f"gpu:{gpu_type}" if gpu_type else "GPUs without a type"


def _card(pool: Pool, shape: Shape, node: Node, cluster: Cluster) -> Iterator[str]:
    """Yield where sizes are not those of the driver, or of the card that the pool says it is."""
    card = card_of(shape, [node.name], {}, cluster)
    if card.model is None and pool.gpu_model:
        card = card_of(shape, [node.name], dict.fromkeys(_types(pool), pool.gpu_model), cluster)
        # Slurm's spelling of a card that we know, while measurements go by the driver's.
        ours = model_named(pool.gpu_model)
        if ours and gres_type_of(ours.name) == gres_type_of(pool.gpu_model):
            card = card._replace(model=Known(ours.name, "the driver's name of it is"))
    if not pool.gpu_model and pool.sm_count is not None:
        name = f"gpu_model = {value_text(card.model.value)}" if card.model else "what 'nvidia-smi -L' prints there"
        yield f"gpu_model is missing, so that csub shares nothing there by what was measured: write {name}"
    if card.model is not None and card.model.value != pool.gpu_model and pool.gpu_model:
        yield _unlike("gpu_model", pool.gpu_model, card.model)
    for key, declared, known in (
        ("gpu_mem_mib", pool.gpu_mem_mib, card.mem_mib),
        ("sm_count", pool.sm_count, card.sm_count),
    ):
        if declared is not None and known is not None and not _agrees(declared, known):
            yield _unlike(key, declared, known)
    for part in pool.slice:
        yield from _slice(part, card)
    for item in cluster.gpus:
        if item.node == node.name and item.complete:
            yield from _counts(pool, shape, units_of(shape, shapes_of(node), item.units))


def _agrees(declared: int, known: Known) -> bool:
    """Return whether a figure is the known one: as a driver has it, or as near to our table as drivers come."""
    if known.exact or not isinstance(known.value, int):
        return declared == known.value
    return abs(declared - known.value) <= _OTHER_DRIVER * known.value


def _unlike(key: str, declared: object, known: Known) -> str:
    actual = value_text(known.value)
    return f"{key} is {value_text(declared)}, {known.source} {actual}: write {key} = {actual}"


def _slice(part: MigSlice, card: Card) -> Iterator[str]:
    profile = parse_profile(part.type)
    if profile and profile.name != part.profile:
        yield _differs("", "profile", part.profile, profile.name, f"what the type {part.type} says")
    sizes = card.slices.get(part.profile)
    for key, declared, known in zip(("mem_mib", "sm_count"), (part.mem_mib, part.sm_count), sizes or (), strict=False):
        if not _agrees(declared, known):
            yield f"gpu:{part.type}: {_unlike(key, declared, known)}"


def _counts(pool: Pool, shape: Shape, units: list[GpuUnit]) -> Iterator[str]:
    """Yield where Slurm hands out other GPUs than the driver has: gres.conf and the MIG geometry have come apart."""
    real = Counter(unit.profile for unit in units)
    configured = Counter({"": shape.gpus})
    for item in shape.slices:
        profile = parse_profile(item.type)
        configured[profile.name if profile else item.type] += item.quantity
    for name in sorted(real.keys() | configured.keys()):
        if real[name] != configured[name]:
            gpus = f"slices {name}" if name else "whole GPUs"
            yield (
                f"the driver has {real[name]} {gpus} there and Slurm hands out {configured[name]} "
                f"(pool '{pool.name}'): correct gres.conf or the MIG geometry"
            )

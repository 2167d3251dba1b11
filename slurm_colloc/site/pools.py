# SPDX-License-Identifier: Apache-2.0
"""The [[pool]] tables of a site.toml: the nodes of one shape, what each figure is from, and what is not known."""

from collections.abc import Iterator, Mapping, Sequence

from slurm_colloc.core.toml_text import key_line, note
from slurm_colloc.gpu.mig import parse_profile
from slurm_colloc.site.cluster import DEVICES, Cluster, least_for_jobs
from slurm_colloc.site.node_gpus import Card, Known, Shape, alike, card_of, card_of_slice, shapes_of
from slurm_colloc.slurm.hostlist import fold
from slurm_colloc.slurm.parse import Node

# A node that a job will not see again soon, or that nobody has seen for long.
_ABSENT = ("DOWN", "FAIL", "ERROR", "UNKNOWN", "NOT_RESPONDING", "INVALID_REG", "DRAIN")


def pool_lines(cluster: Cluster, models: Mapping[str, str]) -> list[str]:
    """Return the lines of all pools.

    Raises:
        InputError: a name of a card that a driver contradicts.
    """
    lines: list[str] = []
    for group in alike(node for node in cluster.nodes if node.quantity("gpu")):
        names = [node.name for node in group]
        shapes = shapes_of(group[0])
        for shape in shapes:
            card = card_of(shape, names, models, cluster)
            lines += ["", *_about(group), "[[pool]]", *_pool(group, shape, card, alone=len(shapes) == 1)]
    return lines


def unconfirmed(nodes: Sequence[Node]) -> list[str]:
    """Return a sentence on the nodes that are down, drained or silent: nobody has seen lately what they have."""
    names = [node.name for node in nodes if set(node.states) & set(_ABSENT)]
    text = f"'{fold(names)}': down, drained or silent, so what slurm.conf says of their GPUs is not confirmed"
    return [text] if names else []


def _about(nodes: Sequence[Node]) -> Iterator[str]:
    """Yield what Slurm says of the nodes that is no key: their gres in Slurm's words, who is absent."""
    gres = ",".join(str(item) for item in nodes[0].gres if item.name in DEVICES)
    yield note(f"{len(nodes)} node{'s' if len(nodes) > 1 else ''} with Gres={gres} (scontrol show node).")
    yield from map(note, unconfirmed(nodes))


def _pool(nodes: Sequence[Node], shape: Shape, card: Card, alone: bool) -> Iterator[str]:
    names = fold([node.name for node in nodes])
    kind = shape.gpu_type or ("without a type" if shape.gpus else f"slices of {card_of_slice(shape.slices[0].type)}")
    yield key_line("name", names if alone else f"{names} {kind}", "for people; change it as you like")
    yield key_line("nodes", names)
    yield key_line("partitions", nodes[0].partitions)
    untyped = "its GPUs have no type in gres.conf" if shape.gpus else "all its GPUs are cut into slices"
    yield key_line("gpu_type", shape.gpu_type, "" if shape.gpu_type else untyped)
    yield key_line("gpus_per_node", shape.gpus, "gres/gpu of a node that are no slices")
    if features := [name for name in nodes[0].features if all(name in node.features for node in nodes)]:
        yield key_line("features", features, "scontrol show node, ActiveFeatures; those that each of them has")
    yield from _size(shape, card)
    for name, per_gpu in (("mps", shape.mps), ("shard", shape.shard)):
        key = f"{'shards' if name == 'shard' else name}_per_gpu"
        if per_gpu is None:
            yield note(f"{key} is not one number: its GPUs do not have as many {name} each. gres.conf says which GPU")
            yield note(f"has how many; without the key csub places no {name} here.")
        elif per_gpu:
            is_reported = any(gres.name == name for node in nodes for gres, _ in node.shares)
            evenly = f"the node's {name} over its GPUs, evenly; gres.conf has the last word"
            yield key_line(key, per_gpu, "sinfo, GresUsed" if is_reported else evenly)
    for key, least, source in least_for_jobs(nodes):
        if least:
            yield key_line(key, least, f"scontrol show node, {source}; the least of these nodes")
    for item in shape.slices:
        yield from _slice(item.type, item.quantity, card)


def _size(shape: Shape, card: Card) -> Iterator[str]:
    types = [shape.gpu_type] if shape.gpus else [item.type for item in shape.slices[:1]]
    if card.model is None:
        yield note(
            "Slurm does not say which GPU this is, and csub places nothing here without these keys. Fill them in,"
        )
        yield note(
            f"""or write the file anew with --gpu {types[0]}="NAME" (as nvidia-smi -L prints it), or with what"""
        )
        yield note("'colloc site gpus' prints on such a node (--gpus FILE).")
        yield note('gpu_model = "..."')
    else:
        yield _known("gpu_model", card.model)
    for key, known, how in (
        ("gpu_mem_mib", card.mem_mib, "nvidia-smi --query-gpu=memory.total --format=csv"),
        ("sm_count", card.sm_count, "'colloc site gpus' on such a node says"),
    ):
        yield _known(key, known) if known else note(f"{key} = ...  not known: {how}")


def _known(key: str, known: Known) -> str:
    return key_line(key, known.value, known.source)


def _slice(gres_type: str, quantity: int, card: Card) -> Iterator[str]:
    profile = parse_profile(gres_type)
    size = card.slices.get(profile.name) if profile else None
    if profile is None or size is None:
        yield note(
            f"{quantity} slices {gres_type} a node: memory and SMs are not known, so csub places nothing on them."
        )
        yield note("Add a [[pool.slice]] with type, profile, mem_mib, sm_count and quantity, or use --gpus as above.")
        return
    memory, sms = size
    yield "[[pool.slice]]"
    yield key_line("type", gres_type)
    yield key_line("profile", profile.name, "by the type")
    yield _known("mem_mib", memory)
    yield _known("sm_count", sms)
    yield key_line("quantity", quantity, "slices of a node")

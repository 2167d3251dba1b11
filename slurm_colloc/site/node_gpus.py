# SPDX-License-Identifier: Apache-2.0
"""The GPUs, slices and shares of a node, from its gres."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from slurm_colloc.core.model import Gres
from slurm_colloc.gpu.mig import parse_profile
from slurm_colloc.site.cluster import DEVICES, SHARES
from slurm_colloc.slurm.parse import Node


class Shape(NamedTuple):
    """One card of a node: ``gpus`` whole GPUs of a type, or slices, or both.

    The type is empty where gres.conf gives none, and where all are slices. ``mps`` and ``shard`` are the shares of one
    GPU; None where the node's number cannot be split evenly.
    """

    gpu_type: str
    gpus: int
    slices: tuple[Gres, ...]
    mps: int | None
    shard: int | None


def alike(nodes: Iterable[Node]) -> list[list[Node]]:
    """Return nodes with the same GPUs in the same partitions together, in Slurm's order."""
    groups: dict[object, list[Node]] = {}
    for node in nodes:
        gres = tuple(sorted(item for item in node.gres if item.name in DEVICES))
        groups.setdefault((gres, tuple(shapes_of(node)), frozenset(node.partitions)), []).append(node)
    return list(groups.values())


def shapes_of(node: Node) -> list[Shape]:
    """Return the cards of a node: each type of whole GPUs with the slices of such cards, then slices of others."""
    gpus = _added_up(item for item in node.gres if item.name == "gpu")
    whole = [item for item in gpus if parse_profile(item.type) is None]
    slices: dict[str, list[Gres]] = {}
    for item in gpus:
        if parse_profile(item.type) is not None:
            slices.setdefault(card_of_slice(item.type), []).append(item)
    cut: dict[str, list[Gres]] = {}
    for card in list(slices):
        owners = [item.type for item in whole if same_card(item.type, card)]
        if len(owners) == 1:
            cut.setdefault(owners[0], []).extend(slices.pop(card))
    shapes = []
    for item in whole:
        mps, shard = (_per_gpu(node, name, item, whole) for name in SHARES)
        shapes.append(Shape(item.type, item.quantity, tuple(cut.get(item.type, ())), mps, shard))
    return shapes + [Shape("", 0, tuple(parts), 0, 0) for parts in slices.values()]


def _added_up(gpus: Iterable[Gres]) -> list[Gres]:
    """Return one entry for each type: slurm.conf may name a type twice."""
    found: dict[str, int] = {}
    for item in gpus:
        found[item.type] = found.get(item.type, 0) + item.quantity
    return [Gres("gpu", kind, count) for kind, count in found.items() if count]


def card_of_slice(gres_type: str) -> str:
    """Return what a slice's type says of its card: ``a100`` of ``a100_1g.5gb``, nothing of ``1g.5gb``."""
    profile = parse_profile(gres_type)
    return gres_type.partition(profile.name)[0].rstrip("_-") if profile else gres_type


def same_card(one: str, other: str) -> bool:
    """Return whether two types may be of one card: Slurm takes any part of the driver's name for a type."""
    return one.lower() in other.lower() or other.lower() in one.lower()


def _per_gpu(node: Node, name: str, gpu: Gres, whole: Sequence[Gres]) -> int | None:
    """Return the shares of one GPU that has any: as Slurm says of each device, else all of them spread evenly.

    A node that has registered says of which type they are.
    """
    all_of_them = [item for item in node.gres if item.name == name]
    typed = [item for item in all_of_them if item.type]
    own = [item for item in all_of_them if item.type == gpu.type] if typed else all_of_them
    gpus = gpu.quantity if typed else sum(item.quantity for item in whole)
    total = sum(item.quantity for item in own)
    if not total:
        return 0
    told = [of for of, _ in node.shares if of.name == name and of.type in ("", gpu.type)]
    sizes = {size for of, devices in node.shares if of in told for size in devices if size}
    if sizes:
        return sizes.pop() if len(sizes) == 1 else None
    return total // gpus if gpus and total % gpus == 0 else None

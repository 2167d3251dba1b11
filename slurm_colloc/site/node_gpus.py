# SPDX-License-Identifier: Apache-2.0
"""The GPUs, slices and shares of a node, from its gres, and the memory and SMs of its cards.

These are from its driver, else from the table of known models, else not known.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from slurm_colloc.core.errors import InputError
from slurm_colloc.core.model import Gres
from slurm_colloc.gpu.mig import gres_type_of, model_named, parse_profile
from slurm_colloc.gpu.reader import GpuUnit
from slurm_colloc.site.cluster import DEVICES, SHARES, Cluster, NodeGpus, grouped
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

    def key(node: Node) -> object:
        gres = tuple(sorted(item for item in node.gres if item.name in DEVICES))
        return gres, tuple(shapes_of(node)), frozenset(node.partitions)

    return list(grouped((key(node), node) for node in nodes).values())


def shapes_of(node: Node) -> list[Shape]:
    """Return the cards of a node: each type of whole GPUs with the slices of such cards, then slices of others."""
    # slurm.conf may name a type twice.
    counts = grouped((item.type, item.quantity) for item in node.gres if item.name == "gpu")
    gpus = [Gres("gpu", kind, sum(quantities)) for kind, quantities in counts.items() if sum(quantities)]
    whole = [item for item in gpus if parse_profile(item.type) is None]
    slices = grouped((card_of_slice(item.type), item) for item in gpus if item not in whole)
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


def card_of_slice(gres_type: str) -> str:
    """Return what a slice's type says of its card: ``a100`` of ``a100_1g.5gb``, nothing of ``1g.5gb``."""
    profile = parse_profile(gres_type)
    return gres_type.partition(profile.name)[0].rstrip("_-") if profile else gres_type


def same_card(first: str, second: str) -> bool:
    """Return whether two types may be of one card: Slurm takes any part of the driver's name for a type."""
    return first.lower() in second.lower() or second.lower() in first.lower()


def _per_gpu(node: Node, name: str, gpu: Gres, whole: Sequence[Gres]) -> int | None:
    """Return the shares of one GPU that has any: as Slurm says of each device, else all of them spread evenly.

    A node that has registered says of which type they are.
    """
    all_of_them = [item for item in node.gres if item.name == name]
    typed = [item for item in all_of_them if item.type]
    of_type = [item for item in all_of_them if item.type == gpu.type] if typed else all_of_them
    gpus = gpu.quantity if typed else sum(item.quantity for item in whole)
    total = sum(item.quantity for item in of_type)
    if not total:
        return 0
    reported = [gres for gres, _ in node.shares if gres.name == name and gres.type in ("", gpu.type)]
    sizes = {size for gres, devices in node.shares if gres in reported for size in devices if size}
    if sizes:
        return sizes.pop() if len(sizes) == 1 else None
    return total // gpus if gpus and total % gpus == 0 else None


class Known(NamedTuple):
    """A figure or a name, and where it is from; not ``exact`` where another driver may say a little more or less."""

    value: int | str
    source: str
    exact: bool = True


class Card(NamedTuple):
    """What is known of a card; None where it is not. ``slices`` maps a profile to usable MiB and SMs."""

    model: Known | None
    mem_mib: Known | None
    sm_count: Known | None
    slices: Mapping[str, tuple[Known, Known]]


UNKNOWN = Card(None, None, None, {})


def card_of(shape: Shape, nodes: Sequence[str], models: Mapping[str, str], cluster: Cluster) -> Card:
    """Return what is known of the card of these nodes.

    Args:
        shape: the card by the nodes' gres.
        nodes: their names. What the driver of one of them says goes before all; another node's counts where it has the
            same gres type.
        models: gres type -> the GPU's name, from who runs this.
        cluster: the cluster with what drivers said.

    Raises:
        InputError: a name other than the driver's.
    """
    types = [*([shape.gpu_type] if shape.gpus else []), *(item.type for item in shape.slices)]
    named = next((Known(models[kind], "as given by --gpu") for kind in types if kind in models), None)
    by_type = next(
        (
            Known(model.name, "by the gres type, which is the driver's name of it")
            for model in (model_named(card_of_slice(kind)) for kind in types if kind)
            if model
        ),
        None,
    )
    own_drivers = [item for item in cluster.gpus if item.node in nodes]
    drivers = [item for item in cluster.gpus if item.node not in nodes]
    card = _by_drivers(shape, own_drivers, cluster) or _by_drivers(shape, drivers, cluster)
    if card and card.model and named and gres_type_of(str(named.value)) != gres_type_of(str(card.model.value)):
        raise InputError(
            f"--gpu says '{named.value}' of {', '.join(nodes[:3])}, and {card.model.source} '{card.model.value}': "
            "leave --gpu out, or give the driver's name"
        )
    return _filled(card or UNKNOWN, (card and card.model) or named or by_type)


def _filled(card: Card, model: Known | None) -> Card:
    """Return the card with our table's figures where the driver gave none."""
    known = model_named(str(model.value)) if model else None
    if known is None:
        return card._replace(model=model)
    source = f"our table of GPUs: {known.name}"
    slices = {
        name: (Known(mib, source, exact=False), Known(sms, source)) for name, (mib, sms) in known.profiles.items()
    }
    return Card(
        model,
        card.mem_mib or (Known(known.mem_total_mib, source, exact=False) if known.mem_total_mib else None),
        card.sm_count or (Known(known.sm_count, source) if known.sm_count else None),
        slices | dict(card.slices),
    )


def _by_drivers(shape: Shape, gpus: Sequence[NodeGpus], cluster: Cluster) -> Card | None:
    for item in gpus:
        shapes = next(shapes_of(node) for node in cluster.nodes if node.name == item.node)
        for other in shapes:
            slices = {part.type for part in other.slices} & {part.type for part in shape.slices}
            same = slices or (other.gpu_type, other.gpus > 0) == (shape.gpu_type, shape.gpus > 0)
            if same and (units := units_of(other, shapes, item.units)):
                return _card(units, f"the driver on {item.node} says")
    return None


def units_of(shape: Shape, shapes: Sequence[Shape], units: Sequence[GpuUnit]) -> list[GpuUnit]:
    """Return which units of a node are of one of its cards: all where it has one, else those named like the type."""
    if len(shapes) == 1:
        return list(units)
    names = [shape.gpu_type] if shape.gpus else [card_of_slice(item.type) for item in shape.slices]
    return [unit for unit in units if any(name and same_card(name, gres_type_of(unit.model)) for name in names)]


def _card(units: Sequence[GpuUnit], source: str) -> Card | None:
    if len({unit.model for unit in units}) != 1:
        return None  # which of them Slurm means by the type is not known
    whole = [unit for unit in units if not unit.profile]
    slices = {}
    for unit in units:
        profile = parse_profile(unit.profile)
        if profile and unit.mem_total_mib and unit.sm_count:
            slices[profile.name] = (Known(unit.mem_total_mib, source), Known(unit.sm_count, source))
    # A driver that does not tell the SMs gives 0.
    memory = min((unit.mem_total_mib for unit in whole), default=0)
    sms = min(unit.whole_sm_count for unit in units)
    return Card(
        Known(units[0].model, source),
        Known(memory, source) if memory else None,
        Known(sms, source) if sms else None,
        slices,
    )

# SPDX-License-Identifier: Apache-2.0
"""Memory and SMs of a node's GPUs: from its driver, else from the table of known models, else not known."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slurm_colloc.core.errors import InputError
from slurm_colloc.gpu.mig import gres_type_of, model_named, parse_profile
from slurm_colloc.gpu.reader import GpuUnit
from slurm_colloc.site.cluster import Cluster, NodeGpus
from slurm_colloc.site.node_gpus import Shape, card_of_slice, same_card, shapes_of


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
    here = [item for item in cluster.gpus if item.node in nodes]
    elsewhere = [item for item in cluster.gpus if item.node not in nodes]
    found = _by_drivers(shape, here, cluster) or _by_drivers(shape, elsewhere, cluster)
    if found and found.model and named and gres_type_of(str(named.value)) != gres_type_of(str(found.model.value)):
        raise InputError(
            f"--gpu says '{named.value}' of {', '.join(nodes[:3])}, and {found.model.source} '{found.model.value}': "
            "leave --gpu out, or give the driver's name"
        )
    return _filled(found or UNKNOWN, (found and found.model) or named or by_type)


def _filled(card: Card, model: Known | None) -> Card:
    """Return the card with our table's figures where the driver gave none."""
    known = model_named(str(model.value)) if model else None
    if known is None:
        return card._replace(model=model)
    source = f"our table of cards: {known.name}"
    slices = {
        name: (Known(mib, source, exact=False), Known(sms, source)) for name, (mib, sms) in known.profiles.items()
    }
    return Card(
        model,
        card.mem_mib or Known(known.mem_total_mib, source, exact=False),
        card.sm_count or Known(known.sm_count, source),
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

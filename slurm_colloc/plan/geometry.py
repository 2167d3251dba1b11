# SPDX-License-Identifier: Apache-2.0
"""Which slices the GPUs of a pool are best cut into for a demand, and for how many nodes: pure functions.

A card has compute and memory slices, most of them seven and eight; a profile of c and m of them begins at a multiple of
m, and c slices from there must be left (NVIDIA MIG User Guide, the tables of placements). A slice serves whatever a
smaller one does. Those with other engines (1g.24gb-me) are cut where they are asked for, and never chosen.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from slurm_colloc.core.config import MigSlice, Pool, SiteConfig
from slurm_colloc.core.errors import InputError
from slurm_colloc.core.units import counted
from slurm_colloc.gpu.mig import GpuModel, gres_type_of, model_named, plain
from slurm_colloc.slurm.hostlist import expand, fold

# The part of the time of a slice that is used before jobs wait long for it.
_BUSY = 0.8

Geometry = tuple[str, ...]


class Cut(NamedTuple):
    """A number of nodes of a pool, each of whose GPUs is cut into these slices; 0 is as many as the demand needs."""

    pool: str
    nodes: int
    geometry: Geometry

    def __str__(self) -> str:
        counts = {name: self.geometry.count(name) for name in self.geometry}
        slices = " + ".join(f"{count} x {name}" for name, count in counts.items())
        return f"{slices} on {counted(self.nodes, 'node')} of {self.pool}"


def profiles_of(pool: Pool) -> dict[str, MigSlice]:
    """Return the slices that the pool's card can be cut into, one of each, the smallest first.

    Sizes that the driver said of such a card, in the site's own pools, go before the table. Those of a profile that no
    driver has listed are the least (``GpuModel.size``).

    Raises:
        InputError: a card that we have no figures of, or whose size is not known.
    """
    card = _card(pool)
    kind = gres_type_of(card.name)
    memory, sms = pool.gpu_mem_mib or card.mem_total_mib, pool.sm_count or card.sm_count
    if memory is None or sms is None:
        raise InputError(f"pool '{pool.name}': the slices of '{pool.gpu_model}' need its gpu_mem_mib and sm_count")
    sizes = {name: card.size(name, memory, sms) for name in card.parts}
    sizes |= {part.profile: (part.mem_mib, part.sm_count) for part in pool.slice}
    slices = [
        MigSlice(f"{kind}_{name}", name, mem_mib, sms, 1)
        for name, (mem_mib, sms) in sizes.items()
        if name in card.parts and card.parts[name][0] < card.slices[0]
    ]
    return {part.profile: part for part in sorted(slices, key=lambda part: (part.mem_mib, part.sm_count))}


def unlisted(pool: Pool) -> list[str]:
    """Return the profiles of the pool's card whose memory and SMs no driver has listed.

    Raises:
        InputError: a card that we have no figures of.
    """
    listed = {*_card(pool).profiles, *(part.profile for part in pool.slice)}
    return [name for name in profiles_of(pool) if name not in listed and name == plain(name)]


def _card(pool: Pool) -> GpuModel:
    card = model_named(pool.gpu_model)
    if card is None:
        gpu = f"'{pool.gpu_model}'" if pool.gpu_model else "a GPU that site.toml does not name (gpu_model)"
        raise InputError(f"pool '{pool.name}' has {gpu}, and there are no figures of its MIG slices")
    return card


def geometries(pool: Pool) -> list[Geometry]:
    """Return the ways to cut one GPU to which no further slice can be added."""
    card = _card(pool)
    all_compute, all_memory = card.slices
    sizes = {name: card.parts[name][:2] for name in profiles_of(pool) if name == plain(name)}
    complete: set[Geometry] = set()

    def go(start: int, compute: int, names: tuple[str, ...]) -> None:
        fits = [
            (name, c, m)
            for name, (c, m) in sizes.items()
            if not start % m and start + c <= all_compute and compute + c <= all_compute
        ]
        for name, c, m in fits:
            if start + m <= all_memory:
                go(start + m, compute + c, (*names, name))
        if start < all_memory:
            go(start + 1, compute, names)
        elif names:
            complete.add(tuple(sorted(names, key=lambda name: (-sizes[name][1], -sizes[name][0], name))))

    go(0, 0, ())
    return sorted(cut for cut in complete if not any(Counter(cut) < Counter(larger) for larger in complete))


def best_cuts(pool: Pool, demand: Mapping[tuple[str, ...], float], among: Sequence[Geometry] = ()) -> list[Cut]:
    """Return how many nodes of a pool to cut into what: those whose slices serve more than the GPUs they are made of.

    Args:
        pool: the GPUs.
        demand: how many jobs run at a time, on average, by the profiles that hold them, the smallest first.
        among: the geometries to choose from; all by default.
    """
    return _best(pool, demand, among or geometries(pool))[1]


def _best(pool: Pool, demand: Mapping[tuple[str, ...], float], choices: Sequence[Geometry]) -> tuple[float, list[Cut]]:
    """Return how many jobs at a time the best cuts serve beyond the GPUs that they take, and those cuts.

    Each node gets the geometry that serves most of the rest of the demand; a geometry of which even full slices could
    serve no more than the best so far is not looked at.
    """
    rest, gain = dict(demand), 0.0
    cuts: dict[Geometry, int] = {}
    for _ in expand(pool.nodes):
        best: tuple[float, Geometry, dict[tuple[str, ...], float]] = (0.0, (), rest)
        for geometry in sorted(choices, key=len, reverse=True):
            if len(geometry) * _BUSY * pool.gpus_per_node <= best[0]:
                break
            served, unserved = _served(geometry, pool.gpus_per_node, rest)
            if served > best[0]:
                best = served, geometry, unserved
        served, geometry, rest = best
        # A GPU that is cut serves nobody else: it must pay for itself.
        if served <= pool.gpus_per_node * _BUSY:
            break
        gain += served - pool.gpus_per_node
        cuts[geometry] = cuts.get(geometry, 0) + 1
    return gain, [Cut(pool.name, count, geometry) for geometry, count in cuts.items()]


def _served(
    geometry: Geometry, gpus: int, demand: Mapping[tuple[str, ...], float]
) -> tuple[float, dict[tuple[str, ...], float]]:
    """Return how many jobs at a time so many GPUs serve, and what is left of the demand; the choosiest jobs first."""
    room = {name: geometry.count(name) * gpus * _BUSY for name in geometry}
    left, served = dict(demand), 0.0
    for holding in sorted(demand, key=len):
        for name in holding:
            part = min(left[holding], room.get(name, 0.0))
            left[holding] -= part
            served += part
            if part:
                room[name] -= part
    return served, left


def alternatives(pool: Pool, demand: Mapping[tuple[str, ...], float], count: int) -> list[list[Cut]]:
    """Return the best mixture of geometries, then the best of one geometry alone, those that serve most first."""
    mixed = best_cuts(pool, demand)
    single = [_best(pool, demand, [geometry]) for geometry in geometries(pool)]
    ordered = [cuts for _, cuts in sorted(single, key=lambda best: -best[0]) if cuts and cuts != mixed]
    return [mixed, *ordered[: count - 1]] if mixed else []


def with_cuts(config: SiteConfig, cuts: Sequence[Cut]) -> SiteConfig:
    """Return the site with the last nodes of pools cut so: each cut a pool of its own in the same partitions."""
    pools: list[Pool] = []
    for pool in config.pool:
        names = list(expand(pool.nodes))
        for number, cut in enumerate(cut for cut in cuts if cut.pool == pool.name):
            nodes, names = names[len(names) - cut.nodes :], names[: len(names) - cut.nodes]
            kinds = profiles_of(pool)
            slices = tuple(
                kinds[name]._replace(quantity=cut.geometry.count(name) * pool.gpus_per_node)
                for name in dict.fromkeys(cut.geometry)
            )
            pools.append(
                pool._replace(
                    name=f"{pool.name}-cut{number}", nodes=fold(nodes), gpu_type="", gpus_per_node=0, slice=slices,
                    mps_per_gpu=0, shards_per_gpu=0,
                )
            )  # fmt: skip
        if names:
            pools.append(pool._replace(nodes=fold(names)))
    return config._replace(pool=tuple(pools))


def parse_geometry(text: str, pools: Sequence[Pool]) -> Iterator[Cut]:
    """Yield what ``[POOL=]PROFILE+PROFILE...[@NODES]``, several by comma, asks for; 0 nodes where it says no number.

    Raises:
        InputError: no such pool or profile, a GPU that cannot be cut so, or more nodes than there are.
    """
    for item in text.split(","):
        body, _, nodes = item.partition("@")
        name, equals, slices = body.rpartition("=")
        named = [pool for pool in pools if not equals or pool.name == name]
        if len(named) != 1:
            pools_named = ", ".join(pool.name for pool in pools)
            raise InputError(
                f"--mig '{item}' names no pool with whole GPUs, or not which; write POOL=, one of {pools_named}"
            )
        (pool,) = named
        geometry = tuple(re.split(r"\+(?!me|gfx)", slices))
        known_slices = profiles_of(pool)
        if unknown := [profile for profile in geometry if profile not in known_slices]:
            raise InputError(
                f"--mig '{item}': {pool.gpu_model} has no slice '{unknown[0]}', but {', '.join(known_slices)}"
            )
        most = _card(pool).parts
        alike = tuple(map(plain, geometry))
        if not any(Counter(alike) <= Counter(cut) for cut in geometries(pool)) or any(
            geometry.count(name) > most[name][2] for name in geometry
        ):
            raise InputError(f"--mig '{item}': one GPU cannot be cut into {' + '.join(geometry)}")
        node_count = len(expand(pool.nodes))
        if nodes and not (nodes.isascii() and nodes.isdigit() and 1 <= int(nodes) <= node_count):
            raise InputError(
                f"--mig '{item}': '{nodes}' is no number of nodes from 1 to {node_count}, which pool {pool.name} has"
            )
        yield Cut(pool.name, int(nodes or 0), geometry)

# SPDX-License-Identifier: Apache-2.0
"""AllocTRES -> GPUs: the worth of an allocation in whole GPUs, by one of three conventions.

A MIG slice of g compute slices is g/7 of its GPU by slices (g/4 on an A30), its SMs over the GPU's by SMs, its usable
memory over the GPU's by memory. One mps is 1 over the device's mps count by each of them, one shard 1 over the GPU's
shards. A compute instance (3c.7g.40gb) has slices and SMs of its own, and memory that others use as well: its worth by
memory is not known.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from duckdb import DuckDBPyConnection

from slurm_colloc.core.config import MigSlice, Pool, SiteConfig
from slurm_colloc.core.errors import InputError
from slurm_colloc.core.model import Gres
from slurm_colloc.gpu.mig import model_named, names_slice, parse_profile, slices_per_gpu, tells_slices
from slurm_colloc.placement.pieces import shares_per_gpu
from slurm_colloc.slurm.gres import parse_tres_gres, parse_tres_host
from slurm_colloc.slurm.hostlist import expand
from slurm_colloc.store.queries import kinds_of, make_rows

SLICES = "slices"
CONVENTIONS: Mapping[str, str] = {SLICES: "compute slices", "sms": "SMs", "memory": "usable memory"}
_UNTYPED = "untyped"
# An AllocTRES without the parts that differ in nearly each text: few different ones are left, each parsed once.
GRES_ALONE = """array_to_string(list_filter(string_split(gres, ','),
    lambda item: NOT regexp_full_match(item, '(?:billing|cpu|mem|node)=[0-9.]+[KMGTP]?')), ',')"""
# A GpuEquivalent by its text and place; and the CPUs and memory of a run on all of its nodes, and its price by Slurm.
_KINDS = kinds_of(
    "text VARCHAR, place VARCHAR, gpus DOUBLE, devices INTEGER, blocked DOUBLE, whole BOOLEAN, kind VARCHAR, "
    "shown VARCHAR, cpus BIGINT, mem_given_mib BIGINT, nodes BIGINT, billing BIGINT"
)


class GpuEquivalent(NamedTuple):
    """The GPUs of a run's AllocTRES.

    ``gpus`` are whole-GPU equivalents, None where a share's size is not known; ``devices`` the units (GPUs, slices)
    that it lies on; ``blocked`` the part of GPUs that nobody else can have meanwhile, by slices, None for a share.
    ``whole`` says that it has whole GPUs only, ``kind`` names the gres types, ``shown`` is all of it in Slurm's words.
    """

    gpus: float | None
    devices: int
    blocked: float | None
    whole: bool
    kind: str
    shown: str


def unit_gpus(profile: str, model: str) -> float:
    """Return what one unit (a GPU, or a slice of this profile) is worth in whole GPUs, by slices."""
    parsed = parse_profile(profile)
    return 1.0 if parsed is None else parsed.compute_slices / slices_per_gpu(model, profile)


def gpu_equivalent(gres: Sequence[Gres], node_list: str, config: SiteConfig | None, by: str = SLICES) -> GpuEquivalent:
    """Return the GPUs of an AllocTRES, read by ``parse_tres_gres``, on these nodes, by one of CONVENTIONS."""
    held = [item for item in gres if item.quantity and item.name in ("gpu", "mps", "shard")]
    shares = [item for item in held if item.name != "gpu"]
    pools = _pools(node_list, config) if config else ()
    blocked = [_each(item, pools, SLICES) for item in held]
    whole = bool(held) and all(item.name == "gpu" and one == 1 for item, one in zip(held, blocked, strict=True))
    return GpuEquivalent(
        gpus=_sum([_each(item, pools, by) for item in held], held),
        devices=sum(item.quantity for item in held if item.name == "gpu") or bool(shares),
        blocked=None if shares else _sum(blocked, held),
        whole=whole,
        kind="+".join(sorted({item.type or (_UNTYPED if item.name == "gpu" else item.name) for item in held})),
        shown=",".join(str(item) for item in gres),
    )


def _sum(each: Sequence[float | None], held: Sequence[Gres]) -> float | None:
    total = 0.0
    for one, item in zip(each, held, strict=True):
        if one is None:
            return None
        total += one * item.quantity
    return total


def _each(item: Gres, pools: Sequence[Sequence[Pool]], by: str) -> float | None:
    """Return what one unit is worth; None where the nodes' pools do not say, or not the same."""
    values = {equivalent_in_pool(item, pool, by) for of_node in pools or ((),) for pool in _having(item, of_node)}
    return values.pop() if len(values) == 1 else None


def _having(item: Gres, pools: Sequence[Pool]) -> Sequence[Pool | None]:
    """Return which pools of a node, one for each card, may have given a unit; all where none or any may."""
    if item.name != "gpu":
        having = [pool for pool in pools if shares_per_gpu(pool, item.name)]
    else:
        having = [pool for pool in pools if item.type in (pool.gpu_type, *(part.type for part in pool.slice))]
    return (having if item.type or item.name != "gpu" else pools) or pools or (None,)


def equivalent_in_pool(item: Gres, pool: Pool | None, by: str) -> float | None:
    """Return what one unit is worth in whole GPUs of a pool, by one of CONVENTIONS; None where that is not known."""
    if item.name != "gpu":
        per_gpu = shares_per_gpu(pool, item.name) if pool else 0
        return 1 / per_gpu if per_gpu else None
    if not item.type and pool and pool.slice:
        # AccountingStorageTRES=gres/gpu tells slices from GPUs by nothing but where they are.
        kinds = {_slice(part.type, part, pool, by) for part in pool.slice} | (
            {1.0} if pool.gpu_type or pool.gpus_per_node else set()
        )
        return kinds.pop() if len(kinds) == 1 else None
    part = next((part for part in pool.slice if part.type == item.type), None) if pool else None
    return _slice(item.type, part, pool, by)


def _slice(gres_type: str, part: MigSlice | None, pool: Pool | None, by: str) -> float | None:
    """Return what one GPU or slice of this type is worth, by the site's figures, else by those of a known model."""
    profile = parse_profile(part.profile if part else gres_type)
    if profile is None:
        of_site = pool is not None and gres_type == pool.gpu_type
        return 1.0 if of_site or not (part or names_slice(gres_type)) else None
    card = (pool.gpu_model if part and pool else "") or gres_type
    if by == SLICES:
        per_gpu = slices_per_gpu(card, profile.name)
        return profile.compute_slices / per_gpu if tells_slices(card, profile.name) else None
    if by == "memory" and profile.shares_memory:
        return None
    model = model_named(card)
    if part and pool:
        size, whole_size = (part.sm_count, pool.sm_count) if by == "sms" else (part.mem_mib, pool.gpu_mem_mib)
        if whole_size:
            return size / whole_size
    if model is None or profile.name not in model.profiles:
        return None
    mem_mib, sm_count = model.profiles[profile.name]
    size, whole_size = (sm_count, model.sm_count) if by == "sms" else (mem_mib, model.mem_total_mib)
    return size / whole_size if whole_size else None


def _pools(node_list: str, config: SiteConfig) -> tuple[tuple[Pool, ...], ...]:
    """Return the pools of these nodes, one for each card of a node; each combination once."""
    nodes = node_names(node_list) if "[" in node_list or "," in node_list else [node_list]
    pools_of_nodes = (tuple(pool for pool in config.pool if node in pool_nodes(pool)) for node in nodes)
    return tuple(dict.fromkeys(pools_of_nodes))


@lru_cache
def pool_nodes(pool: Pool) -> frozenset[str]:
    """Return the names of a pool's nodes."""
    return node_names(pool.nodes)


def node_names(node_list: str) -> frozenset[str]:
    """Return the nodes of a list in Slurm's words; a list that cannot be read is one node of that name."""
    try:
        return frozenset(expand(node_list))
    except InputError:
        return frozenset((node_list,))


def make_equivalents(database: DuckDBPyConnection, config: SiteConfig | None, by: str) -> None:
    """Make the table ``equivalents`` of the worth of the gres of ``readings``, and of the CPUs and memory beside them.

    Its key is the text of the gres and, for those in ``placed``, the nodes: the worth of a share, an untyped GPU or a
    slice of the site's differs between nodes.
    """
    texts = database.execute(f"SELECT gres, {GRES_ALONE} FROM (SELECT DISTINCT gres FROM readings)").fetchall()
    parsed = {text: parse_tres_gres(alone) for text, alone in texts}
    placed = [text for text, gres in parsed.items() if any(_placed(item, config) for item in gres)] if config else []
    database.execute("CREATE TEMP TABLE placed AS SELECT unnest($texts::VARCHAR[]) AS text", {"texts": placed})
    pairs = database.execute("SELECT DISTINCT gres, if(gres IN (FROM placed), node_list, '') FROM readings").fetchall()
    rows = [
        (text, place, *gpu_equivalent(parsed[text], place, config, by), *parse_tres_host(text)) for text, place in pairs
    ]
    make_rows(database, "equivalents", _KINDS, rows)


class Unsure(NamedTuple):
    """Types of GPUs by how sure it is what they are worth: left out of GPU-hours, or taken for whole GPUs.

    ``types_sharing_memory`` are compute instances, whose memory others use as well. A UsageReport has the same fields.
    """

    types_without_size: tuple[str, ...]
    types_taken_for_whole: tuple[str, ...]
    types_sharing_memory: tuple[str, ...]


def unsure_types(database: DuckDBPyConnection, config: SiteConfig | None) -> Unsure:
    """Return of the types in ``runs`` those of which neither a site nor their names say what they are."""
    of_site = {pool.gpu_type for pool in config.pool} | {_UNTYPED} if config else set()
    kinds = database.execute("SELECT DISTINCT kind, gpus IS NULL, whole FROM runs WHERE devices > 0").fetchall()
    whole_types = {gres_type for kind, _, is_whole in kinds if is_whole for gres_type in kind.split("+")}
    profiles = {gres_type: parse_profile(gres_type) for kind, _, _ in kinds for gres_type in kind.split("+")}
    return Unsure(
        tuple(sorted({kind for kind, unknown, _ in kinds if unknown})),
        tuple(sorted(kind for kind in whole_types - of_site if not model_named(kind) and not parse_profile(kind))),
        tuple(sorted(kind for kind, profile in profiles.items() if profile and profile.shares_memory)),
    )


def _placed(item: Gres, config: SiteConfig) -> bool:
    """Return whether it depends on the nodes what ``item`` is worth; a site may call a slice what it likes."""
    slices = {part.type for pool in config.pool for part in pool.slice}
    return item.name != "gpu" or not item.type or item.type in slices

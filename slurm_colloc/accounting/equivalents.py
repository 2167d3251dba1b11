# SPDX-License-Identifier: Apache-2.0
"""What an allocation is worth in whole GPUs.

Convention "by slices": a MIG slice of g compute slices is g/7 of its GPU (g/4 on an A30), one mps is 1 over the
device's mps count, one shard 1 over the GPU's shards.
"""

from collections.abc import Sequence
from functools import lru_cache

from ClusterShell.NodeSet import NodeSet, NodeSetException

from slurm_colloc.config import Pool, SiteConfig
from slurm_colloc.gpu.mig import parse_profile, slices_per_gpu
from slurm_colloc.model import Gres


def unit_gpus(profile: str, model: str) -> float:
    """Return what one unit (a GPU, or a slice of this profile) is worth in whole GPUs."""
    parsed = parse_profile(profile)
    return 1.0 if parsed is None else parsed.compute_slices / slices_per_gpu(model)


def gpu_equivalents(gres: Sequence[Gres], node_list: str, config: SiteConfig | None) -> float | None:
    """Return the whole-GPU equivalents of an allocation, None when a share's size is not known."""
    total = 0.0
    for item in gres:
        worth = _worth(item, node_list, config)
        if worth is None:
            return None
        total += worth * item.quantity
    return total


def _worth(item: Gres, node_list: str, config: SiteConfig | None) -> float | None:
    # Shares and slices come from one node, so the node's pool knows their size.
    pool = next((pool for pool in (config.pool if config else ()) if node_list in _nodes(pool)), None)
    if item.name == "gpu" and not item.type and pool and pool.slice:
        # AccountingStorageTRES=gres/gpu tells slices from GPUs by nothing but where they are.
        worths = {unit_gpus(part.profile, pool.gpu_model) for part in pool.slice} | ({1.0} if pool.gpu_type else set())
        return worths.pop() if len(worths) == 1 else None
    if item.name == "gpu":
        return unit_gpus(item.type, item.type)
    if item.name not in ("mps", "shard"):
        return 0.0
    per_gpu = (pool.mps_per_gpu if item.name == "mps" else pool.shards_per_gpu) if pool else 0
    return 1 / per_gpu if per_gpu else None


@lru_cache
def _nodes(pool: Pool) -> frozenset[str]:
    try:
        return frozenset(NodeSet(pool.nodes))
    except NodeSetException:
        return frozenset((pool.nodes,))


def devices(gres: Sequence[Gres]) -> int:
    """Return on how many units (GPUs or slices) an allocation lies; a share lies on one."""
    gpus = sum(item.quantity for item in gres if item.name == "gpu")
    return gpus or (1 if any(item.name in ("mps", "shard") and item.quantity for item in gres) else 0)

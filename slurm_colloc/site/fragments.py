# SPDX-License-Identifier: Apache-2.0
"""What the pools and partitions of site.toml are in the words of slurm.conf and gres.conf: pure functions."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from slurm_colloc.core.config import Partition, Pool, SiteConfig
from slurm_colloc.core.errors import ConfigError
from slurm_colloc.core.model import Gres
from slurm_colloc.core.units import whole_minutes
from slurm_colloc.gpu.mig import parse_profile, slices_per_gpu
from slurm_colloc.placement.pieces import shares_per_gpu
from slurm_colloc.site.cluster import SHARES, grouped
from slurm_colloc.slurm.hostlist import expand, fold


class Alike(NamedTuple):
    """Nodes of the same pools: one pool for each card that they have."""

    nodes: str
    pools: tuple[Pool, ...]


def alike(pools: Sequence[Pool]) -> list[Alike]:
    """Return the nodes of all pools, each node once: slurm.conf(5) takes no second line about a node.

    Raises:
        InputError: nodes that cannot be read.
    """
    indices_of = grouped((node, index) for index, pool in enumerate(pools) for node in expand(pool.nodes))
    groups = []
    for indices, names in sorted(grouped((tuple(indices), node) for node, indices in indices_of.items()).items()):
        of_pool = pools[indices[0]].nodes
        # Nodes that are all of a pool's are named in its words.
        words = of_pool if len(names) == len(expand(of_pool)) else fold(names)
        groups.append(Alike(words, tuple(pools[index] for index in indices)))
    return groups


def shares(pools: Sequence[Pool]) -> tuple[Gres, ...]:
    """Return what a node of these pools shares out, as gres: its counts are those of all its whole GPUs together."""
    counts = ((name, sum(shares_per_gpu(pool, name) * pool.gpus_per_node for pool in pools)) for name in SHARES)
    return tuple(Gres(name, "", count) for name, count in counts if count)


def uneven_shares(pools: Sequence[Pool]) -> tuple[Gres, ...]:
    """Return those of ``shares`` of which not all GPUs of a node have as many: a bare Count= is spread evenly."""
    having = [pool for pool in pools if pool.gpus_per_node]
    return tuple(gres for gres in shares(pools) if len({shares_per_gpu(pool, gres.name) for pool in having}) > 1)


def devices(pool: Pool) -> tuple[Gres, ...]:
    """Return the GPUs and slices of a node of the pool, as gres."""
    whole = (Gres("gpu", pool.gpu_type, pool.gpus_per_node),) if pool.gpus_per_node else ()
    return (*whole, *(Gres("gpu", part.type, part.quantity) for part in pool.slice))


def node_gres(pools: Sequence[Pool]) -> str:
    """Return ``Gres=`` of a node of these pools; the shares stay untyped, as they are in gres.conf."""
    return ",".join(map(str, (*(gres for pool in pools for gres in devices(pool)), *shares(pools))))


def gres_types(config: SiteConfig) -> str:
    """Return ``GresTypes=`` of a site."""
    names = (gres.name for pool in config.pool for gres in (*devices(pool), *shares((pool,))))
    return ",".join(dict.fromkeys(names))


def tres(config: SiteConfig) -> str:
    """Return ``AccountingStorageTRES=``: each gres by name, and each type of GPU, whose use nobody could tell else."""
    names = (f"gres/{name}" for name in gres_types(config).split(",") if name)
    types = (f"gres/gpu:{gres.type}" for pool in config.pool for gres in devices(pool) if gres.type)
    return ",".join(dict.fromkeys((*names, *types)))


def gres_conf_lines(pools: Sequence[Pool]) -> list[list[str]]:
    """Return the words of the lines of gres.conf for a node of these pools, without ``NodeName=``.

    Which device files are slices, and which are whose of two cards, only the driver knows: left to AutoDetect. Shares
    that are not spread evenly are left out: they need the files.
    """
    kinds = [pool for pool in pools if devices(pool)]
    detected = len(kinds) > 1 or any(pool.slice for pool in kinds)
    words = ["AutoDetect=nvml"] if detected else ["AutoDetect=off"]
    for pool in kinds if not detected else ():
        last = pool.gpus_per_node - 1
        kind = [f"Type={pool.gpu_type}"] if pool.gpu_type else []
        words += ["Name=gpu", *kind, f"File=/dev/nvidia{f'[0-{last}]' if last else 0}"]
    even = [gres for gres in shares(pools) if gres not in uneven_shares(pools)]
    # Else Slurm gives mps of one GPU of the node at a time: the others' lie idle while jobs on mps wait.
    several = ["Flags=all_sharing"] if sum(gres.quantity for pool in pools for gres in devices(pool)) > 1 else []
    return [
        words,
        *([f"Name={gres.name}", f"Count={gres.quantity}", *(several if gres.name == "mps" else [])] for gres in even),
    ]


def partition_words(partition: Partition) -> list[str]:
    """Return what site.toml says of the partition in the words of slurm.conf.

    Raises:
        ConfigError: ``default_mem`` is none.
    """
    name, _, value = partition.default_mem.partition("=")
    if name not in ("", "DefMemPerCPU", "DefMemPerNode"):
        raise ConfigError(
            f"partition '{partition.name}': default_mem '{partition.default_mem}' is no DefMemPerCPU= or DefMemPerNode="
        )
    times = {"DefaultTime": partition.default_time_min, "MaxTime": partition.max_time_min}
    numbers = {
        "QOS": partition.qos,
        "ExclusiveUser": "YES" if partition.mps_users == "one" else "",
        "DefCpuPerGPU": partition.cpus_per_gpu,
        "DefMemPerGPU": partition.mem_per_gpu_mib,
        name: value,
    }
    return [
        *(f"{key}={whole_minutes(limit)}" for key, limit in times.items() if limit is not None),
        *(f"{key}={number}" for key, number in numbers.items() if number),
        *partition.restrictions,
    ]


def billing_weights(config: SiteConfig, partition: Partition) -> str:
    """Return ``TRESBillingWeights=`` that bill a whole GPU as 1 and a piece as its part of one; empty without GPUs.

    A slice counts by compute slices. By type only: plain gres/gpu is added to each typed one, and would bill it twice.
    Where pools of one partition cut their GPUs differently, a share is billed by the coarser cut.
    """
    weights: dict[str, float] = {}
    for name, weight in gpu_parts(pool for pool in config.pool if partition.name in pool.partitions):
        weights[name] = max(weight, weights.get(name, 0.0))
    return ",".join(f"{name}={weight:.4g}" for name, weight in weights.items())


def gpu_parts(pools: Iterable[Pool]) -> Iterable[tuple[str, float]]:
    """Yield what each gres of these pools is of a whole GPU, by its name in TRESBillingWeights."""
    for pool in pools:
        for gres in devices(pool):
            profile = next((part.profile for part in pool.slice if part.type == gres.type), "")
            parsed = parse_profile(profile)
            name = f"GRES/gpu:{gres.type}" if gres.type else "GRES/gpu"
            yield name, parsed.compute_slices / slices_per_gpu(pool.gpu_model, profile) if parsed else 1.0
        yield from ((f"GRES/{gres.name}", pool.gpus_per_node / gres.quantity) for gres in shares((pool,)))

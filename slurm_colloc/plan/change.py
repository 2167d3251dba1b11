# SPDX-License-Identifier: Apache-2.0
"""The change that is asked about: pieces of GPUs, number of GPUs, number of jobs. Pure functions."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from slurm_colloc.core.config import Pool, SiteConfig
from slurm_colloc.core.errors import InputError
from slurm_colloc.placement.candidate import described
from slurm_colloc.plan.geometry import Cut, with_cuts
from slurm_colloc.plan.past import Run
from slurm_colloc.plan.sharing import Sharing, drawn, moved
from slurm_colloc.slurm.hostlist import count, expand, fold

# Shares of a GPU, where the site has none yet: hundredths, and tenths.
_MPS_PER_GPU, _SHARDS_PER_GPU = 100, 10
# A job more comes within so long after the one that it is like.
_LATER_S = 3600.0
_COPY = 10**9


class Asked(NamedTuple):
    """A what-if: other pieces, more or fewer GPUs, another demand. As it stands: the site as it is."""

    cuts: tuple[Cut, ...] = ()
    best_cuts: bool = False
    mps: bool = False
    shards: bool = False
    adoption: float = 1.0
    gpus: int = 0
    demand: float = 1.0

    @property
    def shares(self) -> bool:
        """Return whether jobs are given pieces of GPUs."""
        return bool(self.cuts or self.best_cuts or self.mps or self.shards)

    @property
    def nothing(self) -> bool:
        """Return whether nothing is to be otherwise."""
        return self._replace(adoption=1.0) == Asked()


def gpus_of(config: SiteConfig) -> int:
    """Return how many whole GPUs the site has."""
    return sum(map(whole_gpus, config.pool))


def pools_with_whole(config: SiteConfig) -> Sequence[Pool]:
    """Return the pools whose GPUs may be cut.

    Raises:
        InputError: there are none.
    """
    if pools := [pool for pool in config.pool if pool.gpus_per_node]:
        return pools
    raise InputError("site.toml has no pool with whole GPUs to plan for")


def changed(config: SiteConfig, change: Asked) -> SiteConfig:
    """Return the site as the change has it.

    Raises:
        InputError: it cannot be so.
    """
    if change.gpus:
        config = _with_gpus(config, change.gpus)
    if change.mps or change.shards:
        config = _with_shares(config, change)
    return with_cuts(config, change.cuts) if change.cuts else config


def _with_gpus(config: SiteConfig, gpus: int) -> SiteConfig:
    pool = max(pools_with_whole(config), key=whole_gpus)
    after = whole_gpus(pool) + gpus
    if gpus % pool.gpus_per_node:
        raise InputError(
            f"--gpus {gpus:+d}: a node of pool '{pool.name}' has {pool.gpus_per_node} GPUs; ask for whole nodes"
        )
    if after <= 0:
        raise InputError(f"--gpus {gpus:+d} leaves pool '{pool.name}' no node: it has {whole_gpus(pool)} GPUs")
    return resized(config, {pool.name: after})


def whole_gpus(pool: Pool) -> int:
    """Return how many whole GPUs a pool has."""
    return pool.gpus_per_node * count(pool.nodes)


def resized(config: SiteConfig, gpus: Mapping[str, int]) -> SiteConfig:
    """Return the site with so many whole GPUs in pools by name: the first nodes, one perhaps with fewer, or more."""
    pools: list[Pool] = []
    for pool in config.pool:
        if pool.name not in gpus:
            pools.append(pool)
            continue
        nodes, rest = divmod(gpus[pool.name], pool.gpus_per_node)
        names = [*expand(pool.nodes), *(f"more{number}" for number in range(nodes))]
        if nodes:
            pools.append(pool._replace(nodes=fold(names[:nodes])))
        if rest:
            pools.append(pool._replace(name=f"{pool.name}-part", nodes=names[nodes], gpus_per_node=rest))
    return config._replace(pool=tuple(pools))


def _with_shares(config: SiteConfig, change: Asked) -> SiteConfig:
    def shared(pool: Pool) -> Pool:
        mps = pool.mps_per_gpu or (_MPS_PER_GPU if change.mps else 0)
        shards = pool.shards_per_gpu or (_SHARDS_PER_GPU if change.shards else 0)
        return pool._replace(mps_per_gpu=mps, shards_per_gpu=shards) if pool.gpus_per_node else pool

    sharing = config.sharing
    daemon = "site" if change.mps and sharing.mps_daemon == "none" else sharing.mps_daemon
    order = tuple(dict.fromkeys((*sharing.order, "mig", "mps", *(["shard"] if change.shards else []))))
    names = [partition.name for partition in config.partition]
    names += [name for pool in config.pool for name in pool.partitions]
    partitions = described(dict.fromkeys(names), config)
    if change.mps:
        partitions = tuple(partition._replace(mps_users=partition.mps_users or "each") for partition in partitions)
    return config._replace(
        pool=tuple(map(shared, config.pool)),
        partition=partitions,
        sharing=sharing._replace(mps_daemon=daemon, order=order),
    )


def otherwise(runs: Iterable[Run], sharing: Sharing | None, change: Asked) -> Iterator[Run]:
    """Yield the runs on their pieces, as many more or fewer as the demand of the change says."""
    copies, part = divmod(change.demand, 1.0)
    for run in runs:
        number = run.job.number
        run = moved(run, sharing.pieces.get(number) if sharing else None)
        all_copies = int(copies) + 1 if drawn(number) < part else int(copies)
        for copy in range(all_copies):
            later_s = _LATER_S * drawn(number + copy * 7919) if copy else 0.0
            job = run.job._replace(
                number=number + copy * _COPY, submit_s=run.job.submit_s + later_s, array=f"{run.job.array} {copy}"
            )
            yield run._replace(job=job, counted=run.counted and not copy)

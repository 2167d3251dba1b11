# SPDX-License-Identifier: Apache-2.0
"""The settings of job_submit.lua for each partition."""

from collections.abc import Iterator
from typing import NamedTuple

from slurm_colloc.core.config import MigSlice, Partition, Pool, SiteConfig
from slurm_colloc.core.errors import ConfigError, InputError
from slurm_colloc.estimate.policy_table import model_hash
from slurm_colloc.site.cluster import SHARES, grouped
from slurm_colloc.slurm.gres import parse_gres


class Piece(NamedTuple):
    """A kind of slice; ``partition`` and ``max_min`` are of another partition where it is only there.

    ``cpus`` and ``host_mib`` are what a job with it can have of a node; 0 where that is not known.
    """

    gres: str
    mem_mib: int
    sm: int
    whole_sm: int
    model: str
    cpus: int
    host_mib: int
    partition: str = ""
    max_min: float | None = None


class Policy(NamedTuple):
    """One partition: ``whole`` are the types of its whole GPUs, ``default_min`` the limit of a job that names none."""

    partition: Partition
    whole: tuple[str, ...]
    pieces: tuple[Piece, ...]
    default_min: float | None


def has_policy(config: SiteConfig) -> bool:
    """Return whether an administrator wants any partition's jobs judged."""
    return bool(config.paths.state) and any(partition.job_submit != "off" for partition in config.partition)


def policies(config: SiteConfig) -> list[Policy]:
    """Return the partitions whose jobs are judged; none where one user has the program.

    Raises:
        ConfigError: an ``interactive_gres`` that is not one piece of a GPU.
    """
    if not has_policy(config):
        return []
    return [_policy(config, partition) for partition in config.partition if partition.job_submit != "off"]


def _policy(config: SiteConfig, partition: Partition) -> Policy:
    _check(partition)
    pools = [pool for pool in _pools(config, partition.name) if _is_open(pool, config)]
    whole = tuple(dict.fromkeys(pool.gpu_type for pool in pools if pool.gpu_type and pool.gpus_per_node))
    limit = partition.max_time_min if partition.default_time_min is None else partition.default_time_min
    return Policy(partition, whole, tuple(_reachable(config, partition)), limit)


def _check(partition: Partition) -> None:
    if not partition.interactive_gres:
        return
    try:
        gres = parse_gres(partition.interactive_gres)
    except InputError as error:
        raise ConfigError(f"partition '{partition.name}': interactive_gres: {error}") from error
    piece = len(gres) == 1 and (gres[0].type if gres[0].name == "gpu" else gres[0].name in SHARES)
    if not piece or str(gres[0]) != partition.interactive_gres:
        raise ConfigError(
            f"partition '{partition.name}': interactive_gres is '{partition.interactive_gres}': write one piece of a "
            "GPU with its count, as 'gpu:TYPE:1' or 'shard:1'"
        )


def _pools(config: SiteConfig, name: str) -> list[Pool]:
    return [pool for pool in config.pool if name in pool.partitions]


def _is_open(pool: Pool, config: SiteConfig) -> bool:
    return pool.gpu_type not in config.sharing.protected_types


def _reachable(config: SiteConfig, partition: Partition) -> Iterator[Piece]:
    """Yield slices, the smallest first, those of the partition itself before those of others that all may use."""
    yield from _pieces(config, partition.name)
    for reachable in config.partition:
        if reachable.name in partition.pieces_in and not reachable.restrictions:
            for piece in _pieces(config, reachable.name):
                yield piece._replace(partition=reachable.name, max_min=reachable.max_time_min)


def _pieces(config: SiteConfig, name: str) -> list[Piece]:
    """Return the slices of a partition, the smallest first.

    Slurm knows slices by type only: of several kinds with one type it may give any, so the lesser counts, and what may
    not be taken from one of them is taken from none.
    """
    kinds = grouped(
        (part.type, _piece(pool, part) if _is_open(pool, config) else None)
        for pool in _pools(config, name)
        for part in pool.slice
        if part.quantity
    )
    least_pieces = []
    for alike in kinds.values():
        usable = [piece for piece in alike if piece is not None]
        if len(usable) == len(alike) and len({piece.model for piece in usable}) == 1:
            least = usable[0]._replace(
                mem_mib=min(piece.mem_mib for piece in usable),
                sm=min(piece.sm for piece in usable),
                whole_sm=max(piece.whole_sm for piece in usable),
                cpus=min(piece.cpus for piece in usable),
                host_mib=min(piece.host_mib for piece in usable),
            )
            least_pieces.append(least)
    return sorted(least_pieces, key=lambda piece: (piece.mem_mib, piece.sm))


def _piece(pool: Pool, part: MigSlice) -> Piece | None:
    """Return a slice of this pool, None where site.toml lacks by what it is weighed."""
    if not pool.sm_count or not pool.gpu_model:
        return None
    return Piece(
        f"gpu:{part.type}:1",
        part.mem_mib,
        part.sm_count,
        pool.sm_count,
        model_hash(pool.gpu_model),
        pool.cpus_per_node,
        pool.mem_per_node_mib,
    )

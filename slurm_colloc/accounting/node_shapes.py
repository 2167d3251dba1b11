# SPDX-License-Identifier: Apache-2.0
"""What nodes have, by site.toml, of those that a run of some partition and GPU type may have been on.

Where they differ, each figure is the most: the one by which less can be held against a run.
"""

from collections.abc import Sequence

from duckdb import DuckDBPyConnection

from slurm_colloc.accounting.parquet import make_rows
from slurm_colloc.config import Pool, SiteConfig

# Column -> meaning, of the runs that audit rules ask of.
COLUMNS = {
    "cpus_per_gpu": "CPUs for jobs of a node of its partition and type for each of its GPUs, the most; NULL where "
    "site.toml does not say",
    "mem_per_gpu_mib": "host memory for jobs of such a node for each of its GPUs, the most",
}
_KINDS = {"cluster": "VARCHAR", "kind": "VARCHAR", "partition": "VARCHAR"} | dict.fromkeys(COLUMNS, "DOUBLE")


def make_node_shapes(database: DuckDBPyConnection, config: SiteConfig | None) -> None:
    """Make the table ``node_shapes``, one row for each cluster, kind of GPU and partition that site.toml describes."""
    found: dict[tuple[str, str, str], list[Pool]] = {}
    cluster, pools = (config.cluster, config.pool) if config else ("", ())
    for pool in pools:
        # AccountingStorageTRES=gres/gpu alone tells no types.
        for kind in {pool.gpu_type or "untyped", "untyped"} if pool.gpus_per_node else ():
            for partition in pool.partitions:
                found.setdefault((cluster, kind, partition), []).append(pool)
    make_rows(database, "node_shapes", _KINDS, [(*which, *_shape(pools)) for which, pools in found.items()])


def _shape(pools: Sequence[Pool]) -> tuple[float | None, ...]:
    cpus = [(pool.cpus_per_node, pool.gpus_per_node) for pool in pools]
    mem_mib = [(pool.mem_per_node_mib, pool.gpus_per_node) for pool in pools]
    return tuple(max(each / of for each, of in have) if min(have)[0] else None for have in (cpus, mem_mib))

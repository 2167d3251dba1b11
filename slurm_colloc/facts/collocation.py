# SPDX-License-Identifier: Apache-2.0
"""How GPUs were shared, by the number of jobs; what ran on them outside jobs; how many there are at all."""

from duckdb import DuckDBPyConnection

from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.errors import InputError
from slurm_colloc.core.usage_model import Collocation, StrayUse
from slurm_colloc.slurm.hostlist import expand
from slurm_colloc.store.equivalents import unit_gpus
from slurm_colloc.store.queries import named

_BY_JOBS = """
SELECT jobs, count(DISTINCT (cluster, uuid)) AS units, sum(us) / 3.6e9 AS unit_hours,
       (sum((us * unit_gpus / 3.6e9)::DECIMAL(38, 12)))::DOUBLE AS gpu_hours
FROM device_parts WHERE us > 0 GROUP BY jobs ORDER BY jobs
"""


def collocation(database: DuckDBPyConnection) -> list[Collocation]:
    """Return how long the sampled GPUs and slices had 0, 1, 2, ... jobs; ``database`` is aggregated."""
    return [Collocation(**row) for row in named(database, _BY_JOBS)]


def installed_gpus(config: SiteConfig | None) -> float | None:
    """Return the GPUs of all of the site's pools, slices by compute slices; None where there are none."""
    total = 0.0
    for pool in config.pool if config else ():
        try:
            nodes = len(expand(pool.nodes))
        except InputError:
            return None
        slices = sum(part.quantity * unit_gpus(part.profile, pool.gpu_model) for part in pool.slice)
        total += nodes * (pool.gpus_per_node + slices)
    return total or None


_STRAYS = """
SELECT cluster, node, count(DISTINCT uuid) AS gpus, sum(stray_us) / 3.6e9 AS gpu_hours, max(stray_last_s) AS last_s
FROM device_parts WHERE stray_us > 0 GROUP BY cluster, node ORDER BY gpu_hours DESC, cluster, node
"""


def stray_use(database: DuckDBPyConnection) -> list[StrayUse]:
    """Return the nodes on whose GPUs processes outside any job were seen, the most first; after an aggregation."""
    return [StrayUse(**row) for row in named(database, _STRAYS)]

# SPDX-License-Identifier: Apache-2.0
"""How GPUs were shared: the time that each spent with so many jobs, and what the cluster has of GPUs at all."""

from duckdb import DuckDBPyConnection

from slurm_colloc.accounting.equivalents import unit_gpus
from slurm_colloc.config import SiteConfig
from slurm_colloc.errors import InputError
from slurm_colloc.measured import Collocation
from slurm_colloc.slurm.hostlist import expand

_BY_JOBS = """
SELECT jobs, count(DISTINCT (cluster, uuid)), sum(us) / 3.6e9,
       (sum((us * unit_gpus / 3.6e9)::DECIMAL(38, 12)))::DOUBLE
FROM device_parts WHERE us > 0 GROUP BY jobs ORDER BY jobs
"""


def collocation(database: DuckDBPyConnection) -> list[Collocation]:
    """Return how long the sampled GPUs and slices had 0, 1, 2, ... jobs; ``database`` has the parts of a sweep."""
    return [Collocation(*row) for row in database.execute(_BY_JOBS).fetchall()]


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

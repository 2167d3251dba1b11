# SPDX-License-Identifier: Apache-2.0
"""Processes on GPUs that belong to no job: a login by ssh past Slurm, a container started by a daemon, a monitor."""

from duckdb import DuckDBPyConnection

from slurm_colloc.measured import StrayUse

_STRAYS = """
SELECT cluster, node, count(DISTINCT uuid), sum(stray_us) / 3.6e9 AS hours, max(stray_last_s)
FROM device_parts WHERE stray_us > 0 GROUP BY cluster, node ORDER BY hours DESC, cluster, node
"""


def stray_use(database: DuckDBPyConnection) -> list[StrayUse]:
    """Return the nodes on whose GPUs processes outside any job were seen, the most first; after a sweep."""
    return [StrayUse(*row) for row in database.execute(_STRAYS).fetchall()]

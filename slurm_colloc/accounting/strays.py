# SPDX-License-Identifier: Apache-2.0
"""Processes on GPUs that belong to no job: a login by ssh past Slurm, a container started by a daemon, a monitor."""

from slurm_colloc.accounting.store import Store
from slurm_colloc.model import StrayUse

_STRAYS = """
SELECT cluster, node, count(DISTINCT uuid), sum(seconds) / 3600 AS hours, max(at_s)
FROM (SELECT *, least(at_s, $until) - greatest(at_s - interval_s, $since) AS seconds
      FROM shares WHERE job_id = '' AND process_count > 0)
WHERE seconds > 0 GROUP BY cluster, node ORDER BY hours DESC, cluster, node
"""


def stray_use(store: Store, since_s: float, until_s: float) -> list[StrayUse]:
    """Return the nodes on whose GPUs processes outside any job were seen inside [since, until), the most first.

    Raises:
        StoreError: the store cannot be read.
    """
    rows = store.rows(_STRAYS, {"since": since_s, "until": until_s}, since_s, until_s)
    return [StrayUse(*row) for row in rows]

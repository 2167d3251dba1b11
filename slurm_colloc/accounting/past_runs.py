# SPDX-License-Identifier: Apache-2.0
"""The runs of a window as the planner takes them: when they were submitted, began and ended, and what they had."""

from typing import Any

from slurm_colloc.accounting.store import Store

_RUNS = """
SELECT job_id_raw, "user", account, "partition", qos, submit_s, start_s, end_s, suspended_s, node_list, gres, limit_min
FROM allocations
WHERE cluster = $cluster AND contains(gres, 'gres/') AND submit_s < $until AND submit_s <= start_s
  AND coalesce(end_s, ingested_s) > $since
ORDER BY submit_s, start_s, job_id_raw
"""


def past_runs(store: Store, cluster: str, since_s: float, until_s: float) -> list[tuple[Any, ...]]:
    """Return the runs with GPUs that were submitted or on in [since, until), by submission: fields of plan's Allocated.

    ``gres`` is all of AllocTRES; a run that is not over has no end, one without a known time limit no limit.

    Raises:
        StoreError: the store cannot be read.
    """
    asked = {"cluster": cluster, "since": since_s, "until": until_s}
    return store.rows(_RUNS, asked)

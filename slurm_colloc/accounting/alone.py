# SPDX-License-Identifier: Apache-2.0
"""How long each run's SM activity, measured alone on its GPU, stayed at or below each of the site's edges.

What a run stayed at or below for 95 % of its time cannot be added up over days; whether that is above an edge can: by
the time below it. As in evidence, GPU_UTIL, an upper bound, stands in where the driver offers no SM activity.
"""

from collections.abc import Callable, Sequence

from slurm_colloc.accounting.samples import MINUTE
from slurm_colloc.measured import MEASURED
from slurm_colloc.model import COMPLETED
from slurm_colloc.placement.fitted import SM_DIGITS

# One more of each day's parts, where it is asked for. ``edge`` counts the edges below the activity; it is NULL where
# all that is left of the samples is a day's row, which says nothing of how high it went.
ALONE_PARTS = {"alone_parts": "run BIGINT, model VARCHAR, edge INTEGER, us BIGINT"}
_QUERY = f"""
WITH on_one AS (
    FROM day_runs WHERE whole AND devices = 1 AND state = '{COMPLETED}'
),
read AS (
    SELECT run, node, uuid, pass_s, gpu_model, grain_s, us,
           grain_s = 0 OR at_s = pass_s AND interval_s > grain_s - 0.0005 AS whole_pass,
           -- A split among neighbours is good enough for a report's sums, not for sizing.
           CASE WHEN method = '{MEASURED}' THEN coalesce(sm_active_pct, gpu_util_pct) * whole_sm_part END AS value
    FROM ({{inside}}) WHERE inside AND profile = ''
),
passes AS (
    -- What is rolled up by minutes has a row for each state that a minute had. Most had one: rows of a job on a device
    -- do not overlap, so that one that fills its minute, to the millisecond that times are kept by, is alone in it.
    SELECT run, gpu_model, grain_s, us, value FROM read WHERE whole_pass
    UNION ALL
    SELECT run, max(gpu_model), max(grain_s), sum(us)::BIGINT,
           CASE WHEN count(*) = count(value) THEN coalesce(sum(value * us) / nullif(sum(us), 0), max(value)) END
    FROM read WHERE NOT whole_pass GROUP BY run, node, uuid, pass_s
)
SELECT run, max(gpu_model) AS model, {{edge}} AS edge, sum(us)::BIGINT AS us
FROM (SELECT * EXCLUDE (value), round(value, {SM_DIGITS}) AS sm FROM passes)
WHERE sm IS NOT NULL OR grain_s > {MINUTE} GROUP BY run, {{edge}}
"""


def alone_queries(inside: Callable[[str], str], edges: Sequence[float]) -> dict[str, str]:
    """Return the query of ALONE_PARTS.

    Args:
        inside: returns a query of a day's samples inside the runs of a table like day_runs, whose name it is given.
        edges: SM activities in percent of a whole GPU, ascending.
    """
    below = " ".join(f"WHEN sm <= {edge!r}::DOUBLE THEN {number}" for number, edge in enumerate(edges))
    edge = f"CASE WHEN grain_s > {MINUTE} THEN NULL {below} ELSE {len(edges)} END"
    return {"alone_parts": _QUERY.format(edge=edge, inside=inside("on_one"))}

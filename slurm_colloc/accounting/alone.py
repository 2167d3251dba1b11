# SPDX-License-Identifier: Apache-2.0
"""How long each run's SM activity, measured alone on its GPU, stayed at or below each of the site's edges.

What a run stayed at or below for 95 % of its time cannot be added up over days; whether that is above an edge can: by
the time below it. As in evidence, GPU_UTIL, an upper bound, stands in where the driver offers no SM activity.
"""

from collections.abc import Sequence

from slurm_colloc.accounting.samples import MINUTE
from slurm_colloc.model import COMPLETED
from slurm_colloc.placement.fitted import SM_DIGITS

# One more of each day's parts, where it is asked for. ``edge`` counts the edges below the activity; it is NULL where
# all that is left of the samples is a day's row, which says nothing of how high it went.
ALONE_PARTS = {
    "alone_parts": "cluster VARCHAR, job_id_raw VARCHAR, start_s BIGINT, model VARCHAR, edge INTEGER, us BIGINT"
}
_QUERY = """
WITH read AS (
    SELECT run, node, uuid, pass_s, gpu_model, grain_s, us,
           -- A split among neighbours is good enough for a report's sums, not for sizing.
           CASE WHEN method = 'measured' THEN coalesce(sm_active_pct, gpu_util_pct) * whole_sm_part END AS value
    FROM ({inside}) WHERE inside AND profile = ''
),
passes AS (
    SELECT run, gpu_model, grain_s, us, value FROM read WHERE grain_s = 0
    UNION ALL
    -- What is rolled up by minutes has a row for each state that a minute had.
    SELECT run, max(gpu_model), max(grain_s), sum(us)::BIGINT,
           CASE WHEN count(*) = count(value) THEN coalesce(sum(value * us) / nullif(sum(us), 0), max(value)) END
    FROM read WHERE grain_s > 0 GROUP BY run, node, uuid, pass_s
)
SELECT cluster, job_id_raw, start_s, p.* EXCLUDE (run) FROM (
    SELECT run, max(gpu_model) AS model, {edge} AS edge, sum(us)::BIGINT AS us
    FROM (SELECT * EXCLUDE (value), round(value, {digits}) AS sm FROM passes)
    WHERE sm IS NOT NULL OR grain_s > {minute} GROUP BY run, {edge}
) p JOIN runs r ON r.rowid = p.run
"""


def alone_queries(inside: str, edges: Sequence[float]) -> dict[str, str]:
    """Return the query of ALONE_PARTS.

    Args:
        inside: a query of a day's samples inside runs, whose last clause is a condition on those runs, ``r``.
        edges: SM activities in percent of a whole GPU, ascending.
    """
    of = f"{inside} AND r.whole AND r.devices = 1 AND r.state = '{COMPLETED}'"
    below = " ".join(f"WHEN sm <= {edge!r}::DOUBLE THEN {number}" for number, edge in enumerate(edges))
    edge = f"CASE WHEN grain_s > {MINUTE} THEN NULL {below} ELSE {len(edges)} END"
    return {"alone_parts": _QUERY.format(edge=edge, digits=SM_DIGITS, inside=of, minute=MINUTE)}

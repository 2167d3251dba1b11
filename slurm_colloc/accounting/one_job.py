# SPDX-License-Identifier: Apache-2.0
"""One job's runs: what each had and used, its time in pieces, and the evidence that it is for the next one."""

from collections.abc import Sequence
from typing import NamedTuple

from duckdb import DuckDBPyConnection

from slurm_colloc.accounting.feedback import Measured, measured_in
from slurm_colloc.accounting.store import Store
from slurm_colloc.accounting.sweep import Window, sweep_some
from slurm_colloc.charted import JobPiece, JobTimeline
from slurm_colloc.config import SiteConfig
from slurm_colloc.measured import JobUsage
from slurm_colloc.model import Evidence

# Of a long array so many runs have their time drawn.
DRAWN = 20
# The id of an array stands for its tasks, that of a heterogeneous job for its components, as with sacct; a raw id is of
# one of them.
_ITS_OWN = """
(job_id = $job OR job_id_raw = $job OR split_part(job_id, '_', 1) = $job OR split_part(job_id, '+', 1) = $job)
"""
_SPAN = f"""
SELECT min(start_s), max(coalesce(end_s, $now)) FROM allocations
WHERE {_ITS_OWN} AND start_s < $until AND coalesce(end_s, $now) > $since
"""
# A day's sum says nothing of when in the day.
_NEAR = """
SELECT s.*, greatest(at_s - interval_s, $since) AS began_s, least(at_s, $until) AS ended_s FROM shares s
WHERE cluster = $cluster AND job_id = $job AND at_s > $since AND at_s - interval_s < $until
"""
_PIECES = f"""
WITH near AS ({_NEAR} AND grain_s <= 60),
cut AS (
    SELECT *, unnest(range(floor((began_s - $since) / $step)::BIGINT,
                           ceil((ended_s - $since) / $step)::BIGINT)) AS piece
    FROM near
),
parts AS (
    SELECT *, least(ended_s, $since + (piece + 1) * $step) - greatest(began_s, $since + piece * $step) AS seconds
    FROM cut
),
passes AS (
    SELECT piece, CASE WHEN count(*) = count(mib) THEN sum(mib) END AS mib FROM (
        SELECT piece, node, pass_s, uuid, max(gpu_mem_used_mib) AS mib FROM parts GROUP BY ALL)
    GROUP BY piece, node, pass_s
),
held AS (SELECT piece, max(mib)::BIGINT AS mib FROM passes GROUP BY piece)
SELECT piece, any_value(held.mib),
       sum(gpu_util_pct * seconds) / sum(seconds) FILTER (gpu_util_pct IS NOT NULL),
       sum(sm_active_pct * seconds) / sum(seconds) FILTER (sm_active_pct IS NOT NULL)
FROM parts LEFT JOIN held USING (piece) WHERE seconds > 0 GROUP BY piece
"""
_DEVICES = f"""
SELECT count(*), count(*) FILTER (idle), coalesce(max(sharers), 1),
       list_sort(coalesce(list(active_pct), []), 'DESC', 'NULLS LAST') FROM (
    SELECT uuid, max(sharers) AS sharers,
           coalesce(sum(sm_active_pct * seconds) / nullif(sum(seconds) FILTER (sm_active_pct IS NOT NULL), 0),
                    sum(gpu_util_pct * seconds) / nullif(sum(seconds) FILTER (gpu_util_pct IS NOT NULL), 0))
               AS active_pct,
           -- Where neither processes nor activity are known, nobody can say that it was idle.
           coalesce(max(process_count) = 0 OR max(gpu_util_pct) = 0, false)
           AND coalesce(max(gpu_util_pct), 0) = 0 AND coalesce(max(sm_active_pct), 0) = 0 AS idle
    FROM (SELECT *, ended_s - began_s AS seconds FROM ({_NEAR})) GROUP BY node, uuid)
"""


class RunFound(NamedTuple):
    """One run; ``timeline`` is None where there are no samples of it, ``evidence`` also while it runs.

    ``alone_s`` is for how long its SM activity was measured alone on the GPU; None where the evidence does not say.
    """

    usage: JobUsage
    timeline: JobTimeline | None
    evidence: Evidence | None
    alone_s: float | None = None


def find_job(store: Store, job_id: str, window: Window, config: SiteConfig | None, pieces: int) -> list[RunFound]:
    """Return the runs of a job, or of an array's tasks, that had a GPU inside ``window``.

    Raises:
        StoreError: the store cannot be read.
    """
    since_s, until_s, now_s = window
    # The samples of a year are not looked at: each day's are, once it is known which days count.
    with store.connect(until_s, until_s) as database:
        asked = {"job": job_id, "since": since_s, "until": until_s, "now": now_s}
        ((first_s, last_s),) = database.execute(_SPAN, asked).fetchall()
        if first_s is None:
            return []
        # A job that ran for an hour asks for the samples of that hour's days.
        near = Window(max(since_s, first_s), min(until_s, last_s + 1), now_s)
        usages = sweep_some(database, store, near, _ITS_OWN, {"job": job_id})
        found = [RunFound(usage, None, None) for usage in usages[:-DRAWN]]
        for usage in usages[-DRAWN:]:
            store.view_samples(database, usage.start_s, usage.end_s)
            timeline = _timeline(database, usage, pieces)
            measured = _measured(database, usage, config) if timeline else None
            found.append(RunFound(usage, timeline, *((measured.run, measured.alone_s) if measured else (None, None))))
        return found


def _timeline(database: DuckDBPyConnection, run: JobUsage, pieces: int) -> JobTimeline | None:
    asked = {"cluster": run.cluster, "job": run.job_id_raw, "since": run.start_s, "until": run.end_s}
    if run.end_s <= run.start_s:
        return None
    ((devices, unused, sharers, active_pct),) = database.execute(_DEVICES, asked).fetchall()
    if not devices:
        return None
    step_s = (run.end_s - run.start_s) / pieces
    found: Sequence[tuple[int, int | None, float | None, float | None]]
    found = database.execute(_PIECES, {**asked, "step": step_s}).fetchall()
    drawn = [JobPiece(None, None, None)] * pieces
    for piece, mib, util_pct, sm_pct in found:
        if piece < pieces:  # what floating point makes of the last one's end
            drawn[piece] = JobPiece(util_pct, sm_pct, mib)
    # The day's own merged rows are no pieces: better none than a straight line.
    pieces_seen, neighbours = tuple(drawn) if found else (), max(0, sharers - 1)
    return JobTimeline(run.start_s, run.end_s, pieces_seen, devices, unused, neighbours, tuple(active_pct))


def _measured(database: DuckDBPyConnection, run: JobUsage, config: SiteConfig | None) -> Measured | None:
    found = measured_in(database, run.cluster, config, run.job_id_raw)
    return next((one for one in found if one.start_s == run.start_s), None)

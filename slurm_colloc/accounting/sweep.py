# SPDX-License-Identifier: Apache-2.0
"""Sample intervals against allocation intervals -> what each run used inside a window.

A sample stands for (at - interval, at]. It counts for a run as far as that interval, the run and the window overlap,
so that splitting a window never changes a sum.
"""

from typing import Any

from slurm_colloc.accounting.store import Store
from slurm_colloc.model import JobUsage

JOB_MEAN = "job mean by source"

# One row per run: clip(run, window), then join what was sampled of it. Runs without samples stay, unmeasured.
# A run without an end counts as far as it was known to run: up to the ingest that saw it.
# sacct gives the length of suspensions, not their place: they are taken to be spread evenly over the run.
# GPU_UTIL says how long a device was busy, not how much of it: of a run that holds a part of a GPU it is no use.
# A device's time counts once: where two samplers ran at a time, or the clock was set back, an interval begins no
# earlier than the reading before it.
# Sums are taken in the order of time, because floats add up differently in another.
# least() passes over NULL, so that what was not sampled must be 0 before it gets there.
# A source that gives one mean for the whole run records no coverage; it counts where no sample of ours does.
_SWEEP = """
WITH runs AS (
    SELECT *, to_s - from_s AS span_s,
           (to_s - from_s) * greatest(0, 1 - coalesce(suspended_s / nullif(last_s - start_s, 0), 0)) / 3600 AS hours,
           row_number() OVER () AS run
    FROM (SELECT *, greatest(start_s, $since)::DOUBLE AS from_s, least(last_s, $until)::DOUBLE AS to_s
          FROM (SELECT *, coalesce(end_s, least($now, ingested_s)) AS last_s FROM allocations)
          WHERE devices > 0 AND start_s < $until AND last_s > $since AND last_s >= start_s)
),
passes AS (
    SELECT cluster, uuid, at_s, lag(at_s) OVER (PARTITION BY cluster, uuid ORDER BY at_s) AS before_s
    FROM (SELECT DISTINCT cluster, uuid, at_s FROM shares)
),
clean AS (
    SELECT s.* REPLACE (least(s.interval_s, coalesce(s.at_s - p.before_s, s.interval_s)) AS interval_s)
    FROM shares s JOIN passes p USING (cluster, uuid, at_s)
),
parts AS (
    SELECT r.run, s.*, s.at_s <= r.to_s AS inside,
           least(s.at_s, r.to_s) - greatest(s.at_s - s.interval_s, r.from_s) AS seconds
    FROM runs r JOIN clean s
      ON s.job_id = r.job_id_raw AND s.cluster = r.cluster
     AND s.at_s > r.from_s AND s.at_s - s.interval_s < r.to_s
),
peaks AS (
    SELECT run, max(mib)::BIGINT AS peak_mib
    FROM (SELECT run, node, at_s, sum(gpu_mem_used_mib) AS mib FROM parts WHERE inside
          GROUP BY run, node, at_s HAVING count(*) = count(gpu_mem_used_mib))
    GROUP BY run
),
used AS (
    SELECT run,
           sum(seconds ORDER BY at_s, uuid) AS seconds,
           coalesce(sum(seconds ORDER BY at_s, uuid) FILTER (gpu_util_pct IS NOT NULL), 0) AS util_seconds,
           sum(seconds * unit_gpus * gpu_util_pct / 100 ORDER BY at_s, uuid) / 3600 AS util_hours,
           coalesce(sum(seconds ORDER BY at_s, uuid) FILTER (sm_active_pct IS NOT NULL), 0) AS sm_seconds,
           sum(seconds * unit_gpus * sm_active_pct / 100 ORDER BY at_s, uuid) / 3600 AS sm_hours,
           coalesce(sum(seconds ORDER BY at_s, uuid) FILTER (sharers > 1), 0) / 3600 AS shared_hours,
           list_sort(list_distinct(list(method))) AS methods
    FROM parts WHERE seconds > 0 GROUP BY run
),
joined AS (
    SELECT r.*, u.* EXCLUDE (run), p.peak_mib, gpus * hours AS allocated,
           devices * span_s AS device_s,
           u.methods IS NULL AND mean_gpu_util_pct IS NOT NULL AS by_mean
    FROM runs r LEFT JOIN used u USING (run) LEFT JOIN peaks p USING (run)
)
SELECT cluster, job_id, job_id_raw, "user", account, "partition", state, job_name, gres, from_s, to_s,
       allocated,
       CASE WHEN by_mean THEN allocated WHEN gpus < devices THEN 0
            ELSE coalesce(allocated * least(1, coalesce(util_seconds / device_s, 0)), 0) END,
       CASE WHEN by_mean THEN allocated * mean_gpu_util_pct / 100 WHEN gpus < devices THEN NULL ELSE util_hours END,
       coalesce(allocated * least(1, coalesce(sm_seconds / device_s, 0)), 0),
       sm_hours,
       peak_mib,
       CASE WHEN by_mean THEN NULL ELSE 100 * least(1, coalesce(seconds / device_s, 0)) END,
       coalesce(shared_hours, 0),
       CASE WHEN by_mean THEN [$job_mean] ELSE coalesce(methods, []) END
FROM joined ORDER BY start_s, job_id, cluster, end_s, submit_s
"""


def job_usage(store: Store, since_s: float, until_s: float, now_s: float) -> list[JobUsage]:
    """Return every run that had a GPU, or a share of one, inside [since, until).

    Raises:
        StoreError: the store cannot be read.
    """
    window = {"since": since_s, "until": until_s, "now": now_s, "job_mean": JOB_MEAN}
    with store.connect() as connection:
        rows: list[tuple[Any, ...]] = connection.execute(_SWEEP, window).fetchall()
    return [JobUsage(*row)._replace(methods=tuple(row[-1])) for row in rows]


def runs_in_window(store: Store, since_s: float, until_s: float, now_s: float) -> tuple[int, int]:
    """Return how many runs overlap [since, until), and how many of them had no GPU.

    Raises:
        StoreError: the store cannot be read.
    """
    query = """
        SELECT count(*), coalesce(sum((devices = 0)::INT), 0)
        FROM (SELECT *, coalesce(end_s, least($now, ingested_s)) AS last_s FROM allocations)
        WHERE start_s < $until AND last_s > $since AND last_s >= start_s
    """
    with store.connect() as connection:
        found = connection.execute(query, {"since": since_s, "until": until_s, "now": now_s}).fetchone()
    assert found is not None
    return int(found[0]), int(found[1])

# SPDX-License-Identifier: Apache-2.0
"""Sample intervals against allocation intervals -> what each run used inside a window.

A sample stands for (at - interval, at]. It counts for a run as far as that interval, the run and the window overlap,
so that splitting a window never changes a sum.
"""

from slurm_colloc.accounting.store import Store
from slurm_colloc.model import JobUsage

JOB_MEAN = "job mean by source"

# When a run was last known to run.
_LAST = """coalesce(end_s, least($now, ingested_s, lead(start_s) OVER (
    PARTITION BY cluster, job_id_raw ORDER BY start_s)))"""

# One row per run: clip(run, window), then join what was sampled of it. Runs without samples stay, unmeasured.
# A run without an end counts as far as it was known to run: up to the ingest that saw it, or until it began anew.
# sacct gives the length of suspensions, not their place: they are taken to be spread evenly over the run.
# GPU_UTIL says how long a device was busy, not how much of it: of a run that holds a part of a GPU it is no use.
# A device's time counts once: no two intervals of a node's day overlap in the store. A GPU that two sources saw under
# two node names has more time than the run; then each second counts for as much less.
# Sums are taken in the order of time, because floats add up differently in another.
# least() passes over NULL, so that what was not sampled must be 0 before it gets there.
# What GPUs held is added up over the run's devices of one pass, or of one minute or day where no more is left.
# A reading after the run's end may be the next run's; of merged readings that reach beyond it a part is this run's.
# A run's idle tail ends with its last reading; from a day's mean nobody can tell when it began.
# A source that gives one mean for the whole run records no coverage; it counts where no sample of ours does.
_SWEEP = f"""
WITH runs AS (
    SELECT *, to_s - from_s AS span_s,
           (to_s - from_s) * greatest(0, 1 - coalesce(suspended_s / nullif(last_s - start_s, 0), 0)) / 3600 AS hours,
           row_number() OVER () AS run
    FROM (SELECT *, greatest(start_s, $since)::DOUBLE AS from_s, least(last_s, $until)::DOUBLE AS to_s
          FROM (SELECT *, {_LAST} AS last_s FROM allocations)
          WHERE devices > 0 AND start_s < $until AND last_s > $since AND last_s >= start_s)
),
clipped AS (
    SELECT r.run, r.span_s, s.*, s.at_s <= r.to_s OR s.grain_s > 0 AS inside,
           greatest(s.at_s - s.interval_s, r.from_s) AS since_s, least(s.at_s, r.to_s) AS until_s
    FROM runs r JOIN shares s
      ON s.job_id = r.job_id_raw AND s.cluster = r.cluster
     AND s.at_s > r.from_s AND s.at_s - s.interval_s < r.to_s
),
parts AS MATERIALIZED (
    SELECT *, (until_s - since_s) * least(1, coalesce(span_s / nullif(sum(until_s - since_s) OVER (
               PARTITION BY run, uuid), 0), 1)) AS seconds
    FROM clipped
),
peaks AS (
    SELECT run, max(mib)::BIGINT AS peak_mib
    FROM (SELECT run, sum(mib) AS mib
          FROM (SELECT run, node, pass_s, max(gpu_mem_used_mib) AS mib FROM parts WHERE inside
                GROUP BY run, node, pass_s, uuid)
          GROUP BY run, node, pass_s HAVING count(*) = count(mib))
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
           sum(if(process_count = 0, seconds * unit_gpus, 0) ORDER BY at_s, uuid) FILTER (process_count IS NOT NULL)
               / 3600 AS held_idle_hours,
           sum(energy_j * seconds / interval_s ORDER BY at_s, uuid) AS energy_j,
           list_sort(list_distinct(list(method))) AS methods
    FROM parts WHERE seconds > 0 GROUP BY run
),
tails AS (
    SELECT run, max(until_s)
               - coalesce(max(until_s) FILTER (gpu_util_pct > 0 OR sm_active_pct > 0), min(since_s)) AS tail_s
    FROM parts WHERE inside AND coalesce(gpu_util_pct, sm_active_pct) IS NOT NULL
    GROUP BY run HAVING max(grain_s) <= 60
),
host_parts AS MATERIALIZED (
    SELECT r.run, h.*, h.at_s <= r.to_s OR h.grain_s > 0 AS inside,
           least(h.at_s, r.to_s) - greatest(h.at_s - h.interval_s, r.from_s) AS seconds
    FROM runs r JOIN hosts h
      ON h.job_id = r.job_id_raw AND h.cluster = r.cluster
     AND h.at_s > r.from_s AND h.at_s - h.interval_s < r.to_s
),
host_used AS (
    SELECT run, sum(cores) AS cores, sum(read_mib) AS read_mib, sum(written_mib) AS written_mib
    FROM (SELECT run,
                 sum(cpu_s * seconds / interval_s ORDER BY at_s)
                     / sum(seconds ORDER BY at_s) FILTER (cpu_s IS NOT NULL) AS cores,
                 sum(read_mib * seconds / interval_s ORDER BY at_s) AS read_mib,
                 sum(written_mib * seconds / interval_s ORDER BY at_s) AS written_mib
          FROM host_parts WHERE seconds > 0 GROUP BY run, node ORDER BY run, node)
    GROUP BY run
),
host_peaks AS (
    SELECT run, max(host_mem_mib) AS host_mem_mib FROM host_parts WHERE inside GROUP BY run
),
joined AS (
    SELECT r.*, u.* EXCLUDE (run), p.peak_mib, t.tail_s, h.* EXCLUDE (run), m.host_mem_mib,
           gpus * hours AS allocated, devices * span_s AS device_s,
           u.methods IS NULL AND mean_gpu_util_pct IS NOT NULL AS by_mean
    FROM runs r LEFT JOIN used u USING (run) LEFT JOIN peaks p USING (run) LEFT JOIN tails t USING (run)
         LEFT JOIN host_used h USING (run) LEFT JOIN host_peaks m USING (run)
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
       coalesce(shared_hours, 0), held_idle_hours, tail_s, energy_j, cores, host_mem_mib, read_mib, written_mib,
       CASE WHEN by_mean THEN [$job_mean] ELSE coalesce(methods, []) END
FROM joined ORDER BY start_s, job_id, cluster, end_s, submit_s
"""  # noqa: S608


def job_usage(store: Store, since_s: float, until_s: float, now_s: float) -> list[JobUsage]:
    """Return every run that had a GPU, or a share of one, inside [since, until).

    Raises:
        StoreError: the store cannot be read.
    """
    window = {"since": since_s, "until": until_s, "now": now_s, "job_mean": JOB_MEAN}
    rows = store.rows(_SWEEP, window, since_s, until_s)
    return [JobUsage(*row)._replace(methods=tuple(row[-1])) for row in rows]


def runs_in_window(store: Store, since_s: float, until_s: float, now_s: float) -> tuple[int, int]:
    """Return how many runs overlap [since, until), and how many of them had no GPU.

    Raises:
        StoreError: the store cannot be read.
    """
    query = f"""
        SELECT count(*), coalesce(sum((devices = 0)::INT), 0)
        FROM (SELECT *, {_LAST} AS last_s FROM allocations)
        WHERE start_s < $until AND last_s > $since AND last_s >= start_s
    """  # noqa: S608
    ((runs, without_gpu),) = store.rows(query, {"since": since_s, "until": until_s, "now": now_s}, since_s, until_s)
    return int(runs), int(without_gpu)

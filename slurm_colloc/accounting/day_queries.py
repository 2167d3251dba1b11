# SPDX-License-Identifier: Apache-2.0
"""What is added up of one day's samples: the tables of its parts, and the queries that make them.

What they add up are whole numbers (sweep.py). A query is of one day; it names its ends ``$day_since`` and
``$day_until``, and those of the window ``$since`` and ``$until``.
"""

from duckdb import DuckDBPyConnection

from slurm_colloc.accounting.over_time import TIME_PARTS, Bins, cut_query, make_bins, time_queries
from slurm_colloc.measured import MEASURED

FIX = 65_536

# The runs near a day: of a month of them each of its queries would read all.
_DAY_RUNS = """
    SELECT run, cluster, job_id_raw, from_s, to_s,
           if(NOT whole AND blocked IS NULL, 100 * gpus, 100) AS most_pct FROM runs
    WHERE devices > 0 AND from_s < $day_until AND to_s > $day_since
"""
# What of a day's rows lies inside a run and the window. A reading after the run's end may be the next run's: it counts
# for sums as far as it reaches into the run, and for no peak; of merged rows that reach beyond it a part is this run's.
_INSIDE = """
    SELECT r.run, r.most_pct, s.*, s.at_s <= r.to_s OR s.grain_s > 0 AS inside,
           greatest(s.at_s - s.interval_s, r.from_s) AS began_s, least(s.at_s, r.to_s) AS ended_s,
           round((ended_s - began_s) * 1e6)::BIGINT AS us
    FROM {view} s JOIN {runs} r ON s.job_id = r.job_id_raw AND s.cluster = r.cluster
    WHERE s.at_s > r.from_s AND s.at_s - s.interval_s < r.to_s
"""


def _inside(view: str, runs: str = "day_runs") -> str:
    """Return a query of the rows of ``view`` inside ``runs``, which has columns of day_runs."""
    return _INSIDE.format(view=view, runs=runs)


# What of a GPU a share used beyond what it was given of it; 0 where that is not known, as greatest() has it.
_BEYOND = "greatest(0, sm_active_pct - most_pct)"
_ACTIVE = "gpu_util_pct > 0 OR sm_active_pct > 0"
# Whoever else profiles a GPU takes its counters away: they read 0 while kernels run.
_BLACKOUT = "sm_active_pct = 0 AND gpu_util_pct >= 10"
# Where nobody knows whether kernels run (slices have no GPU_UTIL), nobody knows whether a 0 is one.
_UNPROVEN = "sm_active_pct = 0 AND gpu_util_pct IS NULL"
# SM activity alone on a whole GPU. As in evidence, GPU_UTIL, an upper bound, stands in where the driver offers none,
# and a split among neighbours is not good enough.
_ALONE = f"if(inside AND profile = '' AND method = '{MEASURED}', coalesce(sm_active_pct, gpu_util_pct), NULL)"
_COUNTED = "inside AND coalesce(gpu_util_pct, sm_active_pct) IS NOT NULL"


def _over_time(value: str) -> str:
    """Return SQL for the sum of ``value``, a percentage, over time."""
    return f"sum(us * round({value}::DOUBLE * {FIX})::BIGINT)::BIGINT"


def _part(value: str) -> str:
    """Return SQL for the millionths of ``value``, which a whole interval came to, in the part of it that counts."""
    return f"sum(round({value}::DOUBLE * us / nullif(interval_s, 0)))::BIGINT"


# Each day's part of the work, table -> columns, and the queries that make them.
PARTS = {
    "unit_parts": "run BIGINT, node VARCHAR, uuid VARCHAR, method VARCHAR, "
    "unit_gpus DOUBLE, us BIGINT, whole_us BIGINT, util_us BIGINT, util_fix BIGINT, sm_us BIGINT, sm_fix BIGINT, "
    "beyond_fix BIGINT, gpu_model VARCHAR, alone_us BIGINT, ran_us BIGINT, alone_fix BIGINT, "
    "shared_us BIGINT, held_us BIGINT, idle_us BIGINT, direct_us BIGINT, blackout_us BIGINT, "
    "energy_uj BIGINT, peak_mib BIGINT, first_s DOUBLE, last_s DOUBLE, active_s DOUBLE, grain_s INTEGER",
    "peak_parts": "run BIGINT, peak_mib BIGINT",
    "host_parts": "run BIGINT, node VARCHAR, cpu_us BIGINT, "
    "cpu_used_us BIGINT, read_umib BIGINT, written_umib BIGINT, host_mem_mib BIGINT",
    "device_parts": "cluster VARCHAR, node VARCHAR, uuid VARCHAR, unit_gpus DOUBLE, gpu_model VARCHAR, "
    "profile VARCHAR, jobs INTEGER, us BIGINT, stray_us BIGINT, stray_last_s DOUBLE, jobs_us BIGINT",
}
_DAY = {
    "unit_parts": f"""
        SELECT run, node, uuid, method, max(unit_gpus) AS unit_gpus, sum(us)::BIGINT AS us,
                   -- Beyond the run's ends, too: they are whole seconds, a reading is for the time since the last.
                   sum(round((least(at_s, $until) - greatest(at_s - interval_s, $since)) * 1e6))::BIGINT AS whole_us,
                   sum(if(gpu_util_pct IS NULL, 0, us))::BIGINT AS util_us,
                   {_over_time("gpu_util_pct")} AS util_fix,
                   sum(if(sm_active_pct IS NULL, 0, us))::BIGINT AS sm_us,
                   {_over_time("sm_active_pct")} AS sm_fix, {_over_time(_BEYOND)} AS beyond_fix,
                   max(gpu_model) AS gpu_model, sum(if({_ALONE} IS NULL, 0, us))::BIGINT AS alone_us,
                   sum(if({_ALONE} > 0, us, 0))::BIGINT AS ran_us, {_over_time(_ALONE)} AS alone_fix,
                   sum(if(sharers > 1, us, 0))::BIGINT AS shared_us,
                   sum(round(us / greatest(sharers, 1)))::BIGINT AS held_us,
                   -- A device that worked had a process, which was gone when the list was read.
                   sum(CASE WHEN process_count = 0 AND NOT coalesce({_ACTIVE}, false) THEN us
                            WHEN process_count IS NOT NULL THEN 0 END)::BIGINT AS idle_us,
                   sum(CASE WHEN direct_count > 0 THEN us WHEN direct_count IS NOT NULL THEN 0 END)::BIGINT
                       AS direct_us,
                   if(coalesce(bool_or({_UNPROVEN}), false), NULL, sum(if({_BLACKOUT}, us, 0)))::BIGINT AS blackout_us,
                   {_part("energy_j")} AS energy_uj,
                   max(if(inside, gpu_mem_used_mib, NULL)) AS peak_mib,
                   min(if({_COUNTED}, began_s, NULL)) AS first_s, max(if({_COUNTED}, ended_s, NULL)) AS last_s,
                   max(if({_COUNTED} AND ({_ACTIVE}), ended_s, NULL)) AS active_s, max(grain_s) AS grain_s
            FROM ({_inside("shares")}) GROUP BY run, node, uuid, method HAVING sum(us) > 0
    """,
    # Of a run on several devices: what they held at one time, or in one minute or day where no more is left.
    "peak_parts": f"""
        WITH on_several AS (
            FROM day_runs SEMI JOIN (
                SELECT run FROM day_unit_parts GROUP BY run HAVING min(node) != max(node) OR min(uuid) != max(uuid)
            ) USING (run)
        ),
        several AS (
            SELECT run, node, uuid, pass_s, grain_s, gpu_mem_used_mib AS mib
            FROM ({_inside("shares", "on_several")}) WHERE inside
        ),
        passes AS (
            SELECT run, CASE WHEN count(*) = count(mib) THEN sum(mib) END AS mib FROM (
                SELECT run, node, pass_s, mib FROM several WHERE grain_s = 0
                UNION ALL
                SELECT run, node, pass_s, max(mib) FROM several WHERE grain_s > 0 GROUP BY run, node, pass_s, uuid)
            GROUP BY run, node, pass_s
        )
        SELECT run, max(mib)::BIGINT AS peak_mib FROM passes GROUP BY run
    """,
    "host_parts": f"""
        SELECT run, node, sum(if(cpu_s IS NULL, 0, us))::BIGINT AS cpu_us,
                   {_part("cpu_s")} AS cpu_used_us, {_part("read_mib")} AS read_umib,
                   {_part("written_mib")} AS written_umib,
                   max(if(inside, host_mem_mib, NULL)) AS host_mem_mib
            FROM ({_inside("hosts")}) GROUP BY run, node HAVING sum(us) > 0
    """,
    # Each reading of a device has one row of nobody's.
    "device_parts": """
        SELECT cluster, node, uuid, max(unit_gpus) AS unit_gpus, max(gpu_model) AS gpu_model, max(profile) AS profile,
               sharers AS jobs, sum(if(job_id = '', us, 0))::BIGINT AS us,
               sum(if(job_id = '' AND process_count > 0, us, 0))::BIGINT AS stray_us,
               max(if(job_id = '' AND process_count > 0, at_s, NULL)) AS stray_last_s,
               sum(if(job_id != '', us, 0))::BIGINT AS jobs_us
        FROM (SELECT *, round((least(at_s, $until) - greatest(at_s - interval_s, $since)) * 1e6)::BIGINT AS us
              FROM shares WHERE at_s > $since AND at_s - interval_s < $until)
        GROUP BY cluster, node, uuid, sharers
    """,
}

_DAY |= time_queries(FIX)


def parts_of(bins: Bins | None) -> dict[str, str]:
    """Return the tables of a day's parts, table -> columns: PARTS, and those that ``bins`` ask for."""
    return PARTS | (TIME_PARTS if bins else {})


def make_parts(database: DuckDBPyConnection, bins: Bins | None = None, kind: str = "TEMP TABLE") -> None:
    """Make the tables of ``parts_of``, empty, and those of the bins."""
    for name, columns in parts_of(bins).items():
        database.execute(f"CREATE {kind} {name} ({columns})")
    if bins:
        make_bins(database, bins)


def day_queries(bins: Bins | None) -> dict[str, str]:
    """Return the queries of a day in the order in which they are run, by what the table of each is called."""
    cut = {"cut": cut_query(_inside("shares"), FIX, f"sm_active_pct - {_BEYOND}")} if bins else {}
    return {"day_runs": _DAY_RUNS, **cut, **{f"day_{name}": _DAY[name] for name in parts_of(bins)}}

# SPDX-License-Identifier: Apache-2.0
"""Adds up what each run used inside a window, from accounting rows and stored facts.

A sample stands for (at - interval, at]. It counts for a run as far as that interval, the run and the window overlap,
so that splitting a window never changes a sum. What is added up are whole numbers (microseconds, 1/65536 of a percent
times them, millionths of a joule or a MiB), so that neither order nor place changes a sum.
"""

import os
from collections.abc import Iterable, Mapping
from math import ceil
from string import Template
from typing import Any

from duckdb import DuckDBPyConnection

from slurm_colloc.accounting.facts import FIX, USE, Days, add_parts, days_of, make_parts
from slurm_colloc.accounting.over_time import Bins, make_pieces
from slurm_colloc.accounting.parquet import named, sql
from slurm_colloc.accounting.samples import files_of_facts
from slurm_colloc.accounting.store import SEVERAL, Store, once
from slurm_colloc.accounting.window import Step, Window, ignore
from slurm_colloc.usage_model import JobUsage

# For what a page and an audit ask of a file; twice as much is no faster.
_FILE_MEMORY = "220MB"
# So many runs at most are added up at once: 230,000 do not fit into that memory.
_RUNS_AT_ONCE = 125_000


KEY = "cluster, job_id_raw, start_s"

# A run without an end counts as far as it was known to run: up to the ingest that saw it, or until it began anew.
# sacct gives the length of suspensions, not their place: they are taken to be spread evenly over the run.
_OPEN = """
CREATE TEMP TABLE open AS
SELECT o.cluster, o.job_id_raw, o.start_s, bool_or(r.start_s = o.start_s AND r.end_s IS NOT NULL) AS ended,
       min(r.start_s) FILTER (r.start_s > o.start_s) AS next_s
FROM (SELECT DISTINCT cluster, job_id_raw, start_s FROM readings WHERE end_s IS NULL AND start_s < $until) o
JOIN readings r USING (cluster, job_id_raw) GROUP BY ALL
"""
# A run's readings that end before the window while others do not: which of them counts depends on no window.
_OUTDATED = f"""
CREATE TEMP TABLE outdated AS
SELECT r.* FROM readings r SEMI JOIN (
    SELECT {KEY} FROM readings WHERE start_s < $since AND (end_s IS NULL OR end_s > $since)
) n USING ({KEY})
WHERE r.start_s < $since AND r.end_s <= $since
"""
_NEAR = """
CREATE TEMP VIEW near AS
SELECT * FROM readings WHERE start_s < $until AND (end_s IS NULL OR end_s > $since OR start_s >= $since)
UNION ALL FROM outdated
"""
_SEVERAL = f"CREATE TEMP TABLE several AS {SEVERAL.format(source='near')}"
# ``run`` is a run's number in this sweep, by which the parts of days are joined to it: joins by three names cost more.
_RUNS = f"""
CREATE $kind runs AS
WITH picked AS NOT MATERIALIZED ({once("near", several="several")}),
ends AS NOT MATERIALIZED (
    SELECT p.*, coalesce(p.end_s, least($now, p.ingested_s, o.next_s)) AS last_s,
           if(d.text IS NULL, '', p.node_list) AS place
    FROM picked p LEFT JOIN open o USING (cluster, job_id_raw, start_s) LEFT JOIN placed d ON d.text = p.gres
    WHERE p.end_s IS NOT NULL OR o.ended IS NOT true
)
SELECT $number AS run, e.* EXCLUDE (node_list, place), w.* EXCLUDE (text, place),
       -- A share that is seen to use more than it was given of a GPU.
       if(NOT whole AND blocked IS NULL, 100 * gpus, 100) AS most_pct,
       greatest(start_s, $since)::DOUBLE AS from_s, least(last_s, $until)::DOUBLE AS to_s,
       to_s - from_s AS span_s,
       span_s * greatest(0, 1 - coalesce(suspended_s / nullif(last_s - start_s, 0), 0)) / 3600 AS hours
FROM ends e JOIN equivalents w ON w.text = e.gres AND w.place = e.place
WHERE (last_s > $since OR start_s >= $since) AND last_s >= start_s
"""

# DECIMAL, because sums of it do not depend on their order.
_HOURS = "sum(CAST({} * unit_gpus / 3.6e9 AS DECIMAL(38, 12)))::DOUBLE"


def _at_most(value: str, bound: str) -> str:
    """Return SQL for the smaller of two numbers; NULL where either is, which least() passes over."""
    return f"CASE WHEN {value} > {bound} THEN {bound} WHEN {bound} IS NOT NULL THEN {value} END"


# Of a run whose size is not known nobody can say how much of it was measured, or used. Of a share's use counts what it
# was given. Of others no more was used than measured: it is a time under two names, or one outside suspensions.
_USAGE = f"""
WITH used AS (
    SELECT run, sum(us) FILTER (us > 0) / 1e6 AS seconds,
           sum(util_us) / 1e6 AS util_seconds, sum(sm_us) / 1e6 AS sm_seconds,
           {_HOURS.format(f"util_fix / {FIX * 100}")} AS util_hours,
           {_HOURS.format(f"sm_fix / {FIX * 100}")} AS sm_hours,
           {_HOURS.format(f"beyond_fix / {FIX * 100}")} AS beyond_hours,
           sum(shared_us) / 3.6e9 AS shared_hours, {_HOURS.format("held_us")} AS seen_held_hours,
           {_HOURS.format("idle_us")} AS held_idle_hours, sum(direct_us) / 1e6 AS direct_s,
           if(count(*) = count(blackout_us), sum(blackout_us) / 1e6, NULL) AS blackout_s,
           sum(energy_uj) / 1e6 AS energy_j,
           max(peak_mib) AS unit_peak_mib,
           max(last_s) - coalesce(max(active_s), min(first_s)) AS tail_s,
           max(last_s) AS last_seen_s,
           list_sort(list_distinct(list(method) FILTER (us > 0))) AS methods
    FROM unit_parts WHERE {{part}} GROUP BY run HAVING sum(us) > 0
),
peaks AS (
    SELECT run, max(peak_mib) AS several_peak_mib, true AS several FROM peak_parts WHERE {{part}} GROUP BY ALL
),
host_used AS (
    SELECT run, sum(cores)::DOUBLE AS cores, sum(read_mib)::DOUBLE AS read_mib,
           sum(written_mib)::DOUBLE AS written_mib, max(mib) AS host_mem_mib,
           count(*) AS host_nodes, min(cpu_us) / 1e6 AS host_s
    FROM (SELECT run, (sum(cpu_used_us) / nullif(sum(cpu_us), 0))::DECIMAL(38, 9) AS cores,
                 (sum(read_umib) / 1e6)::DECIMAL(38, 9) AS read_mib,
                 (sum(written_umib) / 1e6)::DECIMAL(38, 9) AS written_mib, max(host_mem_mib) AS mib,
                 sum(cpu_us) AS cpu_us
          FROM host_parts WHERE {{part}} GROUP BY run, node)
    GROUP BY ALL
)
SELECT r.*, gpus * hours AS allocated, devices * span_s AS device_s,
       seconds IS NULL AND mean_method IS NOT NULL AS by_mean,
       -- Of a share nobody knows what it held of a GPU while no sample tells how many held it.
       CASE WHEN blocked IS NOT NULL THEN blocked * span_s / 3600 ELSE seen_held_hours END AS held,
       CASE WHEN blocked IS NOT NULL THEN 0 ELSE greatest(0, span_s - coalesce(seconds, 0)) / 3600 END AS held_unknown,
       allocated * CASE WHEN NOT whole OR by_mean AND mean_gpu_util_pct IS NULL THEN 0
                        WHEN by_mean THEN least(1, coalesce(mean_gpus / devices, 1))
                        ELSE least(1, coalesce(util_seconds / device_s, 0)) END AS util_measured,
       CASE WHEN whole AND by_mean THEN util_measured * mean_gpu_util_pct / 100
            WHEN whole THEN {_at_most("util_hours", "util_measured")} END AS util_used,
       allocated * least(1, coalesce(sm_seconds / device_s, 0)) AS sm_measured,
       -- Samples know units by slices; used and allocated must be by one convention.
       (sm_hours - beyond_hours) * coalesce(gpus / nullif(blocked, 0), 1) AS sm_within,
       {_at_most("sm_within", "sm_measured")} AS sm_used, if(allocated IS NULL, NULL, beyond_hours) AS sm_beyond,
       sm_hours, sm_seconds,
       sm_hours IS NOT NULL OR whole AND if(by_mean, mean_gpu_util_pct, util_hours) IS NOT NULL AS measured,
       CASE WHEN by_mean THEN mean_gpu_mem_mib WHEN several THEN several_peak_mib ELSE unit_peak_mib END AS peak_mib,
       CASE WHEN NOT by_mean THEN 100 * least(1, coalesce(seconds / device_s, 0)) END AS coverage_pct,
       shared_hours, held_idle_hours, direct_s, blackout_s, tail_s,
       to_s - last_seen_s AS unseen_s, energy_j,
       cores, host_mem_mib, h.read_mib, h.written_mib,
       CASE WHEN host_nodes >= nodes THEN 100 * least(1, host_s / nullif(span_s, 0)) END AS host_pct,
       CASE WHEN by_mean THEN [mean_method] ELSE coalesce(methods, []) END AS methods
FROM runs r LEFT JOIN used u USING (run) LEFT JOIN peaks p USING (run) LEFT JOIN host_used h USING (run)
WHERE devices > 0 AND {{part}}
"""

_OF_JOB = """
SELECT cluster, job_id, job_id_raw, "user", account, "partition", qos, state, job_name, shown AS gres, kind AS gpu_type,
       from_s AS start_s, to_s AS end_s, allocated AS allocated_gpu_hours, held AS held_gpu_hours,
       held_unknown AS held_unknown_hours, util_measured AS util_measured_gpu_hours,
       util_used AS util_used_gpu_hours, sm_measured AS sm_measured_gpu_hours, sm_used AS sm_used_gpu_hours,
       sm_beyond AS sm_beyond_gpu_hours, peak_mib AS gpu_mem_peak_mib, coverage_pct, shared_hours,
       held_idle_hours AS held_idle_gpu_hours, tail_s AS idle_tail_s, energy_j, cores AS cpu_cores_used,
       host_mem_mib AS host_mem_peak_mib, read_mib, written_mib, methods
"""
_ORDER = "usage.start_s, job_id, cluster, usage.end_s, submit_s"
_JOB_USAGE = f"{_OF_JOB} FROM usage ORDER BY {_ORDER}"
_LAST = f"""
{_OF_JOB} FROM usage
QUALIFY row_number() OVER (PARTITION BY "user" ORDER BY usage.start_s DESC, job_id, cluster, submit_s) <= $runs
ORDER BY "user", usage.start_s DESC, job_id, cluster, submit_s
"""


def aggregate(
    database: DuckDBPyConnection,
    store: Store,
    window: Window,
    bins: Bins | None = None,
    *,
    in_file: bool = False,
    step: Step = ignore,
) -> Days:
    """Make ``runs``, their parts and ``usage`` in a database of ``store.connect``; tell ``step`` of days.

    With ``bins`` the parts are by time, too. Returned is where what was sampled came from.

    Args:
        database: where to.
        store: of it.
        window: whose runs.
        bins: by which a page is cut.
        in_file: for who asks for every run again and again, as a page does: all lies in a file beside what the database
            spills, and ``usage`` is a table there, added up once. It takes a third of the memory, and twice the time.
        step: is told of days.
    """
    in_file = in_file or bins is not None
    sampled = bool(store.samples.days(window.since_s, window.until_s) or files_of_facts(store.samples.folder))
    if in_file:
        ((folder,),) = database.execute("SELECT current_setting('temp_directory')").fetchall()
        database.execute(f"ATTACH '{sql(os.path.join(folder, 'swept'))}' AS swept")
        # Here is made what is made from now on, and looked for first.
        database.execute("SET search_path = 'swept,memory'")
        database.execute(f"SET memory_limit = '{_FILE_MEMORY}'")
    kind = "TABLE" if in_file else "TEMP TABLE"
    # Where no sample asks for runs again and again, they are added up as they are read.
    find_runs(database, window, kind if sampled or in_file else "TEMP VIEW")
    make_parts(database, USE, bins, kind)
    days = Days((), {}, False)
    if sampled:
        days = days_of(database, store, window)
        add_parts(database, store, window, days, USE, bins, step)
    if not in_file:
        database.execute(f"CREATE TEMP VIEW usage AS {_USAGE.format(part='true')}")
        return days
    for number, part in enumerate(parts_of_runs(database)):
        made = "INSERT INTO usage" if number else "CREATE TABLE usage AS"
        database.execute(f"{made} {_USAGE.format(part=part)}")
    if bins:
        make_pieces(database)
    return days


def sweep_some(
    database: DuckDBPyConnection, store: Store, window: Window, condition: str, asked: Mapping[str, str]
) -> Days:
    """Make what ``sweep`` makes of the runs in ``window`` that a condition holds for; nothing of all others."""
    find_runs(database, window)
    days = days_of(database, store, window)
    database.execute(f"DELETE FROM runs WHERE NOT ({condition})", asked)
    make_parts(database)
    add_parts(database, store, window, days)
    database.execute(f"CREATE TEMP VIEW usage AS {_USAGE.format(part='true')}")
    return days


def parts_of_runs(database: DuckDBPyConnection) -> list[str]:
    """Return conditions on ``run``, each for another part of ``runs`` that can be added up in memory."""
    ((runs,),) = database.execute("SELECT count(*) FROM runs").fetchall()
    parts = max(1, ceil(int(runs) / _RUNS_AT_ONCE))
    size = int(runs) // parts + 1
    return [f"run > {number * size} AND run <= {(number + 1) * size}" for number in range(parts)]


def find_runs(database: DuckDBPyConnection, window: Window, kind: str = "TEMP TABLE") -> None:
    """Make the table, or the view, ``runs`` of what overlaps ``window``."""
    find_near(database, window)
    # A view would count anew each time that it is read; there are no parts of its runs.
    number = "NULL::BIGINT" if kind.endswith("VIEW") else "row_number() OVER ()"
    database.execute(Template(_RUNS).substitute(_literal(window), kind=kind, number=number))


def find_near(database: DuckDBPyConnection, window: Window) -> None:
    """Make what ``runs`` are made of: the readings near ``window``, and which of them have no end or are repeated."""
    for query in (_OPEN, _OUTDATED, _NEAR, _SEVERAL):
        database.execute(Template(query).substitute(_literal(window)))


def _literal(window: Window) -> dict[str, str]:
    # A view takes no parameters.
    return {name: f"'{value}'::DOUBLE" for name, value in window.parameters.items()}


def job_usage(store: Store, since_s: float, until_s: float, now_s: float) -> list[JobUsage]:
    """Return every run that had a GPU, or a share of one, inside [since, until).

    Raises:
        StoreError: the store cannot be read.
    """
    with store.connect(since_s, until_s) as database:
        aggregate(database, store, Window(since_s, until_s, now_s))
        return usages_of(database)


def last_usages(database: DuckDBPyConnection, runs: int) -> list[JobUsage]:
    """Return of each user in ``usage`` the runs that began last, at most so many, the last first."""
    return _usages(named(database, _LAST, {"runs": runs}))


def usages_of(database: DuckDBPyConnection) -> list[JobUsage]:
    """Return the runs in ``usage``."""
    return _usages(named(database, _JOB_USAGE))


def _usages(rows: Iterable[dict[str, Any]]) -> list[JobUsage]:
    return [JobUsage(**{**row, "methods": tuple(row["methods"])}) for row in rows]

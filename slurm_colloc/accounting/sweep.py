# SPDX-License-Identifier: Apache-2.0
"""Sample intervals against allocation intervals -> what each run used inside a window.

A sample stands for (at - interval, at]. It counts for a run as far as that interval, the run and the window overlap,
so that splitting a window never changes a sum. The work is cut by the days of the samples' files: ``find_runs`` once,
``day_parts`` for each day, in whatever order and place, then ``merge``. What is added up are whole numbers
(microseconds, 1/65536 of a percent times them, millionths of a joule or a MiB), so that neither order nor place changes
a sum.
"""

import os
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from math import inf
from string import Template
from typing import NamedTuple

from duckdb import DuckDBPyConnection

from slurm_colloc.accounting.alone import ALONE_PARTS, alone_queries
from slurm_colloc.accounting.over_time import TIME_PARTS, Bins, cut_query, make_bins, make_pieces, time_queries
from slurm_colloc.accounting.parquet import sql
from slurm_colloc.accounting.runs import RUNAWAY
from slurm_colloc.accounting.samples import DAY
from slurm_colloc.accounting.store import SEVERAL, Store, once
from slurm_colloc.measured import JobUsage

_FIX = 65_536
_KEY = "cluster, job_id_raw, start_s"
# For what a page, or an audit, asks of a file; twice as much is no faster.
_FILE_MEMORY = "200MB"
# Runs are added up in as many parts: what is added up of all at once would not fit.
_PARTS_OF_RUNS = 8


# Is told how many pieces of the work are done, of how many.
Step = Callable[[int, int], None]


def ignore(done: int, of: int) -> None:
    """Tell nobody."""


class Window(NamedTuple):
    """[since, until), seen from ``now``: what still runs then has run until then."""

    since_s: float
    until_s: float
    now_s: float

    @property
    def parameters(self) -> dict[str, float]:
        """Return what queries call it."""
        return {"since": self.since_s, "until": self.until_s, "now": self.now_s}


class RunCount(NamedTuple):
    """Runs in a window, those without a GPU among them, and the clusters of those with one."""

    runs: int
    without_gpu: int
    clusters: tuple[str, ...]


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
    SELECT {_KEY} FROM readings WHERE start_s < $since AND (end_s IS NULL OR end_s > $since)
) n USING ({_KEY})
WHERE r.start_s < $since AND r.end_s <= $since
"""
_NEAR = """
CREATE TEMP VIEW near AS
SELECT * FROM readings WHERE start_s < $until AND (end_s IS NULL OR end_s > $since OR start_s >= $since)
UNION ALL FROM outdated
"""
_SEVERAL = f"CREATE TEMP TABLE several AS {SEVERAL.format(source='near')}"
_RUNS = f"""
CREATE $kind runs AS
WITH picked AS NOT MATERIALIZED ({once("near", several="several")}),
ends AS NOT MATERIALIZED (
    SELECT p.*, coalesce(p.end_s, least($now, p.ingested_s, o.next_s)) AS last_s,
           if(d.text IS NULL, '', p.node_list) AS place
    FROM picked p LEFT JOIN open o USING (cluster, job_id_raw, start_s) LEFT JOIN placed d ON d.text = p.gres
    WHERE p.end_s IS NOT NULL OR o.ended IS NOT true
)
SELECT e.* EXCLUDE (gres, node_list, last_s, place), w.* EXCLUDE (text, place),
       greatest(start_s, $since)::DOUBLE AS from_s, least(last_s, $until)::DOUBLE AS to_s,
       to_s - from_s AS span_s,
       span_s * greatest(0, 1 - coalesce(suspended_s / nullif(last_s - start_s, 0), 0)) / 3600 AS hours
FROM ends e JOIN worths w ON w.text = e.gres AND w.place = e.place
WHERE (last_s > $since OR start_s >= $since) AND last_s >= start_s
"""

# What of a day's rows lies inside a run and the window. A reading after the run's end may be the next run's: it counts
# for sums as far as it reaches into the run, and for no peak; of merged rows that reach beyond it a part is this run's.
_INSIDE = """
    SELECT r.rowid AS run, s.*, s.at_s <= r.to_s OR s.grain_s > 0 AS inside,
           greatest(s.at_s - s.interval_s, r.from_s) AS began_s, least(s.at_s, r.to_s) AS ended_s,
           round((ended_s - began_s) * 1e6)::BIGINT AS us
    FROM {view} s JOIN runs r ON s.job_id = r.job_id_raw AND s.cluster = r.cluster
    WHERE r.devices > 0 AND s.at_s > r.from_s AND s.at_s - s.interval_s < r.to_s
      AND r.from_s < $day_until AND r.to_s > $day_since
"""
_ACTIVE = "gpu_util_pct > 0 OR sm_active_pct > 0"
# Whoever else profiles a GPU takes its counters away: they read 0 while kernels run.
_BLACKOUT = "sm_active_pct = 0 AND gpu_util_pct >= 10"
_COUNTED = "inside AND coalesce(gpu_util_pct, sm_active_pct) IS NOT NULL"


def _over_time(value: str) -> str:
    """Return SQL for the sum of ``value``, a percentage, over time."""
    return f"sum(us * round({value}::DOUBLE * {_FIX})::BIGINT)::BIGINT"


def _part(value: str) -> str:
    """Return SQL for the millionths of ``value``, which a whole interval came to, in the part of it that counts."""
    return f"sum(round({value}::DOUBLE * us / nullif(interval_s, 0)))::BIGINT"


# Each day's part of the work, table -> columns, and the queries that make them.
PARTS = {
    "unit_parts": "cluster VARCHAR, job_id_raw VARCHAR, start_s BIGINT, node VARCHAR, uuid VARCHAR, method VARCHAR, "
    "unit_gpus DOUBLE, us BIGINT, whole_us BIGINT, util_us BIGINT, util_fix BIGINT, sm_us BIGINT, sm_fix BIGINT, "
    "shared_us BIGINT, held_us BIGINT, idle_us BIGINT, direct_us BIGINT, blackout_us BIGINT, "
    "energy_uj BIGINT, peak_mib BIGINT, first_s DOUBLE, last_s DOUBLE, active_s DOUBLE, grain_s INTEGER",
    "peak_parts": "cluster VARCHAR, job_id_raw VARCHAR, start_s BIGINT, peak_mib BIGINT",
    "host_parts": "cluster VARCHAR, job_id_raw VARCHAR, start_s BIGINT, node VARCHAR, cpu_us BIGINT, "
    "cpu_used_us BIGINT, read_umib BIGINT, written_umib BIGINT, host_mem_mib BIGINT",
    "device_parts": "cluster VARCHAR, node VARCHAR, uuid VARCHAR, unit_gpus DOUBLE, gpu_model VARCHAR, "
    "profile VARCHAR, jobs INTEGER, us BIGINT, stray_us BIGINT, stray_last_s DOUBLE, jobs_us BIGINT",
}
_DAY = {
    "unit_parts": f"""
        SELECT {_KEY}, p.* EXCLUDE (run) FROM (
            SELECT run, node, uuid, method, max(unit_gpus) AS unit_gpus, sum(us)::BIGINT AS us,
                   -- Beyond the run's ends, too: they are whole seconds, a reading is for the time since the last.
                   sum(round((least(at_s, $until) - greatest(at_s - interval_s, $since)) * 1e6))::BIGINT AS whole_us,
                   coalesce(sum(us) FILTER (gpu_util_pct IS NOT NULL), 0)::BIGINT AS util_us,
                   {_over_time("gpu_util_pct")} AS util_fix,
                   coalesce(sum(us) FILTER (sm_active_pct IS NOT NULL), 0)::BIGINT AS sm_us,
                   {_over_time("sm_active_pct")} AS sm_fix,
                   coalesce(sum(us) FILTER (sharers > 1), 0)::BIGINT AS shared_us,
                   sum(round(us / greatest(sharers, 1)))::BIGINT AS held_us,
                   -- A device that worked had a process, which was gone when the list was read.
                   sum(if(process_count = 0 AND NOT coalesce({_ACTIVE}, false), us, 0))
                       FILTER (process_count IS NOT NULL)::BIGINT AS idle_us,
                   sum(if(direct_count > 0, us, 0)) FILTER (direct_count IS NOT NULL)::BIGINT AS direct_us,
                   sum(if({_BLACKOUT}, us, 0))::BIGINT AS blackout_us,
                   {_part("energy_j")} AS energy_uj,
                   max(gpu_mem_used_mib) FILTER (inside) AS peak_mib,
                   min(began_s) FILTER ({_COUNTED}) AS first_s, max(ended_s) FILTER ({_COUNTED}) AS last_s,
                   max(ended_s) FILTER ({_COUNTED} AND ({_ACTIVE})) AS active_s, max(grain_s) AS grain_s
            FROM ({_INSIDE.format(view="shares")}) GROUP BY run, node, uuid, method HAVING sum(us) > 0
        ) p JOIN runs r ON r.rowid = p.run
    """,
    # Of a run on several devices: what they held at one time, or in one minute or day where no more is left.
    "peak_parts": f"""
        WITH several AS (
            SELECT run, node, uuid, pass_s, grain_s, gpu_mem_used_mib AS mib
            FROM ({_INSIDE.format(view="shares")}) WHERE inside AND run IN (
                SELECT r.rowid FROM day_unit_parts JOIN runs r USING ({_KEY})
                GROUP BY 1 HAVING count(DISTINCT (node, uuid)) > 1)
        ),
        passes AS (
            SELECT run, CASE WHEN count(*) = count(mib) THEN sum(mib) END AS mib FROM (
                SELECT run, node, pass_s, mib FROM several WHERE grain_s = 0
                UNION ALL
                SELECT run, node, pass_s, max(mib) FROM several WHERE grain_s > 0 GROUP BY run, node, pass_s, uuid)
            GROUP BY run, node, pass_s
        )
        SELECT {_KEY}, max(mib)::BIGINT AS peak_mib FROM passes p JOIN runs r ON r.rowid = p.run GROUP BY ALL
    """,
    "host_parts": f"""
        SELECT {_KEY}, p.* EXCLUDE (run) FROM (
            SELECT run, node, coalesce(sum(us) FILTER (cpu_s IS NOT NULL), 0)::BIGINT AS cpu_us,
                   {_part("cpu_s")} AS cpu_used_us, {_part("read_mib")} AS read_umib,
                   {_part("written_mib")} AS written_umib,
                   max(host_mem_mib) FILTER (inside) AS host_mem_mib
            FROM ({_INSIDE.format(view="hosts")}) GROUP BY run, node HAVING sum(us) > 0
        ) p JOIN runs r ON r.rowid = p.run
    """,
    # Each reading of a device has one row of nobody's.
    "device_parts": """
        SELECT cluster, node, uuid, max(unit_gpus) AS unit_gpus, max(gpu_model) AS gpu_model, max(profile) AS profile,
               sharers AS jobs, coalesce(sum(us) FILTER (job_id = ''), 0)::BIGINT AS us,
               coalesce(sum(us) FILTER (job_id = '' AND process_count > 0), 0)::BIGINT AS stray_us,
               max(at_s) FILTER (job_id = '' AND process_count > 0) AS stray_last_s,
               coalesce(sum(us) FILTER (job_id != ''), 0)::BIGINT AS jobs_us
        FROM (SELECT *, round((least(at_s, $until) - greatest(at_s - interval_s, $since)) * 1e6)::BIGINT AS us
              FROM shares WHERE at_s > $since AND at_s - interval_s < $until)
        GROUP BY cluster, node, uuid, sharers
    """,
}

_DAY |= time_queries(_FIX)

# DECIMAL, because sums of it do not depend on their order.
_HOURS = "sum(CAST({} * unit_gpus / 3.6e9 AS DECIMAL(38, 12)))::DOUBLE"
_USAGE = f"""
WITH used AS (
    SELECT {_KEY}, sum(us) / 1e6 AS seconds, sum(util_us) / 1e6 AS util_seconds, sum(sm_us) / 1e6 AS sm_seconds,
           {_HOURS.format(f"util_fix / {_FIX * 100}")} AS util_hours,
           {_HOURS.format(f"sm_fix / {_FIX * 100}")} AS sm_hours,
           sum(shared_us) / 3.6e9 AS shared_hours, {_HOURS.format("held_us")} AS seen_held_hours,
           {_HOURS.format("idle_us")} AS held_idle_hours, sum(direct_us) / 1e6 AS direct_s,
           sum(blackout_us) / 1e6 AS blackout_s, sum(energy_uj) / 1e6 AS energy_j,
           max(peak_mib) AS unit_peak_mib,
           CASE WHEN max(grain_s) <= 60 THEN max(last_s) - coalesce(max(active_s), min(first_s)) END AS tail_s,
           max(last_s) AS last_seen_s,
           list_sort(list_distinct(list(method))) AS methods
    FROM unit_parts WHERE {{part}} GROUP BY ALL
),
peaks AS (
    SELECT {_KEY}, max(peak_mib) AS several_peak_mib, true AS several FROM peak_parts WHERE {{part}} GROUP BY ALL
),
host_used AS (
    SELECT {_KEY}, sum(cores)::DOUBLE AS cores, sum(read_mib)::DOUBLE AS read_mib,
           sum(written_mib)::DOUBLE AS written_mib, max(mib) AS host_mem_mib
    FROM (SELECT {_KEY}, (sum(cpu_used_us) / nullif(sum(cpu_us), 0))::DECIMAL(38, 9) AS cores,
                 (sum(read_umib) / 1e6)::DECIMAL(38, 9) AS read_mib,
                 (sum(written_umib) / 1e6)::DECIMAL(38, 9) AS written_mib, max(host_mem_mib) AS mib
          FROM host_parts WHERE {{part}} GROUP BY {_KEY}, node)
    GROUP BY ALL
)
SELECT r.*, gpus * hours AS allocated, devices * span_s AS device_s,
       seconds IS NULL AND mean_method IS NOT NULL AS by_mean,
       -- Of a share nobody knows what it held of a GPU while no sample tells how many held it.
       CASE WHEN blocked IS NOT NULL THEN blocked * span_s / 3600 ELSE seen_held_hours END AS held,
       CASE WHEN blocked IS NOT NULL THEN 0 ELSE greatest(0, span_s - coalesce(seconds, 0)) / 3600 END AS held_unknown,
       CASE WHEN NOT whole THEN 0
            WHEN by_mean THEN if(mean_gpu_util_pct IS NULL, 0, allocated * least(1, coalesce(mean_gpus / devices, 1)))
            ELSE coalesce(allocated * least(1, coalesce(util_seconds / device_s, 0)), 0) END AS util_measured,
       CASE WHEN NOT whole THEN NULL WHEN by_mean THEN util_measured * mean_gpu_util_pct / 100
            ELSE util_hours END AS util_used,
       coalesce(allocated * least(1, coalesce(sm_seconds / device_s, 0)), 0) AS sm_measured,
       -- Samples know units by slices; used and allocated must be by one convention.
       sm_hours * coalesce(gpus / nullif(blocked, 0), 1) AS sm_used, sm_hours, sm_seconds,
       util_used IS NOT NULL OR sm_used IS NOT NULL AS measured,
       CASE WHEN by_mean THEN mean_gpu_mem_mib WHEN several THEN several_peak_mib ELSE unit_peak_mib END AS peak_mib,
       CASE WHEN NOT by_mean THEN 100 * least(1, coalesce(seconds / device_s, 0)) END AS coverage_pct,
       coalesce(shared_hours, 0) AS shared_hours, held_idle_hours, direct_s, blackout_s, tail_s,
       to_s - last_seen_s AS unseen_s, energy_j,
       cores, host_mem_mib, h.read_mib, h.written_mib,
       CASE WHEN by_mean THEN [mean_method] ELSE coalesce(methods, []) END AS methods
FROM runs r LEFT JOIN used u USING ({_KEY}) LEFT JOIN peaks p USING ({_KEY}) LEFT JOIN host_used h USING ({_KEY})
WHERE devices > 0 AND {{part}}
"""

_OF_JOB = """
SELECT cluster, job_id, job_id_raw, "user", account, "partition", qos, state, job_name, shown, kind, from_s, to_s,
       allocated, held, held_unknown, util_measured, util_used, sm_measured, sm_used, peak_mib, coverage_pct,
       shared_hours, held_idle_hours, tail_s, energy_j, cores, host_mem_mib, read_mib, written_mib, methods
"""
_ORDER = "start_s, job_id, cluster, end_s, submit_s"
_JOB_USAGE = f"{_OF_JOB} FROM usage ORDER BY {_ORDER}"
_LAST = f"""
{_OF_JOB} FROM usage
QUALIFY row_number() OVER (PARTITION BY "user" ORDER BY start_s DESC, job_id, cluster, submit_s) <= $runs
ORDER BY "user", start_s DESC, job_id, cluster, submit_s
"""


def sweep(
    database: DuckDBPyConnection,
    store: Store,
    window: Window,
    bins: Bins | None = None,
    edges: Sequence[float] = (),
    *,
    step: Step = ignore,
) -> None:
    """Make ``runs``, the parts of all days and ``usage`` in a database of ``store.connect``; tell ``step`` of days.

    With ``bins`` the parts are by time, too, and with ``edges`` of SM activity by those, for what runs would have
    fitted.
    """
    days = store.samples.days(window.since_s, window.until_s)
    # Where no sample asks for runs again and again, they are added up as they are read.
    find_runs(database, window, kind="TEMP TABLE" if days or bins else "TEMP VIEW")
    make_parts(database, bins, edges)
    _add_days(database, store, window, days, bins, edges, step)
    merge(database, bins, edges)


def sweep_to_file(
    database: DuckDBPyConnection, store: Store, window: Window, edges: Sequence[float] = (), *, step: Step = ignore
) -> None:
    """Make what ``sweep`` makes in little memory, for those who ask for every run again and again.

    It lies in a file beside what the database spills, and ``usage`` is a table there, added up once.
    """
    _attach(database)
    # Here is made what is made from now on, and looked for first.
    database.execute("SET search_path = 'swept,memory'")
    database.execute(f"SET memory_limit = '{_FILE_MEMORY}'")
    find_runs(database, window, kind="TABLE")
    make_parts(database, edges=edges, kind="TABLE")
    _add_days(database, store, window, store.samples.days(window.since_s, window.until_s), None, edges, step)
    for number in range(_PARTS_OF_RUNS):
        query = _USAGE.format(part=f"hash(job_id_raw) % {_PARTS_OF_RUNS} = {number}")
        database.execute(f"{'INSERT INTO usage' if number else 'CREATE TABLE usage AS'} {query}")


def _add_days(
    database: DuckDBPyConnection,
    store: Store,
    window: Window,
    days: Sequence[str],
    bins: Bins | None,
    edges: Sequence[float],
    step: Step,
) -> None:
    for done, day in enumerate(days):
        step(done, len(days))
        day_parts(database, store, window, day, bins, edges)
        for name in parts_of(bins, edges):
            database.execute(f"INSERT INTO {name} FROM day_{name}")


def parts_of(bins: Bins | None, edges: Sequence[float] = ()) -> dict[str, str]:
    """Return the tables of a day's parts, table -> columns: PARTS, and those that ``bins`` and ``edges`` ask for."""
    return PARTS | (TIME_PARTS if bins else {}) | (ALONE_PARTS if edges else {})


def find_runs(database: DuckDBPyConnection, window: Window, kind: str = "TEMP TABLE") -> None:
    """Make the table, or the view, ``runs`` of what overlaps ``window``."""
    # A view takes no parameters.
    values = {name: f"'{value}'::DOUBLE" for name, value in window.parameters.items()}
    for query in (_OPEN, _OUTDATED, _NEAR, _SEVERAL, _RUNS):
        database.execute(Template(query).substitute(values, kind=kind))


def make_parts(
    database: DuckDBPyConnection, bins: Bins | None = None, edges: Sequence[float] = (), kind: str = "TEMP TABLE"
) -> None:
    """Make the tables of ``parts_of``, empty, and those of the bins."""
    for name, columns in parts_of(bins, edges).items():
        database.execute(f"CREATE {kind} {name} ({columns})")
    if bins:
        make_bins(database, bins)


def day_parts(
    database: DuckDBPyConnection,
    store: Store,
    window: Window,
    day: str,
    bins: Bins | None = None,
    edges: Sequence[float] = (),
) -> None:
    """Make the tables of ``parts_of``, with ``day_`` before their names, of what was sampled on ``day``.

    ``bins`` and ``edges`` are those that ``make_parts`` was given.
    """
    store.view_samples(database, window.since_s, window.until_s, day)
    since_s, until_s = _day_span(day)
    known = {"since": window.since_s, "until": window.until_s, "day_since": since_s, "day_until": until_s}
    every = _DAY | alone_queries(_INSIDE.format(view="shares"), edges)
    queries = {f"day_{name}": every[name] for name in parts_of(bins, edges)}
    if bins:
        queries = {"cut": cut_query(_INSIDE.format(view="shares"), _FIX), **queries}
    for name, query in queries.items():
        ends = {end: at_s for end, at_s in known.items() if f"${end}" in query}
        database.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS {query}", ends)


def _day_span(day: str) -> tuple[float, float]:
    """Return a time outside of which no reading in the files of ``day`` reaches, a day wider than it is on each side.

    Of a month or a year of runs only those near a day are then looked up in for its samples.
    """
    try:
        began_s = datetime.fromisoformat(day).replace(tzinfo=UTC).timestamp()
    except ValueError:  # files of release 0.1 have no day
        return -inf, inf
    # An interval is a day long at most, and ends in the day of its file.
    return began_s - 2 * DAY, began_s + 2 * DAY


def merge(database: DuckDBPyConnection, bins: Bins | None = None, edges: Sequence[float] = ()) -> None:
    """Make the view ``usage`` of runs with a GPU, or a share of one, from the parts of all days."""
    database.execute(f"CREATE TEMP VIEW usage AS {_USAGE.format(part='true')}")
    if bins:
        _settle(database, parts_of(bins, edges))


def _attach(database: DuckDBPyConnection) -> None:
    ((folder,),) = database.execute("SELECT current_setting('temp_directory')").fetchall()
    database.execute(f"ATTACH '{sql(os.path.join(folder, 'swept'))}' AS swept")


def _settle(database: DuckDBPyConnection, parts: Iterable[str]) -> None:
    """Put all that was made into a file beside what the database spills, and there, too, what runs had by bin.

    A page asks for every run again and again: in the file they are added up and compressed, and out of memory.
    """
    _attach(database)
    for name in ("runs", *parts):
        database.execute(f"CREATE TABLE swept.{name} AS FROM temp.{name}")
        database.execute(f"DROP TABLE temp.{name}")
        database.execute(f"CREATE TEMP VIEW {name} AS FROM swept.{name}")
    database.execute("CREATE TABLE swept.usage AS SELECT row_number() OVER () AS run, * FROM usage")
    database.execute("DROP VIEW usage")
    database.execute("CREATE TEMP VIEW usage AS FROM swept.usage")
    make_pieces(database)
    database.execute(f"SET memory_limit = '{_FILE_MEMORY}'")


def job_usage(store: Store, since_s: float, until_s: float, now_s: float) -> list[JobUsage]:
    """Return every run that had a GPU, or a share of one, inside [since, until).

    Raises:
        StoreError: the store cannot be read.
    """
    with store.connect(since_s, until_s) as database:
        sweep(database, store, Window(since_s, until_s, now_s))
        return usages_of(database)


def last_usages(database: DuckDBPyConnection, runs: int) -> list[JobUsage]:
    """Return of each user in ``usage`` the runs that began last, at most so many, the last first."""
    rows = database.execute(_LAST, {"runs": runs}).fetchall()
    return [JobUsage(*row)._replace(methods=tuple(row[-1])) for row in rows]


def usages_of(database: DuckDBPyConnection) -> list[JobUsage]:
    """Return the runs in ``usage``."""
    rows = database.execute(_JOB_USAGE).fetchall()
    return [JobUsage(*row)._replace(methods=tuple(row[-1])) for row in rows]


def count_runs(database: DuckDBPyConnection) -> RunCount:
    """Return how many runs there are in ``runs``, how many of them have no GPU, and whose the others are."""
    query = """
        SELECT count(*), count(*) FILTER (devices = 0),
               coalesce(list_sort(list(DISTINCT cluster) FILTER (devices > 0)), [])
        FROM runs
    """
    ((runs, without_gpu, clusters),) = database.execute(query).fetchall()
    return RunCount(int(runs), int(without_gpu), tuple(clusters))


def recorded_span(database: DuckDBPyConnection) -> tuple[float, float] | None:
    """Return from when to when runs are known, whatever the window; None where none is."""
    query = "SELECT min(start_s), max(coalesce(end_s, ingested_s)) FROM readings WHERE start_s IS NOT NULL"
    ((first_s, last_s),) = database.execute(query).fetchall()
    return None if first_s is None else (float(first_s), float(last_s))


def count_runaways(database: DuckDBPyConnection, until_s: float) -> int:
    """Return of how many runs that began before ``until_s`` nobody knows the end."""
    query = f"""
        SELECT count(DISTINCT (cluster, job_id_raw, start_s)) FROM readings r
        WHERE state = '{RUNAWAY}' AND start_s < $until AND NOT EXISTS (
            SELECT 1 FROM readings e WHERE e.cluster = r.cluster AND e.job_id_raw = r.job_id_raw
            AND e.start_s = r.start_s AND e.end_s IS NOT NULL)
    """
    ((runaways,),) = database.execute(query, {"until": until_s}).fetchall()
    return int(runaways)


def unaccounted_hours(database: DuckDBPyConnection) -> tuple[float, float]:
    """Return the sampled hours of jobs on GPUs and slices while accounting has no run of them, and of how many."""
    query = """
        SELECT coalesce(sum(jobs_us), 0) / 3.6e9, (SELECT coalesce(sum(whole_us), 0) / 3.6e9 FROM unit_parts)
        FROM device_parts
    """
    ((seen, matched),) = database.execute(query).fetchall()
    return max(0.0, seen - matched), float(seen)

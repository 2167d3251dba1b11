# SPDX-License-Identifier: Apache-2.0
"""Rows of sacct text -> the table ``taken`` of job runs, each column of its kind; rows that cannot be read are counted.

All of it is one query, because a site has millions of rows. Columns with few different texts (kinds of TRES,
local minutes) are read by the parsers that everything else uses, each text once. Times are epoch seconds, ISO 8601
with an offset, or local times of a known zone.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta, tzinfo
from functools import partial
from itertools import groupby
from operator import itemgetter
from types import MappingProxyType
from typing import Any, NamedTuple

import duckdb

from slurm_colloc.core.errors import InputError
from slurm_colloc.core.usage_model import AllocationRow, Lost
from slurm_colloc.slurm.gres import parse_tres_gres
from slurm_colloc.sources import tres_usage
from slurm_colloc.sources.jobstats import parse_blob
from slurm_colloc.sources.means import JobMeans
from slurm_colloc.sources.sacct_client import ELIGIBLE, FIELDS, LIMIT, bounded
from slurm_colloc.sources.tres_usage import Step, parse_tres_usage, step_means
from slurm_colloc.store.equivalents import GRES_ALONE
from slurm_colloc.store.queries import kinds_of, make_rows, query, quoted, sql
from slurm_colloc.store.text_rows import HEADER, LONGEST_S, Form, Rows, add_up_lost, read_rows

_MEANS = kinds_of("mean_gpu_util_pct DOUBLE, mean_gpu_mem_mib BIGINT, mean_gpus INTEGER, mean_method VARCHAR")
MEANS = tuple(_MEANS)
ALLOCATION_COLUMNS = kinds_of(
    "cluster VARCHAR, job_id VARCHAR, job_id_raw VARCHAR, user VARCHAR, account VARCHAR, partition VARCHAR, "
    "qos VARCHAR, state VARCHAR, submit_s BIGINT, start_s BIGINT, end_s BIGINT, suspended_s BIGINT, "
    "node_list VARCHAR, job_name VARCHAR, gres VARCHAR, work_dir VARCHAR, limit_min INTEGER, eligible_s BIGINT"
)
ALLOCATION_COLUMNS |= _MEANS | {"ingested_s": "DOUBLE"}
RUNAWAY = "RUNAWAY"
_FUTURE_S = 86_400
_FUTURE = "the run is of a time after this machine's clock: the time is damaged, or the clock is to be set right"
_CHANGED = "columns change in the middle"
# The folder in which a job was submitted; only the live sacct is asked for it.
WORK_DIR = "WorkDir"
COLUMNS = (*FIELDS, LIMIT, ELIGIBLE, "ElapsedRaw", "Elapsed", WORK_DIR)
_MISFITS = "SELECT 1 FROM taken WHERE regexp_full_match(reason, '[0-9]+ columns instead of [0-9]+') LIMIT 1"

# The last run of a resized job, which 22.05 gives the start of the first, begins where the one before it ended.
_RESIZED = """
    UPDATE taken SET start_s = taken.submit_s FROM taken b
    WHERE taken.submit_s > taken.start_s AND b.end_s = taken.submit_s
      AND b.job_id_raw = taken.job_id_raw AND b.cluster = taken.cluster
"""

NO_ZONE = "times without a zone; say which zone with --timezone"
_NEVER = "local time does not exist, because clocks went forward; is --timezone right?"
TWICE = "local time is ambiguous, because clocks went back; export with SLURM_TIME_FORMAT=%s, or with ElapsedRaw"
TIMES = ("Submit", "Start", "End")
AS_READ = "SELECT *, Start_at AS start_s, End_at AS end_s, false AS twice FROM timed"

Means = Sequence[JobMeans | None]


class Counted(NamedTuple):
    """The counts of one ingest, and so behind the table ``taken``: rows in = used + steps + rejected.

    ``refused`` counts figures of GPU use that cannot be believed; the rows themselves are used.
    ``lost`` is what the rejected rows may have been, ``named`` says which the largest of them are, and why. ``said``
    are further sentences about it.
    """

    source: str
    rows_in: int
    used: int
    steps: int
    rejected: Mapping[str, int]
    refused: Mapping[str, int] = MappingProxyType({})
    lost: Lost = Lost()
    named: tuple[str, ...] = ()
    said: tuple[str, ...] = ()


def take_rows(
    database: duckdb.DuckDBPyConnection,
    path: str,
    form: Form,
    zone: tzinfo | None,
    now_s: float,
    work: str,
    columns: Collection[str] = tuple(ALLOCATION_COLUMNS),
    release: str = "",
    written_s: float | None = None,
) -> Counted:
    """Make the table ``taken`` of the runs in a sacct text.

    Args:
        database: the database to make it in.
        path: the text.
        form: how it is written.
        zone: the zone of times without one; None refuses those rows, because a wrong zone shifts every hour.
        now_s: the time of taking it in.
        work: a folder for temporaries.
        columns: those of ALLOCATION_COLUMNS that the table shall have.
        release: the release of the Slurm that ran the jobs, "24.05.4"; its own job accounting of GPUs depends on it.
        written_s: when a file was written, at the latest; None for what sacct says now. Its knowledge of unfinished
            runs is older where its rows say so: copying a file makes it new.

    Raises:
        InputError: the text cannot be read as rows of sacct at all.
    """
    database.execute(query("store/sql/text_values"))
    rows = read_rows(path, form, work)
    take = partial(_take, database, now_s=now_s, columns=columns, written_s=written_s)
    try:
        take(rows, zoned=False)
        each = database.execute(_MISFITS).fetchone() is not None
    except duckdb.Error:
        each = True
    if each:  # a count took odd rows for plain ones
        rows = read_rows(path, form, work, each=True)
        take(rows, zoned=False)
    local = "SELECT 1 FROM taken WHERE reason = ? LIMIT 1"
    zoned = bool(zone and database.execute(local, [NO_ZONE]).fetchone())
    if zone and zoned:
        make_zones(database, rows, zone)
        take(rows, zoned=True)
    if database.execute("SELECT 1 FROM taken WHERE reason = ? LIMIT 1", [_CHANGED]).fetchone():
        raise InputError(f"'{path}': {_CHANGED}; take the files in one by one")
    _check_gres(database)
    database.execute(_RESIZED)
    # A run without an end ran for an unknown time, unless its row says for how long.
    database.execute("UPDATE taken SET ingested_s = start_s WHERE ingested_s IS NULL")
    counted = _count(database, rows, now_s)
    return counted._replace(refused=bounded(take_means(database, rows, release, zoned=zoned)))


def take_runs(
    database: duckdb.DuckDBPyConnection, rows: Sequence[AllocationRow], now_s: float, means: Means = ()
) -> None:
    """Make the table ``taken`` of runs that another source has read, with their means where it brings some."""
    records = [(*_record(row, mean), now_s) for row, mean in zip(rows, means or [None] * len(rows), strict=True)]
    make_rows(database, "taken", ALLOCATION_COLUMNS, records)


def _record(row: AllocationRow, mean: JobMeans | None) -> tuple[Any, ...]:
    gres = ",".join(f"gres/{item.name}{':' if item.type else ''}{item.type}={item.quantity}" for item in row.gres)
    means = mean or (None, None, 0, None)
    # Parquet holds no bytes outside UTF-8: they become their escapes, not an error.
    values = (
        value.encode(errors="surrogateescape").decode(errors="backslashreplace") if isinstance(value, str) else value
        for value in (*row[:12], row.node_list, row.job_name, gres, "")
    )
    return (*values, row.limit_min, None, *means)


def take_means(database: duckdb.DuckDBPyConnection, rows: Rows, release: str, *, zoned: bool) -> Counter[str]:
    """Add to ``taken`` what its rows, or their steps, say of the use of GPUs; return what was refused."""
    means_of: dict[int, JobMeans] = {}
    refused: Counter[str] = Counter()
    if "AdminComment" in rows.form.fields:
        comments = 'SELECT rowid, "AdminComment" FROM taken WHERE starts_with("AdminComment", \'JS1:\')'
        for run, comment in database.execute(comments).fetchall():
            try:
                means = parse_blob(comment)
            except InputError as error:
                refused[str(error)] += 1
                continue
            if means:
                means_of[run] = means
        database.execute('ALTER TABLE taken DROP "AdminComment"')
    if tres_usage.FIELD in rows.form.fields:
        for run, gres, steps in steps_of_runs(database, rows, refused, zoned=zoned):
            try:
                means = step_means(steps, parse_tres_gres(gres), release)
            except InputError as error:
                refused[str(error)] += 1
                continue
            if means:
                means_of.setdefault(run, means)
    if means_of:
        rows_of_means = [(run, *means) for run, means in means_of.items()]
        make_rows(database, "found_means", {"run": "BIGINT"} | _MEANS, rows_of_means)
        changes = ", ".join(f"{name} = f.{name}" for name in MEANS)
        database.execute(f"UPDATE taken SET {changes} FROM found_means f WHERE f.run = taken.rowid")
    return refused


def steps_of_runs(
    database: duckdb.DuckDBPyConnection, rows: Rows, refused: Counter[str], *, zoned: bool = False
) -> Iterator[tuple[int, str, list[Step]]]:
    """Yield of each run with GPUs its rowid in ``taken``, its gres, and what Slurm itself saw in its steps."""
    text = query(
        "store/sql/steps",
        usage=tres_usage.FIELD,
        start=time_of("Start", zoned),
        end=time_of("End", zoned),
        steps=rows.select(("JobID", "JobIDRaw", "Start", "End", tres_usage.FIELD)),
        zones=zone_joins(("Start", "End"), zoned),
    )
    records = database.execute(text, {"odd": rows.odd}).fetchall()
    for (run, gres), group in groupby(records, key=lambda row: (row[0], row[1])):
        of_run = []
        for _, _, began_s, ended_s, nodes, usage in group:
            try:
                of_run.append(Step(began_s, ended_s or began_s, nodes, parse_tres_usage(usage)))
            except InputError as error:
                refused[str(error)] += 1
        yield run, gres, of_run


def mark_runaways(database: duckdb.DuckDBPyConnection, known: Collection[str]) -> None:
    """Mark the runs in ``taken`` that are said to run still and are not among ``known`` raw job ids."""
    database.execute(
        f"UPDATE taken SET state = '{RUNAWAY}', ingested_s = start_s "
        "WHERE end_s IS NULL AND start_s IS NOT NULL AND job_id_raw NOT IN (SELECT unnest($known::VARCHAR[]))",
        {"known": list(known)},
    )


def _count(database: duckdb.DuckDBPyConnection, rows: Rows, now_s: float) -> Counted:
    """Leave only runs in ``taken``, and say how many of what there were."""
    counts = dict(database.execute("SELECT coalesce(reason, ''), count(*) FROM taken GROUP BY 1").fetchall())
    runs, headers = counts.pop("", 0), counts.pop(HEADER, 0)
    rejected = Counter(rows.rejected) + Counter(counts)
    lost = add_up_lost(database, rows.lost, now_s) if rejected else Lost()
    if counts or headers:
        database.execute("DELETE FROM taken WHERE reason IS NOT NULL")
    for column in ("reason", "elapsed_s"):
        database.execute(f"ALTER TABLE taken DROP {column}")
    rest = rows.rows_in - headers - runs - rejected.total()
    of_steps = f"SELECT count(*) FROM ({rows.select(('JobID',))}) WHERE misfit IS NULL AND contains(\"JobID\", '.')"
    (steps,) = (rest and database.execute(of_steps, {"odd": rows.odd}).fetchone()) or (0,)
    if steps != rest:
        raise InputError(
            f"of {rows.rows_in} rows of '{rows.plain}' {rows.rows_in - rest} were read beside {steps} job steps: it "
            "changed meanwhile, or is damaged; export it again"
        )
    return Counted("", rows.rows_in - headers, runs, steps, bounded(rejected), {}, lost, rows.lost.named)


def _take(
    database: duckdb.DuckDBPyConnection,
    rows: Rows,
    now_s: float,
    columns: Collection[str],
    written_s: float | None,
    *,
    zoned: bool,
) -> None:
    comment = ["AdminComment"] if "AdminComment" in rows.form.fields else []
    others = {name: f'local_s(r."{name}") - at_{name}.later_offset_s' if zoned else "NULL" for name in TIMES}
    times = [f"{time_of(name, zoned)} AS {name}_at, {other} AS {name}_other" for name, other in others.items()]
    text = query(
        "store/sql/taken",
        rows=rows.select((*COLUMNS, *comment)),
        times=", ".join(times),
        zones=zone_joins(TIMES, zoned),
        settled=query("store/sql/settled") if zoned else AS_READ,
        comment='"AdminComment",' if comment else "",
        reason=_reason(rows, zoned=zoned),
        columns=quoted((*columns, *comment)),
    )
    parameters = {"odd": rows.odd, "now": now_s, "written": written_s}
    database.execute(f"CREATE OR REPLACE TABLE taken AS {text}", parameters)


def _reason(rows: Rows, *, zoned: bool) -> str:
    """Return the expression for why a row is not taken; NULL of one that is."""
    return query(
        "store/sql/reason",
        header=HEADER,
        is_header=" AND ".join(f"\"{name}\" = '{name}'" for name in COLUMNS if name in rows.form.fields),
        changed=_CHANGED,
        of_local=_NEVER if zoned else NO_ZONE,
        twice=TWICE,
        future_s=_FUTURE_S,
        future=sql(_FUTURE),
        longest_s=LONGEST_S,
    )


def _check_gres(database: duckdb.DuckDBPyConnection) -> None:
    """Mark the runs whose gres are outside the grammar."""
    bad: list[tuple[str, str]] = []
    for (text,) in database.execute(f"SELECT DISTINCT {GRES_ALONE} FROM (SELECT DISTINCT gres FROM taken)").fetchall():
        try:
            parse_tres_gres(text)
        except InputError as error:
            bad.append((text, str(error)))
    if bad:
        make_rows(database, "bad_gres", kinds_of("bad VARCHAR, why VARCHAR"), bad)
        database.execute(f"UPDATE taken SET reason = why FROM bad_gres WHERE reason IS NULL AND {GRES_ALONE} = bad")


def zone_joins(names: Sequence[str], zoned: bool) -> str:
    """Return SQL that joins to rows ``r`` what their local minutes are, as ``make_zones`` has it."""
    if not zoned:
        return ""
    return "".join(
        f' LEFT JOIN zones at_{name} ON is_local(r."{name}")'
        f' AND left(r."{name}", 16) BETWEEN at_{name}.first_minute AND at_{name}.last_minute'
        for name in names
    )


def time_of(name: str, zoned: bool) -> str:
    """Return SQL for the epoch seconds of a column of rows ``r``, ``zoned`` where their local minutes are joined."""
    return f'time_s(r."{name}", {f"at_{name}.offset_s" if zoned else "NULL"})'


def make_zones(database: duckdb.DuckDBPyConnection, rows: Rows, zone: tzinfo) -> None:
    """Make the table of what the local minutes in ``rows`` are in ``zone``: a row for minutes that are of one offset.

    With a row for each minute the table, which is joined once for each time of a run, is too large for the memory that
    a database may take.
    """
    times = " UNION ALL ".join(f'SELECT "{name}" AS local FROM rows_in' for name in TIMES)
    hours = database.execute(
        f"WITH rows_in AS MATERIALIZED ({rows.select(TIMES)}) SELECT DISTINCT left(local, 13) AS hour FROM ({times}) "
        "WHERE is_local(local) ORDER BY hour",
        {"odd": rows.odd},
    ).fetchall()
    minutes = (found for (hour,) in hours for found in _minutes_of(hour, zone))
    spans = []
    for offsets, of_one in groupby(minutes, key=itemgetter(1)):
        names = [minute for minute, _ in of_one]
        spans.append((names[0], names[-1], *offsets))
    kinds = kinds_of("first_minute VARCHAR, last_minute VARCHAR, offset_s BIGINT, later_offset_s BIGINT")
    make_rows(database, "zones", kinds, spans)


def _minutes_of(hour: str, zone: tzinfo) -> list[tuple[str, tuple[int | None, int | None]]]:
    """Return the first and the last minute of a local hour with their offsets, or all where these differ."""
    minutes = [f"{hour}:{number:02}" for number in range(60)]
    ends = [(minute, local_offsets_s(minute, zone)) for minute in (minutes[0], minutes[-1])]
    if ends[0][1] == ends[1][1]:
        return ends
    return [(minute, local_offsets_s(minute, zone)) for minute in minutes]


def local_offsets_s(minute: str, zone: tzinfo) -> tuple[int | None, int | None]:
    """Return how far a local minute is ahead of UTC, and the other choice where clocks show it twice, else None.

    (None, None) is a minute that clocks leave out, or no minute at all.
    """
    try:
        local = datetime.fromisoformat(minute)
        early, later = (local.replace(tzinfo=zone, fold=fold).utcoffset() or timedelta() for fold in (0, 1))
        round_trip = (local - early).replace(tzinfo=UTC).astimezone(zone).replace(tzinfo=None)
    except (ValueError, OverflowError):
        return None, None
    if round_trip != local:
        return None, None
    return int(early.total_seconds()), int(later.total_seconds()) if later != early else None

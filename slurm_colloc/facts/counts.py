# SPDX-License-Identifier: Apache-2.0
"""Counts runs and rows of a window, and finds until when runs are known."""

from typing import NamedTuple

from duckdb import DuckDBPyConnection

from slurm_colloc.store.queries import query
from slurm_colloc.store.sacct_rows import RUNAWAY
from slurm_colloc.store.store import Store

# Runs over their limit by more than a day: a site may let runs go on for a while (OverTimeLimit).
_OVER_LIMIT = """
    SELECT count(*), coalesce(sum(hours * gpus), 0)::DOUBLE FROM runs
    WHERE end_s IS NULL AND devices > 0 AND last_s - start_s - suspended_s > 60 * limit_min + 86400
"""


class RunCount(NamedTuple):
    """Runs in a window, those without a GPU among them, and the clusters of those with one.

    ``begun_before`` are those with a GPU that the window before has, too.
    """

    runs: int
    without_gpu: int
    clusters: tuple[str, ...]
    begun_before: int


class OtherRows(NamedTuple):
    """Rows known that are no runs of the window: they repeat one, are of a job before its start, or lie outside.

    These and the fields of Endless are those of a UsageReport.
    """

    rows_repeated: int
    rows_not_started: int
    rows_outside: int


class Endless(NamedTuple):
    """Runs without an end: those that Slurm knows nothing of any more, and those with no word on their length.

    Those over their limit should have ended long ago, and count with so many GPU-hours.
    """

    runaways: int
    runs_without_length: int
    runs_over_limit: int
    over_limit_gpu_hours: float


def count_runs(database: DuckDBPyConnection) -> RunCount:
    """Return how many runs there are in ``runs``, how many of them have no GPU, and whose the others are."""
    ((runs, without_gpu, clusters, begun_before),) = database.execute(query("facts/sql/run_count")).fetchall()
    return RunCount(runs, without_gpu, tuple(clusters), begun_before)


def count_other_rows(database: DuckDBPyConnection, runs: int) -> OtherRows:
    """Return what the rows are, as they were read, that are none of the ``runs`` of the window."""
    ((repeated, not_started, rows),) = database.execute(query("facts/sql/other_rows")).fetchall()
    return OtherRows(repeated, not_started, rows - repeated - not_started - runs)


def recorded_span(database: DuckDBPyConnection) -> tuple[float, float] | None:
    """Return from when to when runs are known, whatever the window; None where none is."""
    span = "SELECT min(start_s), max(coalesce(end_s, ingested_s)) FROM readings WHERE start_s IS NOT NULL"
    ((first_s, last_s),) = database.execute(span).fetchall()
    return None if first_s is None else (first_s, last_s)


def count_endless(database: DuckDBPyConnection, *, of_text: bool) -> Endless:
    """Return how many runs have no end, of those that began before the end of the window.

    A text has no runaways, and not the column that says so.
    """
    endless = query("facts/sql/endless", runaway="false" if of_text else f"state = '{RUNAWAY}'")
    ((runaways, without_length),) = database.execute(endless).fetchall()
    ((over_limit, gpu_hours),) = database.execute(_OVER_LIMIT).fetchall()
    return Endless(runaways, without_length, over_limit, gpu_hours)


def unaccounted_hours(database: DuckDBPyConnection) -> tuple[float, float]:
    """Return the sampled hours of jobs on GPUs and slices while accounting has no run of them, and of how many."""
    ((sampled, matched),) = database.execute(query("facts/sql/unaccounted")).fetchall()
    return max(0.0, sampled - matched), float(sampled)


def known_until_s(store: Store, database: DuckDBPyConnection) -> float | None:
    """Return until when runs are known, of a text by its own time; None where none were ever taken in.

    Each run says when it was; the logs say until when the accounting was asked if none ran since.

    Raises:
        StoreError: a log is damaged.
    """
    (taken_s,) = database.execute("SELECT max(ingested_s) FROM readings").fetchone() or (None,)
    logs = (log.get(key) for log in store.logs().values() for key in ("asked_until_s", "seen_until_s"))
    return max((float(at_s) for at_s in (taken_s, *logs) if at_s is not None), default=None)

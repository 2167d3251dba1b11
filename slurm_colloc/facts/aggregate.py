# SPDX-License-Identifier: Apache-2.0
"""Adds up what each run used inside a window, from accounting rows and stored facts.

A sample stands for (at - interval, at]. It counts for a run as far as that interval, the run and the window overlap,
so that splitting a window never changes a sum. Sums are of whole numbers (microseconds, 1/65536 of a percent
times them, millionths of a joule or a MiB), so that neither order nor place changes a sum.
"""

import os
from collections.abc import Mapping
from math import ceil
from string import Template

from duckdb import DuckDBPyConnection

from slurm_colloc.core.usage_model import JobUsage
from slurm_colloc.facts.day_facts import FIX, USE, Days, add_parts, days_of, make_parts
from slurm_colloc.facts.over_time import Bins, make_run_bins
from slurm_colloc.store.queries import named, query, sql
from slurm_colloc.store.store import SEVERAL, Store, once
from slurm_colloc.store.window import Step, Window, ignore

# For what a page and an audit ask of a file; twice as much is no faster.
_FILE_MEMORY = "220MB"
# Runs that are added up at once, at most: 230,000 do not fit into that memory.
_RUNS_AT_ONCE = 125_000

COUNTED = query("facts/sql/counted_hours")
IDLE_S = query("facts/sql/idle_s", counted=COUNTED)
KEY = "cluster, job_id_raw, start_s"
_NEWEST = "usage.start_s DESC, job_id, cluster, submit_s"
_LAST = f'QUALIFY row_number() OVER (PARTITION BY "user" ORDER BY {_NEWEST}) <= $runs'


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
        bins: the cuts of a page.
        in_file: for who asks for every run again and again, as a page does: all lies in a file beside what the database
            spills, and ``usage`` is a table there, added up once. It takes a third of the memory, and twice the time.
        step: is told of days.
    """
    in_file = in_file or bins is not None
    sampled = bool(store.samples.days(window.since_s, window.until_s) or store.samples.facts())
    if in_file:
        ((folder,),) = database.execute("SELECT current_setting('temp_directory')").fetchall()
        database.execute(f"ATTACH '{sql(os.path.join(folder, 'aggregated'))}' AS aggregated")
        # Here is made what is made from now on, and looked for first.
        database.execute("SET search_path = 'aggregated,memory'")
        database.execute(f"SET memory_limit = '{_FILE_MEMORY}'")
    kind = "TABLE" if in_file else "TEMP TABLE"
    # Runs are added up as they are read if no sample asks for them again and again.
    find_runs(database, window, kind if sampled or in_file else "TEMP VIEW")
    make_parts(database, USE, bins, kind)
    days = Days((), {}, cut=False)
    if sampled:
        days = days_of(database, store, window)
        add_parts(database, store, window, days, USE, bins, step)
    if not in_file:
        database.execute(f"CREATE TEMP VIEW usage AS {_usage('true')}")
        return days
    for number, part in enumerate(parts_of_runs(database)):
        statement = "INSERT INTO usage" if number else "CREATE TABLE usage AS"
        database.execute(f"{statement} {_usage(part)}")
    if bins:
        make_run_bins(database)
    return days


def aggregate_some(
    database: DuckDBPyConnection, store: Store, window: Window, condition: str, parameters: Mapping[str, str]
) -> Days:
    """Make what ``aggregate`` makes of the runs in ``window`` that a condition holds for; nothing of all others."""
    find_runs(database, window)
    days = days_of(database, store, window)
    database.execute(f"DELETE FROM runs WHERE NOT ({condition})", parameters)
    make_parts(database)
    add_parts(database, store, window, days)
    database.execute(f"CREATE TEMP VIEW usage AS {_usage('true')}")
    return days


def _usage(part: str) -> str:
    return query("facts/sql/usage", part=part, fix_100=FIX * 100, idle=IDLE_S)


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
    picked = once("near", several="several")
    _make(database, kind, "runs", query("facts/sql/runs", number=number, picked=picked), window)


def find_near(database: DuckDBPyConnection, window: Window) -> None:
    """Make what ``runs`` are made of: the readings near ``window``, and which of them have no end or are repeated."""
    for kind, name, text in (
        ("TEMP TABLE", "open", query("facts/sql/open")),
        ("TEMP TABLE", "outdated", query("facts/sql/outdated")),
        ("TEMP VIEW", "near", query("facts/sql/near")),
        ("TEMP TABLE", "several", SEVERAL.format(source="near")),
    ):
        _make(database, kind, name, text, window)


def _make(database: DuckDBPyConnection, kind: str, name: str, text: str, window: Window) -> None:
    # A view takes no parameters.
    edges = {edge: f"'{value}'::DOUBLE" for edge, value in window.parameters.items()}
    database.execute(f"CREATE {kind} {name} AS {Template(text).substitute(edges)}")


def last_usages(database: DuckDBPyConnection, runs: int) -> list[JobUsage]:
    """Return of each user in ``usage`` the runs that began last, at most so many, the last first."""
    return _usages(database, f'{_LAST} ORDER BY "user", {_NEWEST}', {"runs": runs})


def usages_of(database: DuckDBPyConnection, part: str = "true") -> list[JobUsage]:
    """Return the runs in ``usage``, or that ``part`` of them."""
    return _usages(database, f"WHERE {part} ORDER BY usage.start_s, job_id, cluster, usage.end_s, submit_s")


def _usages(database: DuckDBPyConnection, rest: str, parameters: Mapping[str, int] | None = None) -> list[JobUsage]:
    rows = named(database, f"{query('facts/sql/job_usage')} {rest}", parameters)
    return [JobUsage(**{**row, "methods": tuple(row["methods"])}) for row in rows]

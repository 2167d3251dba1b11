# SPDX-License-Identifier: Apache-2.0
"""colloc report: real against allocated GPU use."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from tempfile import TemporaryDirectory
from typing import Annotated, NamedTuple

import typer
from duckdb import DuckDBPyConnection

from slurm_colloc.accounting.collocation import collocation, installed_gpus
from slurm_colloc.accounting.decisions import predictions
from slurm_colloc.accounting.engine import ENGINES, LOCAL, SLURM, sweep_by_slurm
from slurm_colloc.accounting.equivalents import CONVENTIONS, SLICES
from slurm_colloc.accounting.store import REJECTED_LINES, Store, open_store
from slurm_colloc.accounting.strays import stray_use
from slurm_colloc.accounting.sweep import Window, count_runaways, count_runs, recorded_span, sweep, unaccounted_hours
from slurm_colloc.accounting.usage import GROUPINGS, group_usage
from slurm_colloc.cli.colloc.output import say, site_or_none, state_folder, window, write
from slurm_colloc.cli.colloc.texts import Text, take
from slurm_colloc.clock import now
from slurm_colloc.config import Engine, Prices, SiteConfig
from slurm_colloc.errors import InputError
from slurm_colloc.report.usage import FORMATS, UsageReport, inert


def report(
    by: Annotated[str, typer.Option("--by", help="user, account, partition, qos, gpu or signature")] = "user",
    since: Annotated[str, typer.Option("--since", help="ISO 8601, or a span such as 7d")] = "30d",
    until: Annotated[str, typer.Option("--until", help="ISO 8601, a span, or now")] = "now",
    form: Annotated[str, typer.Option("--format", help="table, json, csv or html")] = "table",
    output: Annotated[str, typer.Option("--output", "-o", help="file instead of standard output")] = "",
    runs_csv: Annotated[str, typer.Option("--runs", help="also write each run, as CSV, to this file")] = "",
    store: Annotated[str, typer.Option("--store", help="folder of the store; else the site's")] = "",
    equivalents: Annotated[
        str, typer.Option("--equivalents", help="a MIG slice's part of its GPU by slices, sms or memory")
    ] = SLICES,
    sacct_file: Annotated[
        str, typer.Option("--sacct-file", help="sacct -P text, in place of a store: what was allocated, and no more")
    ] = "",
    fields: Annotated[
        str, typer.Option("--fields", help="columns of that text, by comma, where it has no header")
    ] = "",
    timezone: Annotated[str, typer.Option("--timezone", help="zone of times without one in that text")] = "",
    engine: Annotated[
        str, typer.Option("--engine", help="local, or slurm: a job for each day, by [engine] of site.toml")
    ] = LOCAL,
) -> None:
    """Say how much GPU each user, account or the like was given, and how much of it was really used."""
    if form not in FORMATS:
        raise InputError(f"--format '{form}' is not one of {', '.join(FORMATS)}")
    if equivalents not in CONVENTIONS:
        raise InputError(f"--equivalents '{equivalents}' is not one of {', '.join(CONVENTIONS)}")
    if engine not in ENGINES:
        raise InputError(f"--engine '{engine}' is not one of {', '.join(ENGINES)}")
    if by not in GROUPINGS:
        raise InputError(f"'--by {by}' is not one of {', '.join(GROUPINGS)}")
    if not sacct_file and (fields or timezone):
        raise InputError("--fields and --timezone do nothing without --sacct-file: a store has times without zones")
    if sacct_file and by == "signature":
        raise InputError("a sacct text has no signatures; a store has those of the jobs that went through csub")
    if sacct_file and runs_csv:
        raise InputError("--runs writes the runs of a store; take the text in by colloc ingest --sacct-file")
    if sacct_file and store:
        raise InputError("--sacct-file is read in place of a store; to add it to one: colloc ingest --sacct-file")
    if sacct_file and engine == SLURM:
        raise InputError("--engine slurm spreads the days of samples over jobs, and a sacct text has none")
    start, end = window(since, until)
    config = site_or_none()
    text = Text(sacct_file, fields, timezone)
    opened = _text(text, by, config, equivalents) if sacct_file else _store(store, config, equivalents, start, end)
    with opened as (source, database, (rows_in, used, steps, rejected)):
        asked = Window(start.timestamp(), end.timestamp(), now())
        if engine == SLURM:
            say(f"to go on after an interruption, name this window: {_named(start, end)}")
            sweep_by_slurm(database, source, asked, config.engine if config else Engine(), say)
        else:
            sweep(database, source, asked)
        *groups, total = group_usage(database, by)
        runs, without_gpu, clusters = count_runs(database)
        recorded = None if runs else recorded_span(database)
        runaways = 0 if sacct_file else count_runaways(database, asked.until_s)
        unaccounted, sampled = unaccounted_hours(database)
        if runs_csv:
            _write_runs(database, runs_csv)
        shared = collocation(database)
        strays = stray_use(database)
        predicted = [] if sacct_file else predictions(database)
    gpus = installed_gpus(config)
    hours = (min(asked.until_s, asked.now_s) - asked.since_s) / 3600
    shown = UsageReport(
        cluster=", ".join(clusters) or (config.cluster if config else ""),
        since=start,
        until=end,
        by=by,
        equivalents=CONVENTIONS[equivalents],
        groups=tuple(groups),
        total=total,
        runs=runs,
        runs_without_gpu=without_gpu,
        runaways=runaways,
        unaccounted_hours=unaccounted,
        sampled_job_hours=sampled,
        installed_gpu_hours=gpus * hours if gpus and hours > 0 else None,
        collocation=tuple(shared),
        predictions=tuple(predicted),
        prices=config.prices if config else Prices(),
        strays=tuple(strays),
        rows_in=rows_in,
        rows_used=used,
        job_steps=steps,
        rejected=dict(rejected),
        recorded=recorded and _span(*recorded),
        so_far=asked.until_s > asked.now_s,
        of_text=bool(sacct_file),
        templates=config.paths.templates if config else "",
    )
    write(FORMATS[form](shown), output)


def _named(start: datetime, end: datetime) -> str:
    return f"--since {start.isoformat()} --until {end.isoformat()}"


def _span(first_s: float, last_s: float) -> tuple[datetime, datetime]:
    return datetime.fromtimestamp(first_s).astimezone(), datetime.fromtimestamp(last_s).astimezone()


def _write_runs(database: DuckDBPyConnection, path: str) -> None:
    # Only an analyst's export needs pandas, which takes a quarter of a second to import.
    from slurm_colloc.accounting.frames import runs_frame

    frame = runs_frame(database)
    frame = frame.map(lambda value: inert(value) if isinstance(value, str) else value)
    write(frame.to_csv(index=False), path)


class Rows(NamedTuple):
    """What was counted of the rows behind a report: rows in = used + steps + rejected."""

    rows_in: int
    used: int
    steps: int
    rejected: Mapping[str, int]


class Opened(NamedTuple):
    """Where a report's figures come from."""

    store: Store
    database: DuckDBPyConnection
    rows: Rows


@contextmanager
def _store(
    folder: str, config: SiteConfig | None, equivalents: str, start: datetime, end: datetime
) -> Iterator[Opened]:
    source = open_store(folder or state_folder("store"), config, equivalents)
    since_s, until_s = start.timestamp(), end.timestamp()
    logs = source.logs().values()
    rejected: Counter[str] = Counter()
    for log in logs:
        rejected.update(log["rejected"])
    lines = source.samples.rejected(since_s, until_s)
    rejected += Counter({REJECTED_LINES: lines})
    rows_in, used, steps = (sum(log[name] for log in logs) for name in ("rows_in", "used", "steps"))
    with source.connect(since_s, until_s) as database:
        yield Opened(source, database, Rows(rows_in + lines, used, steps, rejected))


@contextmanager
def _text(text: Text, by: str, config: SiteConfig | None, equivalents: str) -> Iterator[Opened]:
    """Make a database of a text alone, and a store with no samples."""
    with TemporaryDirectory(prefix="colloc-") as folder:
        source = Store(os.path.join(folder, "none"), config, equivalents)
        with source.over(folder, lambda database: take(database, text, folder, GROUPINGS[by])) as (database, taken):
            yield Opened(source, database, Rows(taken.rows_in, taken.used, taken.steps, taken.rejected))

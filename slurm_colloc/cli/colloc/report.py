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
from slurm_colloc.cli.colloc.output import say, site, site_or_none, state_folder, window, write
from slurm_colloc.cli.colloc.report_shadow import shadow_report
from slurm_colloc.cli.colloc.texts import Text, take
from slurm_colloc.clock import now
from slurm_colloc.config import Engine, Prices, SiteConfig
from slurm_colloc.errors import InputError
from slurm_colloc.report.shadow import FORMATS as SHADOW_FORMATS
from slurm_colloc.report.text import inert
from slurm_colloc.report.usage import FORMATS, UsageReport


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
    shadow: Annotated[
        bool, typer.Option("--shadow", help="what csub decided under the policy shadow, and what would have come of it")
    ] = False,
    past: Annotated[
        bool,
        typer.Option("--past", help="with --shadow: decide now on jobs that 'colloc history bootstrap --all' took in"),
    ] = False,
) -> None:
    """Say how much GPU each user, account or the like was given, and how much of it was really used."""
    text = Text(sacct_file, fields, timezone)
    asked = _Asked(by, form, runs_csv, store, equivalents, text, engine, shadow, past)
    _check(asked)
    start, end = window(since, until)
    write(_report(asked, start, end, site() if shadow else site_or_none()), output)


class _Asked(NamedTuple):
    """What is to be shown, of a store or of a text; see the options of the same names."""

    by: str
    form: str
    runs_csv: str
    store: str
    equivalents: str
    text: Text
    engine: str
    shadow: bool
    past: bool


def _check(asked: _Asked) -> None:
    """Raise an InputError for values that are not known, and options that contradict each other or do nothing."""
    for option, given, known in (
        ("--format", asked.form, FORMATS),
        ("--equivalents", asked.equivalents, CONVENTIONS),
        ("--engine", asked.engine, ENGINES),
        ("--by", asked.by, GROUPINGS),
    ):
        if given not in known:
            raise InputError(f"{option} '{given}' is not one of {', '.join(known)}")
    if asked.shadow and (asked.text.path or asked.runs_csv or asked.by != "user"):
        raise InputError("--shadow adds up the pieces of a store's decisions; leave --by, --runs and --sacct-file out")
    if asked.past and not asked.shadow:
        raise InputError("--past is for --shadow")
    if not asked.text.path:
        if asked.text.fields or asked.text.timezone:
            raise InputError("--fields and --timezone do nothing without --sacct-file: a store has times without zones")
        return
    if asked.by == "signature":
        raise InputError("a sacct text has no signatures; a store has those of the jobs that went through csub")
    if asked.runs_csv:
        raise InputError("--runs writes the runs of a store; take the text in by colloc ingest --sacct-file")
    if asked.store:
        raise InputError("--sacct-file is read in place of a store; to add it to one: colloc ingest --sacct-file")
    if asked.engine == SLURM:
        raise InputError("--engine slurm spreads the days of samples over jobs, and a sacct text has none")


def _report(asked: _Asked, start: datetime, end: datetime, config: SiteConfig | None) -> str:
    of_text = bool(asked.text.path)
    opened = _text(asked, config) if of_text else _store(asked, config, start, end)
    with opened as (source, database, rows):
        span = Window(start.timestamp(), end.timestamp(), now())
        if asked.engine == SLURM:
            say(f"to go on after an interruption, name this window: {_named(start, end)}")
            sweep_by_slurm(database, source, span, config.engine if config else Engine(), say)
        else:
            sweep(database, source, span)
        if asked.runs_csv:
            _write_runs(database, asked.runs_csv)
        if asked.shadow and config:
            shown = shadow_report(database, source, config, span, asked.equivalents, past=asked.past)
            return SHADOW_FORMATS[asked.form](shown)
        return FORMATS[asked.form](_figures(database, asked, (start, end), span, rows, config))


def _figures(
    database: DuckDBPyConnection,
    asked: _Asked,
    ends: tuple[datetime, datetime],
    span: Window,
    rows: "Rows",
    config: SiteConfig | None,
) -> UsageReport:
    """Return the report of a database whose window is swept."""
    of_text = bool(asked.text.path)
    *groups, total = group_usage(database, asked.by)
    runs, without_gpu, clusters = count_runs(database)
    recorded = None if runs else recorded_span(database)
    unaccounted, sampled = unaccounted_hours(database)
    gpus = installed_gpus(config)
    hours = (min(span.until_s, span.now_s) - span.since_s) / 3600
    return UsageReport(
        cluster=", ".join(clusters) or (config.cluster if config else ""),
        since=ends[0],
        until=ends[1],
        by=asked.by,
        equivalents=CONVENTIONS[asked.equivalents],
        groups=tuple(groups),
        total=total,
        runs=runs,
        runs_without_gpu=without_gpu,
        runaways=0 if of_text else count_runaways(database, span.until_s),
        unaccounted_hours=unaccounted,
        sampled_job_hours=sampled,
        installed_gpu_hours=gpus * hours if gpus and hours > 0 else None,
        collocation=tuple(collocation(database)),
        predictions=() if of_text else tuple(predictions(database)),
        prices=config.prices if config else Prices(),
        strays=tuple(stray_use(database)),
        rows_in=rows.rows_in,
        rows_used=rows.used,
        job_steps=rows.steps,
        rejected=dict(rows.rejected),
        recorded=recorded and _span(*recorded),
        so_far=span.until_s > span.now_s,
        of_text=of_text,
        templates=config.paths.templates if config else "",
    )


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
def _store(asked: _Asked, config: SiteConfig | None, start: datetime, end: datetime) -> Iterator[Opened]:
    source = open_store(asked.store or state_folder("store"), config, asked.equivalents)
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
def _text(asked: _Asked, config: SiteConfig | None) -> Iterator[Opened]:
    """Make a database of a text alone, and a store with no samples."""
    with TemporaryDirectory(prefix="colloc-") as folder:
        source = Store(os.path.join(folder, "none"), config, asked.equivalents)
        columns = GROUPINGS[asked.by]
        with source.over(folder, lambda made: take(made, asked.text, folder, columns)) as (database, taken):
            yield Opened(source, database, Rows(taken.rows_in, taken.used, taken.steps, taken.rejected))

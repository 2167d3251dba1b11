# SPDX-License-Identifier: Apache-2.0
"""colloc report: real against allocated GPU use."""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from itertools import compress
from math import inf
from typing import Annotated, Any, NamedTuple

from duckdb import DuckDBPyConnection
from typer import Exit, Option

from slurm_colloc.cli.colloc.anonymous import check_names, keep_names_out, without_jobs
from slurm_colloc.cli.colloc.options import Output, Since, StoreFolder, TextFields, TimeZone, Until, options_of
from slurm_colloc.cli.colloc.output import one_of, say, site_or_none, window, write
from slurm_colloc.cli.colloc.progress import progress
from slurm_colloc.cli.colloc.report_sharing import KINDS, harmed
from slurm_colloc.cli.colloc.sacct_text import Text, take
from slurm_colloc.cli.colloc.terminal import rendered, show
from slurm_colloc.cli.colloc.visible_store import seen_store
from slurm_colloc.core.config import Prices, SiteConfig
from slurm_colloc.core.errors import InputError, Status
from slurm_colloc.core.files import temporary_folder
from slurm_colloc.core.usage_model import Lost, lost_of_all
from slurm_colloc.facts.aggregate import aggregate
from slurm_colloc.facts.collocation import collocation, installed_gpus, several_gpus, stray_use
from slurm_colloc.facts.counts import (
    count_endless,
    count_other_rows,
    count_runs,
    known_until_s,
    recorded_span,
    unaccounted_hours,
)
from slurm_colloc.facts.fits import fits_of
from slurm_colloc.facts.months import used_hours_by_month
from slurm_colloc.facts.over_time import Bins, bins_of, charts_of
from slurm_colloc.facts.remedies import remedies
from slurm_colloc.facts.run_rows import run_rows
from slurm_colloc.facts.several import BY as SEVERAL_BY
from slurm_colloc.facts.usage import GROUPINGS, MONTH, used_hours_by, used_hours_by_kind
from slurm_colloc.report.columns import FORMATS as LISTED
from slurm_colloc.report.first_look import MOST, with_to_do
from slurm_colloc.report.formats import FORMATS, PARQUET, TABLE
from slurm_colloc.report.text import csv_table, local
from slurm_colloc.report.usage import UsageReport
from slurm_colloc.report.usage_text import as_table
from slurm_colloc.store.decisions import predictions
from slurm_colloc.store.equivalents import CONVENTIONS, SLICES, unsure_types
from slurm_colloc.store.queries import watched
from slurm_colloc.store.sacct_rows import Counted
from slurm_colloc.store.store import REJECTED_LINES, Store
from slurm_colloc.store.window import Step, Window, window_of


class Options(NamedTuple):
    """Options of a report, of a store or of a text."""

    by: Annotated[str, Option(help=f"one of {', '.join(GROUPINGS)}")] = "user"
    since: Since = "30d"
    until: Until = "now"
    form: Annotated[str, Option("--format", help="table, csv, json, parquet or html")] = TABLE
    output: Output = ""
    top: Annotated[
        int | None,
        Option(min=0, help="so many rows, the others summed; 0 for all [default: 20 on a terminal, else all]"),
    ] = None
    explained: Annotated[
        bool, Option("--explain", help="more columns, and below the table what each means and how it was counted")
    ] = False
    billing: Annotated[
        bool, Option("--billing", help="a column of what Slurm bills, beside ALLOC; CSV and JSON have it")
    ] = False
    runs_csv: Annotated[str, Option("--runs", help="also write each run, as CSV, to this file")] = ""
    store: StoreFolder = ""
    equivalents: Annotated[str, Option(help="a MIG slice's part of its GPU by slices, sms or memory")] = SLICES
    sacct_file: Annotated[str, Option(help="text of sacct, in place of a store: what was allocated, and no more")] = ""
    fields: TextFields = ""
    timezone: TimeZone = ""
    charts: Annotated[
        bool, Option("--charts", help="with --format json: use over time and all else that a page draws")
    ] = False
    shadow: Annotated[
        bool, Option("--shadow", help="what csub decided under the policy shadow, and what would have come of it")
    ] = False
    harm: Annotated[bool, Option("--harm", help="of 10,000 runs on pieces of GPUs, how many were harmed")] = False
    several: Annotated[
        bool, Option("--several", help="jobs of several GPUs, --by user or script: used, balance, waiting, lost")
    ] = False
    rollout: Annotated[bool, Option("--rollout", help="jobs that were drawn: placed against as asked")] = False
    pseudonyms: Annotated[
        bool, Option("--pseudonyms", help="in place of names; the same in each report from one key")
    ] = False
    min_group: Annotated[int, Option(help="groups of fewer users than that are added up to one", min=0)] = 0

    @property
    def text(self) -> Text:
        """Return the text of sacct; its path is empty where a store is reported on."""
        return Text(self.sacct_file, self.fields, self.timezone)

    @property
    def kinds(self) -> list[str]:
        """Return which of KINDS are asked for, none for the usual report."""
        return [kind for kind in KINDS if getattr(self, kind)]

    @property
    def draws(self) -> bool:
        """Return whether the report has charts."""
        return (self.form == "html" or self.charts) and self.details

    @property
    def details(self) -> bool:
        """Return whether it has what a text does not tell, and what may be of fewer users than any group."""
        return not self.sacct_file and not self.min_group


@options_of(Options)
def report(options: Options) -> None:
    """Say how much GPU each user was given, and really used. Or each account, partition and so on, with --by.

    Exit status 3: more than 1 % of the GPU-hours of a --sacct-file may be in rows that were rejected.
    """
    _check(options)
    ends = window(options.since, options.until)
    if options.kinds:
        listing = KINDS[options.kinds[0]](options.store, ends, options.equivalents, options.by)
        show(listing, LISTED, options.form, options.output)
        return
    with progress("making the report") as step:
        usage_report = _report(options, ends, site_or_none(), step)
        table = partial(as_table, top=options.top, explained=options.explained)
        text = rendered(usage_report, FORMATS | {TABLE: table}, options.form, options.output)
        step(100, 100)
    write(text, options.output)
    # The rows of a store were judged when they were taken in.
    if options.sacct_file and usage_report.lost.too_many:
        raise Exit(Status.UNKNOWN)


# Parts of a page's time that are past once days are added up, and once their figures are.
_ADDED_PCT, _FIGURES_PCT = 60, 75


def _check(options: Options) -> None:
    """Raise an InputError for values that are not known, and options that contradict each other or do nothing."""
    if len(options.kinds) > 1:
        raise InputError("--shadow, --harm, --several and --rollout are reports of their own; choose one")
    kind, text = next(iter(options.kinds), ""), options.text
    one_of("--format", options.form, LISTED if kind else FORMATS)
    one_of("--equivalents", options.equivalents, CONVENTIONS)
    one_of("--by", options.by, SEVERAL_BY if kind == "several" else GROUPINGS)
    if (options.top is not None or options.explained) and (options.form != TABLE or kind):
        raise InputError("--top and --explain are for --format table; the others always have all rows")
    if options.billing and (options.form not in (TABLE, "html") or kind):
        raise InputError("--billing adds a column to --format table and html; the others have it")
    if options.form == PARQUET and not options.output:
        raise InputError("--format parquet is no text; name a file by --output")
    if kind and (text.path or options.runs_csv or (options.by != "user" and kind != "several")):
        raise InputError(f"--{kind} adds up a store's decisions; leave --by, --runs and --sacct-file out")
    check_names(
        options.by, options.pseudonyms, options.min_group, kind=kind, runs=bool(options.runs_csv), charts=options.charts
    )
    if options.charts and (options.form != "json" or kind or text.path):
        raise InputError("--charts adds to --format json of a store; --format html has them")
    if not text.path and (text.fields or text.timezone):
        raise InputError("--fields and --timezone do nothing without --sacct-file: a store has times without zones")
    if text.path and options.by == "signature":
        raise InputError("a sacct text has no signatures; a store has those of the jobs that went through csub")
    if text.path and options.runs_csv:
        raise InputError("--runs writes the runs of a store; take the text in by colloc ingest --sacct-file")
    if text.path and options.store:
        raise InputError("--sacct-file is read in place of a store; to add it to one: colloc ingest --sacct-file")


def _report(options: Options, ends: tuple[datetime, datetime], config: SiteConfig | None, step: Step) -> UsageReport:
    """Return the usage report, and write each run to a file where that is asked for.

    The database is gone then, whose memory a page can use.
    """

    by_month = options.by == MONTH

    def months(done: int, total: int) -> None:
        step(_ADDED_PCT * done // (2 * total), 100)

    def adding(done: int, total: int) -> None:
        step(_ADDED_PCT * (done + by_month * total) // max(1, total + by_month * total), 100)

    span = window_of(*ends)
    bins = bins_of(span.since_s, span.until_s) if options.draws else None
    with _text(options, config, adding) if options.text.path else _store(options, config, span) as opened:
        task = (opened.database, opened.source, span, config if options.details else None, options.equivalents, months)
        groups, fits = used_hours_by_month(*task) if by_month else ([], [])
        days = aggregate(opened.database, opened.source, span, bins, step=adding)
        step(_ADDED_PCT, 100)
        names = keep_names_out(opened.database, opened.source, options.by, options.pseudonyms, options.min_group)
        if options.runs_csv:
            _write_runs(opened.database, options.runs_csv, named=not options.pseudonyms)
        usage_report = _figures(opened, options, ends, span, config, bins)
        # What users could do is asked of a table that the figures make.
        users, of_users = remedies(opened.database, config, MOST) if options.details else (0, ())
        usage_report = with_to_do(usage_report, users, of_users, config.observe.agent if config else None)
        if by_month:
            usage_report = usage_report._replace(groups=tuple(groups), fits=(*fits, *usage_report.fits[-1:]))
        step(_FIGURES_PCT, 100)
    harm = harmed(opened.source, config, ends) if config and options.draws and usage_report.predictions else None
    usage_report = usage_report._replace(billing=options.billing, names=names, in_proportion=days.cut, harm=harm)
    return without_jobs(usage_report) if options.pseudonyms else usage_report


class _Opened(NamedTuple):
    """The store and database of figures, and the counts of the rows behind them; None where that is not to be seen."""

    source: Store
    database: DuckDBPyConnection
    rows: Counted | None


def _figures(
    opened: _Opened,
    options: Options,
    ends: tuple[datetime, datetime],
    span: Window,
    config: SiteConfig | None,
    bins: Bins | None,
) -> UsageReport:
    """Return the report of a database whose window is aggregated."""
    source, database, rows = opened
    of_text, visible = bool(options.text.path), source.visible
    added, kinds = used_hours_by_kind(database, options.by) if bins else (used_hours_by(database, options.by), {})
    *groups, total = added
    runs, without_gpu, clusters, begun_before = count_runs(database)
    recorded = None if runs else recorded_span(database)
    unaccounted, sampled = unaccounted_hours(database)
    # A part of the runs is no part of what all GPUs could have done, nor are those of another cluster.
    gpus = installed_gpus(config) if config and visible.everybody and set(clusters) <= {config.cluster, ""} else None
    hours = (min(span.until_s, span.now_s) - span.since_s) / 3600
    several = several_gpus(database) if options.details else ()
    return UsageReport(
        cluster=", ".join(clusters) or (config.cluster if config else ""),
        since=ends[0],
        until=ends[1],
        by=options.by,
        equivalents=CONVENTIONS[options.equivalents],
        groups=tuple(groups),
        total=total,
        runs=runs,
        runs_without_gpu=without_gpu,
        runs_begun_before=begun_before,
        **count_endless(database, of_text=of_text)._asdict(),
        unaccounted_hours=unaccounted,
        sampled_job_hours=sampled,
        installed_gpu_hours=gpus * hours if gpus and hours > 0 else None,
        collocation=tuple(collocation(database)) if options.details else (),
        predictions=tuple(predictions(database)) if options.details else (),
        prices=config.prices if config else Prices(),
        strays=tuple(stray_use(database)),
        **_rows(rows),
        **count_other_rows(database, runs)._asdict(),
        **unsure_types(database, config)._asdict(),
        recorded=recorded and (local(recorded[0]), local(recorded[1])),
        ingested=_local(None if of_text else known_until_s(source, database)),
        flushed=_local(source.samples.flushed_until_s(), span.now_s),
        so_far=span.until_s > span.now_s,
        of_text=of_text,
        templates=config.paths.templates if config else "",
        charts=charts_of(database, options.by, span, bins, gpus, kinds) if bins else None,
        several=next(iter(several), None),
        several_by_size=several[1:],
        fits=fits_of(database, options.by, config, options.equivalents) if config and options.details else (),
        visible=visible.nameless if options.pseudonyms else visible.whose,
    )


def _rows(rows: Counted | None) -> dict[str, Any]:
    """Return the fields of a report that say what became of the rows behind it."""
    return {
        "rows_in": rows and rows.rows_in,
        "rows_used": rows and rows.used,
        "job_steps": rows and rows.steps,
        "rejected": dict(rows.rejected) if rows else {},
        "lost": rows.lost if rows else Lost(),
    }


def _local(at_s: float | None, most_s: float = inf) -> datetime | None:
    return None if at_s is None else local(min(at_s, most_s))


def _write_runs(database: DuckDBPyConnection, path: str, *, named: bool) -> None:
    kinds, rows = run_rows(database)
    kept = [named or name not in ("job_id", "job_id_raw", "job_name") for name in kinds]
    write(csv_table(compress(kinds, kept), (compress(row, kept) for row in rows)), path)


@contextmanager
def _store(options: Options, config: SiteConfig | None, span: Window) -> Iterator[_Opened]:
    source = seen_store(options.store, config, options.equivalents)
    with source.connect(span.since_s, span.until_s) as database:
        yield _Opened(source, database, _counted(source, span))


def _counted(source: Store, span: Window) -> Counted | None:
    """Return what was counted as the store was filled: everybody's rows, a rejected one is nobody's."""
    if not source.visible.everybody:
        return None
    logs = source.logs().values()
    lines = source.samples.rejected(span.since_s, span.until_s)
    rejected = sum((Counter[str](log["rejected"]) for log in logs), Counter({REJECTED_LINES: lines}))
    rows_in, used, steps = (sum(log[name] for log in logs) for name in ("rows_in", "used", "steps"))
    rows_in += lines
    return Counted("", rows_in, used, steps, rejected, lost=lost_of_all(Lost(*log.get("lost", ())) for log in logs))


@contextmanager
def _text(options: Options, config: SiteConfig | None, step: Step) -> Iterator[_Opened]:
    """Make a database of a text alone, and a store with no samples."""
    with temporary_folder() as folder:
        source = Store(os.path.join(folder, "none"), config, options.equivalents)
        columns = (GROUPINGS[options.by], *(["user"] if options.min_group else []))

        def taking(database: DuckDBPyConnection) -> Counted:
            with watched(database, step):
                return take(database, options.text, folder, columns)

        with source.over(folder, taking) as (database, counts):
            for named in () if options.pseudonyms else counts.named:
                say(f"rejected: {named}")
            yield _Opened(source, database, counts)

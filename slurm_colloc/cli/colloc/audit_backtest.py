# SPDX-License-Identifier: Apache-2.0
"""colloc audit backtest: rules over past windows, before they speak."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated, NamedTuple

import typer

from slurm_colloc.accounting.audited import answer, make_audited
from slurm_colloc.accounting.found_runs import found_runs
from slurm_colloc.accounting.store import Store
from slurm_colloc.accounting.sweep import Window, sweep_to_file
from slurm_colloc.accounting.usage import whole_usage
from slurm_colloc.audit.backtest import Ran, in_all, steps_of, windows, would_notify
from slurm_colloc.audit.ladder import key_of
from slurm_colloc.audit.rules import Entry, choose, entries, findings, question
from slurm_colloc.audit.workdays import works_by
from slurm_colloc.backtested import Backtest
from slurm_colloc.cli.colloc.output import site_or_none, span, window, write
from slurm_colloc.cli.colloc.progress import progress
from slurm_colloc.cli.colloc.seen import seen_store
from slurm_colloc.cli.colloc.terminal import terminal
from slurm_colloc.clock import now
from slurm_colloc.config import SiteConfig, load_audit
from slurm_colloc.config_audit import Audit, Notices
from slurm_colloc.errors import InputError, UnknownError
from slurm_colloc.placement.fitted import sm_edges
from slurm_colloc.report.backtest import as_csv, as_json, as_table
from slurm_colloc.report.layout import NO_TERMINAL

Step = Annotated[str, typer.Option("--step", help="from one run to the next; cron's is 1d")]
Length = Annotated[str, typer.Option("--window", help="what each run looks back on; else the site's, or 7d")]
Quiet = Annotated[str, typer.Option("--quiet", help="between two notices of one finding; else the site's, or 14d")]
Rules = Annotated[str, typer.Option("--rules", metavar="FILE", help="proposed rules: a site.toml, or an [audit]")]
Only = Annotated[list[str] | None, typer.Option("--rule", help="only these, by name or code")]
Kept = Annotated[str, typer.Option("--store", help="folder of the store; else the site's")]
_FORMS = ("table", "json", "csv")


def backtest(
    since: Annotated[str, typer.Option("--since", help="ISO 8601, or a span such as 90d")] = "90d",
    until: Annotated[str, typer.Option("--until", help="ISO 8601, a span, or now")] = "now",
    step: Step = "7d",
    length: Length = "",
    quiet: Quiet = "",
    rules: Rules = "",
    rule: Only = None,
    form: Annotated[str, typer.Option("--format", help="table, json or csv")] = "table",
    output: Annotated[str, typer.Option("--output", "-o", help="file instead of standard output")] = "",
    store: Kept = "",
) -> None:
    """Say whom rules would have named, and how many mails they would have made. Nothing is sent."""
    if form not in _FORMS:
        raise InputError(f"--format '{form}' is not one of {', '.join(_FORMS)}")
    tried = try_rules(Asked(*window(since, until), step, length, quiet, rules, tuple(rule or ()), store))
    if form == "table":
        write(as_table(tried, NO_TERMINAL if output else terminal()), output)
    else:
        write(as_json(tried) if form == "json" else as_csv(tried), output)
    if not tried.total.steps_judged:
        raise UnknownError("nothing can be said: in none of these windows was any GPU run measured well enough")


class Asked(NamedTuple):
    """What is to be tried; see the options of the same names."""

    since: datetime
    until: datetime
    step: str
    length: str
    quiet: str
    file: str
    rules: tuple[str, ...]
    store: str


def try_rules(asked: Asked) -> Backtest:
    """Return what the rules would have made of the past.

    Raises:
        ConfigError: rules that cannot be used.
        InputError: a rule that is not in force.
        StoreError: the store cannot be read.
    """
    config = site_or_none()
    settings = config.notices if config else Notices()
    step = span("--step", asked.step)
    length = span("--window", asked.length) if asked.length else timedelta(days=settings.window_days)
    quiet = span("--quiet", asked.quiet) if asked.quiet else timedelta(days=settings.quiet_days)
    works = works_by(settings)
    audit = load_audit(asked.file) if asked.file else config.audit if config else Audit()
    chosen = choose(entries(audit), asked.rules)
    source = seen_store(asked.store, config)
    over = windows(asked.since, asked.until, step, length)
    ran = []
    with progress("trying rules") as tell:
        for number, ends in enumerate(over):
            tell(number, len(over))
            ran.append(_run(source, ends, chosen, audit, config))
    notices = would_notify(ran, step, settings._replace(quiet_days=quiet / timedelta(days=1)), works)
    by_rule, total = in_all(ran, notices, chosen)
    return Backtest(
        since=asked.since,
        until=asked.until,
        step_s=round(step.total_seconds()),
        window_s=round(length.total_seconds()),
        quiet_s=round(quiet.total_seconds()),
        file=asked.file,
        visible=source.visible.whose,
        steps=steps_of(ran, notices, chosen, step, works),
        rules=by_rule,
        total=total,
    )


def _run(
    source: Store, ends: tuple[datetime, datetime], chosen: Sequence[Entry], audit: Audit, config: SiteConfig | None
) -> Ran:
    since, until = ends
    span_s = Window(since.timestamp(), until.timestamp(), now())
    judged, said, behind = {}, [], {}
    with source.connect(span_s.since_s, span_s.until_s) as database:
        sweep_to_file(database, source, span_s, sm_edges(config) if config else ())
        make_audited(database, config)
        whole = whole_usage(database)
        for entry in chosen:
            asked = question(entry, audit)
            of = answer(database, asked)
            judged[entry.name] = of.rows, of.judged
            found = findings(entry, of, "")
            runs = found_runs(database, asked) if found else {}
            for one in found:
                said.append(one)
                behind[key_of(one)] = runs[one.cluster, one.subject]
    return Ran(since, until, whole.jobs, whole.jobs_measured, whole.coverage_pct, judged, tuple(said), behind)

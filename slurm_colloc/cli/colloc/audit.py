# SPDX-License-Identifier: Apache-2.0
"""colloc audit: rules over measured use."""

import shlex
import sys
from datetime import datetime
from functools import partial
from typing import Annotated, Any, NamedTuple, NoReturn

import typer

from slurm_colloc.accounting.audited import answer, make_audited
from slurm_colloc.accounting.sweep import Window, sweep_to_file
from slurm_colloc.accounting.usage import whole_usage
from slurm_colloc.audit.rule import RUNS
from slurm_colloc.audit.rules import Entry, choose, entries, findings, question
from slurm_colloc.audited import Finding
from slurm_colloc.cli.colloc.audit_backtest import backtest
from slurm_colloc.cli.colloc.audit_calendar import calendar
from slurm_colloc.cli.colloc.audit_explain import explain
from slurm_colloc.cli.colloc.audit_import import import_
from slurm_colloc.cli.colloc.audit_notify import notify
from slurm_colloc.cli.colloc.audit_outbox import ack, optout, outbox
from slurm_colloc.cli.colloc.output import site, site_or_none, window, write
from slurm_colloc.cli.colloc.seen import seen_store
from slurm_colloc.clock import now
from slurm_colloc.config import SiteConfig
from slurm_colloc.config_audit import Audit
from slurm_colloc.errors import InputError, UnknownError
from slurm_colloc.measured import GroupUsage
from slurm_colloc.placement.fitted import sm_edges
from slurm_colloc.report.findings import Audited, as_json, as_text
from slurm_colloc.units import counted

app = typer.Typer(no_args_is_help=True, help="Rules over measured use; they name nobody on weak evidence.")
app.command("import")(import_)
for _command in (explain, backtest, calendar, ack, optout, outbox):
    app.command()(_command)
_FORMS = ("text", "json")
_WINDOW = ("7d", "now")


@app.command("run")
def run_audit(
    since: Annotated[str, typer.Option("--since", help="ISO 8601, or a span such as 7d")] = "7d",
    until: Annotated[str, typer.Option("--until", help="ISO 8601, a span, or now")] = "now",
    form: Annotated[str, typer.Option("--format", help="text or json")] = "text",
    rule: Annotated[list[str] | None, typer.Option("--rule", help="only these, by name or code")] = None,
    user: Annotated[str, typer.Option("--user", help="only findings about this user")] = "",
    subject: Annotated[str, typer.Option("--subject", help="only findings about this node, job or application")] = "",
    store: Annotated[str, typer.Option("--store", help="folder of the store; else the site's")] = "",
    tell: Annotated[bool, typer.Option("--notify", help="for cron: do what site.toml's [notices] says")] = False,
    textfile: Annotated[str, typer.Option("--textfile", help="with it: file for Prometheus")] = "",
    json_lines: Annotated[str, typer.Option("--json-lines", help="with it: file to add findings to")] = "",
    webhook: Annotated[str, typer.Option("--webhook", help="with it: URL to post counts to")] = "",
) -> None:
    """Print findings; exit status 0 clean, 1 findings, 2 error, 3 nothing could be judged."""
    if form not in _FORMS:
        raise InputError(f"--format '{form}' is neither text nor json")
    outlets = {"textfile": textfile, "json_lines": json_lines, "webhook": webhook}
    given: dict[str, Any] = {name: value for name, value in outlets.items() if value}
    if not tell:
        if given:
            raise InputError("--textfile, --json-lines and --webhook are for --notify")
        asked = _Asked(site_or_none(), tuple(rule or ()), user, subject, store, form)
        seen, found = _look(asked, *window(since, until))
        _end(seen, 1 if found else 0)
    if (since, until) != _WINDOW or user or subject:
        raise InputError("--notify looks at everybody, by 'notices.window_days'; leave the other options out")
    config = site()
    config = config._replace(notices=config.notices._replace(**given))
    asked = _Asked(config, tuple(rule or ()), "", "", store, form)
    show = sys.stdout.write if form == "text" else len
    status, noticed = notify(config, asked.entries, partial(_look, asked), show)
    _end(noticed.seen, status)


class _Asked(NamedTuple):
    config: SiteConfig | None
    rules: tuple[str, ...]
    user: str
    subject: str
    store: str
    form: str

    @property
    def audit(self) -> Audit:
        return self.config.audit if self.config else Audit()

    @property
    def entries(self) -> tuple[Entry, ...]:
        return choose(entries(self.audit), self.rules)


def _look(asked: _Asked, start: datetime, end: datetime) -> tuple[Audited, list[Finding]]:
    """Print and return what is found in [start, end)."""
    chosen = asked.entries
    options = f"--since {start.isoformat()} --until {end.isoformat()}"
    if asked.store:
        options += f" --store {shlex.quote(asked.store)}"
    source = seen_store(asked.store, asked.config)
    with source.connect(start.timestamp(), end.timestamp()) as database:
        config = asked.config
        edges = sm_edges(config) if config else ()
        sweep_to_file(database, source, Window(start.timestamp(), end.timestamp(), now()), edges)
        make_audited(database, config)
        answers = [(entry, answer(database, question(entry, asked.audit))) for entry in chosen]
        whole = whole_usage(database)
    found = [
        one
        for entry, of in answers
        for one in findings(entry, of, options)
        if asked.user in ("", one.user) and asked.subject in ("", one.subject)
    ]
    judged = {entry.name: (of.rows, of.judged) for entry, of in answers}
    accounted = tuple(entry.name for entry in chosen if entry.rule.accounted or entry.rule.source != RUNS)
    seen = Audited(start, end, whole, judged, source.visible.whose, accounted)
    write(as_json(seen, found) if asked.form == "json" else as_text(seen, found), "")
    return seen, found


def _end(seen: Audited, status: int) -> NoReturn:
    if not seen.judged and status in (0, 3):
        raise UnknownError(f"nothing can be said of {counted(seen.whole.jobs, 'GPU run')}: {_why_not(seen.whole)}")
    raise typer.Exit(status)


def _why_not(whole: GroupUsage) -> str:
    if not whole.jobs:
        return "there is none; does 'colloc ingest' still run?"
    if not whole.jobs_measured:
        return "not one was measured; does 'colloc agent' run on the nodes?"
    return f"{whole.jobs_measured} were measured, none by samples of enough of its time"

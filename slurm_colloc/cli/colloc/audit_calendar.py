# SPDX-License-Identifier: Apache-2.0
"""colloc audit calendar: how many mails went out, or would have, on which day."""

import os
from typing import Annotated

import typer

from slurm_colloc.audit.calendar import sent_by_day, tried_by_day
from slurm_colloc.audit.state import audit_folder, opened
from slurm_colloc.audit.timing import OTHERS
from slurm_colloc.audit.workdays import works_by
from slurm_colloc.backtested import Calendar
from slurm_colloc.cli.colloc.audit_backtest import (
    About,
    Asked,
    Chosen,
    Kept,
    Length,
    Only,
    Quiet,
    Rules,
    Step,
    step_of,
    try_rules,
)
from slurm_colloc.cli.colloc.output import one_of, site, site_or_none, window, write
from slurm_colloc.cli.colloc.terminal import terminal
from slurm_colloc.config_audit import Notices
from slurm_colloc.errors import InputError, UnknownError
from slurm_colloc.files import as_owner
from slurm_colloc.report.backtest import heading
from slurm_colloc.report.calendar import as_csv, as_json, as_text
from slurm_colloc.report.layout import NO_TERMINAL

_FORMS = ("table", "json", "csv")


def calendar(
    since: Annotated[str, typer.Option("--since", help="ISO 8601, or a span such as 90d")] = "90d",
    until: Annotated[str, typer.Option("--until", help="ISO 8601, a span, or now")] = "now",
    backtest: Annotated[
        bool, typer.Option("--backtest", help="what rules would have sent; the next six are of it")
    ] = False,
    step: Step = "",
    length: Length = "",
    quiet: Quiet = "",
    rules: Rules = "",
    rule: Only = None,
    about: About = OTHERS,
    form: Annotated[str, typer.Option("--format", help="table, json or csv")] = "table",
    output: Annotated[str, typer.Option("--output", "-o", help="file instead of standard output")] = "",
    store: Kept = "",
) -> None:
    """Say how many notices and mails went to people on each day."""
    one_of("--format", form, _FORMS)
    chosen = Chosen(rules, tuple(rule or ()), about)
    asked = Asked(*window(since, until), step or step_of(about, "1d"), length, quiet, chosen, store)
    shown = _tried(asked) if backtest else _sent(asked)
    if form == "table":
        write(as_text(shown, NO_TERMINAL if output else terminal()), output)
    else:
        write(as_json(shown) if form == "json" else as_csv(shown), output)


def _tried(asked: Asked) -> Calendar:
    config = site_or_none()
    tried = try_rules(asked)
    return Calendar(heading(tried), tried_by_day(tried.steps, works_by(config.notices if config else Notices())))


def _sent(asked: Asked) -> Calendar:
    if asked.rules != Chosen("", (), OTHERS) or asked.length or asked.quiet:
        raise InputError("--window, --quiet, --rules, --rule and --about are for --backtest; what was sent, was sent")
    config = site()
    if not os.path.isdir(config.audit_folder):
        raise UnknownError(
            "nothing was ever sent from here: 'colloc audit run --notify' has not run; --backtest says what it would"
        )
    with as_owner(config.audit_folder), opened(audit_folder(config.audit_folder)) as state:
        days = sent_by_day(state, asked.since, asked.until, works_by(config.notices))
    return Calendar("what mail servers accepted, by local days", days)

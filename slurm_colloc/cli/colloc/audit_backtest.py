# SPDX-License-Identifier: Apache-2.0
"""colloc audit backtest: rules over past windows, before they speak."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Annotated

import typer

from slurm_colloc.audit.backtest import in_all, steps_of, windows, would_notify
from slurm_colloc.audit.rules import Entry, choose, entries
from slurm_colloc.audit.timing import JOBS, OTHERS, check_bounds, of_about, window_days
from slurm_colloc.audit_model import JOB, Audited
from slurm_colloc.backtest_model import Backtest
from slurm_colloc.cli.colloc.audit_look import Looking
from slurm_colloc.cli.colloc.output import one_of, site_or_none, span, window
from slurm_colloc.cli.colloc.progress import progress, told
from slurm_colloc.cli.colloc.terminal import show
from slurm_colloc.cli.colloc.visible_store import seen_store
from slurm_colloc.config import load_audit
from slurm_colloc.config_audit import Audit, Notices
from slurm_colloc.errors import UnknownError
from slurm_colloc.report.backtest import FORMATS

_JOBS_STEP = "30m"


def backtest(
    since: Annotated[str, typer.Option("--since", help="ISO 8601, or a span such as 90d")] = "90d",
    until: Annotated[str, typer.Option("--until", help="ISO 8601, a span, or now")] = "now",
    step: Annotated[str, typer.Option("--step", help="between two runs; the timers' are 1d, of jobs 30m")] = "",
    length: Annotated[str, typer.Option("--window", help="what each run looks back on; else the site's")] = "",
    quiet: Annotated[str, typer.Option("--quiet", help="between two notices of one finding; else the site's")] = "",
    rules: Annotated[str, typer.Option("--rules", metavar="FILE", help="proposed: a site.toml, or an [audit]")] = "",
    rule: Annotated[list[str] | None, typer.Option("--rule", help="only these, by name or code")] = None,
    about: Annotated[str, typer.Option("--about", help="rules about running 'jobs', or the 'others'")] = OTHERS,
    form: Annotated[str, typer.Option("--format", help="table, json or csv")] = "table",
    output: Annotated[str, typer.Option("--output", "-o", help="file instead of standard output")] = "",
    store: Annotated[str, typer.Option("--store", help="folder of the store; else the site's")] = "",
) -> None:
    """Say whom rules would have named, and in how many mails. Nothing is sent."""
    one_of("--format", form, FORMATS)
    start, end = window(since, until)
    config = site_or_none()
    audit = load_audit(rules) if rules else config.audit if config else Audit()
    known = choose(entries(audit), rule or ())
    chosen = of_about(known, about)
    between = span("--step", step or (_JOBS_STEP if about == JOBS else "7d"))
    reach = span("--window", length) if length else timedelta(days=window_days(about))
    check_bounds(chosen, reach / timedelta(days=1))
    settings = _quiet(config.notices if config else Notices(), about, quiet)
    looking = Looking(seen_store(store, config), config, audit)
    ran = _ran(looking, chosen, windows(start, end, between, reach))
    notices = would_notify(ran, chosen, config.cluster if config else None, between, settings)
    by_rule, total = in_all(ran, notices, chosen)
    tried = Backtest(
        since=start,
        until=end,
        step_s=round(between.total_seconds()),
        window_s=round(reach.total_seconds()),
        quiet_s=round(60 * settings.job_wait_min if about == JOBS else 86_400 * settings.quiet_days),
        file=rules,
        visible=looking.source.visible.whose,
        steps=steps_of(ran, notices, chosen, between, settings),
        rules=by_rule,
        total=total,
        left_out=tuple(entry.name for entry in known if entry not in chosen and entry.rule.about == JOB),
        admins_only=tuple(entry.name for entry in chosen if not entry.tells_users),
    )
    show(tried, FORMATS, form, output)
    if not total.steps_judged:
        raise UnknownError("nothing can be said: in none of these windows was any GPU run measured well enough")


def _ran(looking: Looking, chosen: Sequence[Entry], over: Sequence[tuple[datetime, datetime]]) -> list[Audited]:
    """Return what the rules find in each window."""
    with progress("trying rules") as step:
        return [looking.look(chosen, *ends, behind=True) for ends in told(over, step)]


def _quiet(settings: Notices, about: str, quiet: str) -> Notices:
    """Return the settings with another quiet period, where one is given."""
    if not quiet:
        return settings
    length = span("--quiet", quiet)
    if about == JOBS:
        return settings._replace(job_wait_min=length / timedelta(minutes=1))
    return settings._replace(quiet_days=length / timedelta(days=1))

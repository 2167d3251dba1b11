# SPDX-License-Identifier: Apache-2.0
"""colloc audit: rules over measured use."""

import os
import shlex
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, NamedTuple, NoReturn

from typer import Argument, Exit, Option, Typer

from slurm_colloc.audit.rules import Entry, all_entries, choose, entries, explained, findings, listed, question
from slurm_colloc.audit.timing import JOBS, Asked, first_mails, nights, of_about
from slurm_colloc.cli.colloc.audit_notify import Piece, notify
from slurm_colloc.cli.colloc.audit_person import mail, optout
from slurm_colloc.cli.colloc.job_next import advice_for
from slurm_colloc.cli.colloc.options import Since, StoreFolder, format_option
from slurm_colloc.cli.colloc.output import service_folder, site, site_or_none, span, window, write
from slurm_colloc.cli.colloc.progress import progress
from slurm_colloc.cli.colloc.progress import told as each
from slurm_colloc.cli.colloc.terminal import put, terminal
from slurm_colloc.cli.colloc.visible_store import seen_store
from slurm_colloc.core.audit_model import JOB, RUNS, Answer, Audited, Finding, MailDay
from slurm_colloc.core.clock import now
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.config_audit import Audit, Notices
from slurm_colloc.core.config_file import load_audit
from slurm_colloc.core.errors import CollocError, InputError, Status, UnknownError
from slurm_colloc.core.units import counted, printable
from slurm_colloc.core.usage_model import GroupUsage
from slurm_colloc.facts.aggregate import aggregate
from slurm_colloc.facts.audited import answer, make_audited
from slurm_colloc.facts.counts import known_until_s
from slurm_colloc.facts.one_job import find_job
from slurm_colloc.facts.usage import whole_usage
from slurm_colloc.report.findings import as_csv, as_json, as_text
from slurm_colloc.report.text import local, stamp
from slurm_colloc.store.store import Store
from slurm_colloc.store.window import Window, window_of

app = Typer(no_args_is_help=True, help="Find idle and oversized jobs by rules, and mail their users.")
for _command in (optout, mail):
    app.command()(_command)
_NOTHING = Answer(0, 0, ())
_WINDOW = ("7d", "now")
# Rules that say of a run what facts/judgement.py does.
_JUDGED = ("COL001", "COL003", "COL007")


@app.command("run")
def run_audit(
    since: Since = "7d",
    until: Annotated[str, Option(help="ISO 8601, a span, or now; of the past: mails by day")] = "now",
    form: Annotated[str, format_option("text", "json", "csv")] = "text",
    rules: Annotated[str, Option(metavar="FILE", help="proposed: a site.toml, or an [audit]")] = "",
    rule: Annotated[list[str] | None, Option(help="only these, by name or code")] = None,
    about: Annotated[str, Option(help="only rules about running 'jobs', or only the 'others'")] = "",
    user: Annotated[str, Option(help="only findings about this user")] = "",
    subject: Annotated[str, Option(help="only findings about this node or job")] = "",
    store: StoreFolder = "",
    tell: Annotated[bool, Option("--notify", help="for cron: do what site.toml's [notices] says")] = False,
    wait: Annotated[str, Option(help="with it: so long for another run's end, e.g. 20m")] = "",
    dry_run: Annotated[bool, Option("--dry-run", help="with it: print what it would do, and do nothing")] = False,
) -> None:
    """Print findings. Exit status 0 clean, 1 findings, 2 error, 3 nothing could be judged."""
    if tell:
        if rules:
            raise InputError("--notify tells of the rules in force; try those of a file without it")
        if (since, until) != _WINDOW or user or subject:
            raise InputError("--notify looks at everybody and at days of its own; leave the other options out")
        _notify(tuple(rule or ()), about, store, form, wait, dry=dry_run)
    if wait or dry_run:
        raise InputError("--wait and --dry-run are for --notify")
    config = site_or_none()
    looking = _looking(config, store, rules=rules)
    chosen = of_about(choose(entries(looking.audit), rule or ()), about)
    start, end = window(since, until)
    looked = looking.look(chosen, start, end)
    selected = (
        finding for finding in looked.findings if user in ("", finding.user) and subject in ("", finding.subject)
    )
    looked = looked._replace(findings=tuple(selected))
    if until != "now" and end.timestamp() < now() and not (user or subject) and form != "csv":
        looked = looked._replace(mails_by_day=_mails_by_day(looking, chosen, start, end))
    _show([looked], form)
    _end(looked, Status.FOUND if looked.findings else Status.DONE)


@app.command()
def explain(
    rule: Annotated[str, Argument(metavar="CODE", help="a code or name; without one, all rules")] = "",
) -> None:
    """Print what a rule says, on which evidence, by which bounds. Without a code, list the rules."""
    config = site_or_none()
    ruleset = all_entries(config.audit if config else Audit())
    text = explained(ruleset, rule) if rule else listed(ruleset)
    put("".join(f"{printable(line)}\n" for line in text.splitlines()))


def _notify(rules: tuple[str, ...], about: str, store: str, form: str, wait: str, *, dry: bool) -> NoReturn:
    config = site()
    if about == JOBS:
        config = config._replace(notices=config.notices._replace(textfile=config.notices.textfile_of_jobs))
    if not os.path.isdir(config.audit_folder):  # no folder is made beside a mistyped path
        service_folder("store", store)

    def look(pieces: Sequence[Piece], printing: bool) -> list[Audited]:
        looking = _looking(config, store, service_folder("store", store))
        looks = [looking.look(*piece) for piece in pieces]
        if printing:
            _show(looks, form)
        return looks

    def line(finding: Finding) -> str:
        return _line(finding, seen_store(service_folder("store", store), config), config)

    ruleset = entries(config.audit)
    chosen = of_about(choose(ruleset, rules), about)
    beside = tuple(entry for entry in ruleset if entry not in chosen) if about and not rules else ()
    wait_s = span("--wait", wait).total_seconds() if wait else 0.0
    show = sys.stdout.write if form == "text" else len
    status, audited = notify(config, Asked(chosen, about, wait_s, beside), look, show, line, dry=dry)
    _end(audited, status)


def _line(finding: Finding, source: Store, config: SiteConfig) -> str:
    """Return the line that ends a job, or submits the worst of several as is said of them; empty where none is sure."""
    if finding.idle_since_s is not None:
        return f"scancel {shlex.quote(finding.subject)}"
    if finding.code not in _JUDGED or not finding.jobs:
        return ""
    worst = finding.jobs[0]
    try:
        runs = find_job(source, worst.job_id, Window(worst.start_s, now(), now()), config, 1)
        return advice_for(runs[-1], runs[-1].usage, config).command if runs else ""
    except CollocError:
        return ""


class Looking(NamedTuple):
    """A store that rules look at, by a site's words; ``options`` are those of a command that looks at it again."""

    source: Store
    config: SiteConfig | None
    audit: Audit
    options: str = ""

    def look(self, chosen: Sequence[Entry], start: datetime, end: datetime, told_jobs: Sequence[str] = ()) -> Audited:
        """Return what these rules find in [start, end), apart from what users of ``told_jobs`` know already.

        Raises:
            StoreError: the store cannot be read.
        """
        span = window_of(start, end)
        options = f"--since {start.isoformat()} --until {end.isoformat()}{self.options}"
        judged: dict[str, tuple[int, int]] = {}
        all_findings: list[Finding] = []
        with self.source.connect(span.since_s, span.until_s) as database:
            with progress("adding up days") as step:
                aggregate(database, self.source, span, in_file=True, step=step)
                make_audited(database, self.config)
            known_s = known_until_s(self.source, database)
            stale = [entry for entry in chosen if _is_stale(entry, known_s, span.until_s)]
            with progress("applying rules") as step:
                for entry in each(chosen, step):
                    reply = _NOTHING if entry in stale else answer(database, question(entry, span.until_s, told_jobs))
                    judged[entry.form] = reply.rows, reply.judged
                    all_findings += findings(entry, reply, options)
            usage = whole_usage(database)
        accounted = tuple(entry.form for entry in chosen if entry.rule.accounted or entry.rule.source != RUNS)
        running = tuple(entry.form for entry in chosen if entry.rule.about == JOB)
        stale_reason = _why_stale(stale, known_s)
        whose = self.source.visible.whose
        return Audited(start, end, usage, judged, whose, accounted, running, stale_reason, tuple(all_findings))


def _is_stale(entry: Entry, known_s: float | None, until_s: float) -> bool:
    """Return whether a rule about running jobs cannot know which run."""
    return entry.rule.about == JOB and (known_s is None or until_s - known_s > 60 * entry.bounds["reading_age_min"])


def _why_stale(stale: Sequence[Entry], known_s: float | None) -> str:
    if not stale:
        return ""
    names = ", ".join(entry.name for entry in stale)
    when = "never" if known_s is None else f"last at {stamp(local(known_s))}"
    bound_min = max(entry.bounds["reading_age_min"] for entry in stale)
    return (
        f"which jobs run is not known to {names}: runs were taken in {when}, and {bound_min:g} min may be between; "
        "does 'colloc ingest' still run?"
    )


def _mails_by_day(looking: Looking, chosen: Sequence[Entry], start: datetime, end: datetime) -> tuple[MailDay, ...]:
    """Return how many mails the nightly runs of a window would have sent, of the rules that they ask."""
    nightly = [entry for entry in chosen if entry.rule.about != JOB]
    if not nightly:
        return ()
    with progress("counting mails") as step:
        looks = [looking.look(nightly, *ends) for ends in each(nights(start, end), step)]
    config = looking.config
    telling = {entry.name for entry in nightly if entry.tells_users}
    return first_mails(looks, telling, config.cluster if config else None, config.notices if config else Notices())


def _looking(config: SiteConfig | None, store: str, folder: str = "", rules: str = "") -> Looking:
    arguments = {"--store": store, "--rules": rules}
    options = "".join(f" {name} {shlex.quote(value)}" for name, value in arguments.items() if value)
    audit = config.audit if config else Audit()
    if rules:
        audit = load_audit(rules)
    return Looking(seen_store(folder or store, config), config, audit, options)


def _show(looks: Sequence[Audited], form: str) -> None:
    document = {"json": as_json, "csv": as_csv}.get(form)
    if document:
        write(document(looks), "")
    else:
        put("".join(as_text(look, terminal()) for look in looks))


def _end(audited: Audited, status: Status) -> NoReturn:
    if audited.unknown and status in (Status.DONE, Status.UNKNOWN):
        raise UnknownError(
            audited.stale
            or f"nothing can be said of {counted(audited.whole.jobs, 'GPU run')}: {_why_not(audited.whole)}"
        )
    raise Exit(status)


def _why_not(usage: GroupUsage) -> str:
    if not usage.jobs:
        return "there is none; does 'colloc ingest' still run?"
    if not usage.jobs_measured:
        return "not one was measured; does 'colloc agent' run on the nodes?"
    return (
        f"{usage.jobs_measured} were measured, none for as long, or in as much of its time, as the rules ask; "
        "'colloc audit explain CODE' has their bounds"
    )

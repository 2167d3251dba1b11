# SPDX-License-Identifier: Apache-2.0
"""colloc audit: rules over measured use."""

import os
import shlex
import sys
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, NoReturn

import typer

from slurm_colloc.audit.rules import Entry, all_entries, choose, entries, explained, listed
from slurm_colloc.audit.timing import JOBS, Asked, first_mails, nights, of_about
from slurm_colloc.cli.colloc.audit_look import Looking
from slurm_colloc.cli.colloc.audit_notify import Piece, notify
from slurm_colloc.cli.colloc.audit_person import mail, optout
from slurm_colloc.cli.colloc.output import one_of, service_folder, site, site_or_none, span, window, write
from slurm_colloc.cli.colloc.progress import progress, told
from slurm_colloc.cli.colloc.terminal import put
from slurm_colloc.cli.colloc.visible_store import seen_store
from slurm_colloc.core.audit_model import JOB, Audited, MailDay
from slurm_colloc.core.clock import now
from slurm_colloc.core.config import SiteConfig, load_audit
from slurm_colloc.core.config_audit import Audit, Notices
from slurm_colloc.core.errors import InputError, Status, UnknownError
from slurm_colloc.core.units import counted, printable
from slurm_colloc.core.usage_model import GroupUsage
from slurm_colloc.report.findings import as_csv, as_json, as_text

app = typer.Typer(no_args_is_help=True, help="Find idle and oversized jobs by rules, and mail their users.")
for _command in (optout, mail):
    app.command()(_command)
_FORMS = ("text", "json", "csv")
_WINDOW = ("7d", "now")


@app.command("run")
def run_audit(
    since: Annotated[str, typer.Option("--since", help="ISO 8601, or a span such as 7d")] = "7d",
    until: Annotated[str, typer.Option("--until", help="ISO 8601, a span, or now; of the past: mails by day")] = "now",
    form: Annotated[str, typer.Option("--format", help="text, json or csv")] = "text",
    rules: Annotated[str, typer.Option("--rules", metavar="FILE", help="proposed: a site.toml, or an [audit]")] = "",
    rule: Annotated[list[str] | None, typer.Option("--rule", help="only these, by name or code")] = None,
    about: Annotated[str, typer.Option("--about", help="only rules about running 'jobs', or only the 'others'")] = "",
    user: Annotated[str, typer.Option("--user", help="only findings about this user")] = "",
    subject: Annotated[str, typer.Option("--subject", help="only findings about this node or job")] = "",
    store: Annotated[str, typer.Option("--store", help="folder of the store; else the site's")] = "",
    tell: Annotated[bool, typer.Option("--notify", help="for cron: do what site.toml's [notices] says")] = False,
    wait: Annotated[str, typer.Option("--wait", help="with it: so long for another run's end, e.g. 20m")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="with it: print what it would do, and do nothing")] = False,
) -> None:
    """Print findings. Exit status 0 clean, 1 findings, 2 error, 3 nothing could be judged."""
    one_of("--format", form, _FORMS)
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
    found = (one for one in looked.findings if user in ("", one.user) and subject in ("", one.subject))
    looked = looked._replace(findings=tuple(found))
    if until != "now" and end.timestamp() < now() and not (user or subject) and form != "csv":
        looked = looked._replace(mails_by_day=_mails_by_day(looking, chosen, start, end))
    _show([looked], form)
    _end(looked, Status.FOUND if looked.findings else Status.DONE)


@app.command()
def explain(
    rule: Annotated[str, typer.Argument(metavar="CODE", help="a code or name; without one, all rules")] = "",
) -> None:
    """Print what a rule says, on which evidence, by which bounds. Without a code, list the rules."""
    config = site_or_none()
    known = all_entries(config.audit if config else Audit())
    text = explained(known, rule) if rule else listed(known)
    put("".join(f"{printable(line)}\n" for line in text.splitlines()))


def _notify(rules: tuple[str, ...], about: str, store: str, form: str, wait: str, *, dry: bool) -> NoReturn:
    config = site()
    if about == JOBS:
        config = config._replace(notices=config.notices._replace(textfile=config.notices.textfile_of_jobs))
    if not os.path.isdir(config.audit_folder):  # where a path is mistyped, none is made beside it
        service_folder("store", store)

    def look(pieces: Sequence[Piece], shown: bool) -> list[Audited]:
        looking = _looking(config, store, service_folder("store", store))
        looks = [looking.look(*piece) for piece in pieces]
        if shown:
            _show(looks, form)
        return looks

    known = entries(config.audit)
    chosen = of_about(choose(known, rules), about)
    beside = tuple(entry for entry in known if entry not in chosen) if about and not rules else ()
    wait_s = span("--wait", wait).total_seconds() if wait else 0.0
    show = sys.stdout.write if form == "text" else len
    status, seen = notify(config, Asked(chosen, about, wait_s, beside), look, show, dry=dry)
    _end(seen, status)


def _mails_by_day(looking: Looking, chosen: Sequence[Entry], start: datetime, end: datetime) -> tuple[MailDay, ...]:
    """Return how many mails the nightly runs of a window would have sent, of the rules that they ask."""
    asked = [entry for entry in chosen if entry.rule.about != JOB]
    if not asked:
        return ()
    with progress("counting mails") as step:
        looks = [looking.look(asked, *ends) for ends in told(nights(start, end), step)]
    config = looking.config
    telling = {entry.name for entry in asked if entry.tells_users}
    return first_mails(looks, telling, config.cluster if config else None, config.notices if config else Notices())


def _looking(config: SiteConfig | None, store: str, folder: str = "", rules: str = "") -> Looking:
    given = {"--store": store, "--rules": rules}
    options = "".join(f" {name} {shlex.quote(value)}" for name, value in given.items() if value)
    audit = load_audit(rules) if rules else config.audit if config else Audit()
    return Looking(seen_store(folder or store, config), config, audit, options)


def _show(looks: Sequence[Audited], form: str) -> None:
    whole = {"json": as_json, "csv": as_csv}.get(form)
    if whole:
        write(whole(looks), "")
    else:
        put("".join(map(as_text, looks)))


def _end(seen: Audited, status: Status) -> NoReturn:
    if seen.unknown and status in (Status.DONE, Status.UNKNOWN):
        raise UnknownError(
            seen.stale or f"nothing can be said of {counted(seen.whole.jobs, 'GPU run')}: {_why_not(seen.whole)}"
        )
    raise typer.Exit(status)


def _why_not(whole: GroupUsage) -> str:
    if not whole.jobs:
        return "there is none; does 'colloc ingest' still run?"
    if not whole.jobs_measured:
        return "not one was measured; does 'colloc agent' run on the nodes?"
    return (
        f"{whole.jobs_measured} were measured, none for as long, or in as much of its time, as the rules ask; "
        "'colloc audit explain CODE' has their bounds"
    )

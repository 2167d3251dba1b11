# SPDX-License-Identifier: Apache-2.0
"""colloc audit optout and mail: users without mails, and messages in doubt."""

import html
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from typer import Argument, Option

from slurm_colloc.audit.escalation import Waiver
from slurm_colloc.audit.post import Texts, check_settings, mail_content, message_id, send
from slurm_colloc.audit.rules import all_entries, choose, entries, kept_name
from slurm_colloc.audit.state import State, alone, audit_folder, opened
from slurm_colloc.cli.colloc.audit_notify import doubts
from slurm_colloc.cli.colloc.output import caller, moment, say, site, write
from slurm_colloc.cli.colloc.terminal import put
from slurm_colloc.cli.colloc.visible_store import seen_store
from slurm_colloc.core.clock import now
from slurm_colloc.core.errors import ConfigError, InputError, StoreError
from slurm_colloc.core.files import as_owner
from slurm_colloc.core.units import counted, printable
from slurm_colloc.report.text import local, stamp
from slurm_colloc.store.rights import knows_user


def optout(
    user: Annotated[str, Argument(help="who gets no mails; without a name, all are listed")] = "",
    rule: Annotated[str, Option(help="only of this rule, by name or code")] = "",
    subject: Annotated[str, Option(help="with --rule: only about this job")] = "",
    until: Annotated[str, Option(help="ISO 8601, or a span such as 30d; else for good")] = "",
    reason: Annotated[str, Option("--why", help="for whoever looks at it later")] = "wants none",
    end: Annotated[bool, Option("--end", help="tell again from now on")] = False,
) -> None:
    """Send a user no more notices. Without a name, list who gets none of what."""
    if not user:
        if rule or subject or until or end:
            raise InputError("--rule, --subject, --until and --end are of one user; name who is meant")
        with _state() as state:
            waivers = state.waivers()
        put("".join(map(_line, waivers)))
        if not waivers:
            say("nobody has opted out: everybody is told")
        return
    if subject and not rule:
        raise InputError("--subject is of one rule's findings; name it with --rule")
    _waive(Waiver(user, rule, subject, _until(until) if until else None, caller(), reason), end=end)


def mail(
    arrived: Annotated[str, Option(metavar="ID", help="this one went: it counts as told")] = "",
    lost: Annotated[str, Option("--again", metavar="ID", help="this one did not: the next run tells anew")] = "",
    test: Annotated[str, Option(metavar="ADDRESS", help="send a mail there now, to try it")] = "",
) -> None:
    """List messages in doubt, which the mail service may have taken.

    A run was cut short meanwhile; the mail service's log knows.
    """
    if sum(map(bool, (arrived, lost, test))) > 1:
        raise InputError("--arrived, --again and --test are each a call of its own")
    if test:
        _try_mail(test)
        return
    if arrived or lost:
        _settle(arrived, lost)
        return
    with _state() as state:
        doubtful = doubts(state)
    for doubt in doubtful:
        count = counted(doubt.findings, "finding")
        cause = printable(doubt.reply) or "it is being handed over now, or a run was cut short over it"
        text = f"in doubt since {stamp(doubt.at)}: {printable(doubt.recipient)}, {count}\n    {doubt.id}\n    {cause}\n"
        write(text, "")
    if not doubtful:
        say("no message is in doubt")


@contextmanager
def _folder() -> Iterator[str]:
    """Give the folder of the state, as its owner where root asks."""
    folder = site().audit_folder
    with as_owner(folder):
        yield audit_folder(folder)


@contextmanager
def _state() -> Iterator[State]:
    with _folder() as folder, opened(folder) as state:
        yield state


def _waive(waiver: Waiver, *, end: bool) -> None:
    for text in (waiver.user, waiver.rule, waiver.subject, waiver.why):
        if text != text.encode(errors="replace").decode():
            raise InputError(f"'{text}' has bytes outside UTF-8, which no name in the store has; write it without")
    audit = site().audit
    if waiver.rule and not end:  # a rule that is off may have waivers still
        choose(entries(audit), [waiver.rule])
    waiver = waiver._replace(rule=kept_name(all_entries(audit), waiver.rule))
    if not end:
        _check_name(waiver.user)
    with _state() as state:
        if not end:
            state.waive(waiver, now())
            write(_line(waiver), "")
        elif not state.end_waiver(waiver.user, waiver.rule, waiver.subject):
            raise InputError("there is no such waiver; 'colloc audit optout' lists them")


def _check_name(user: str) -> None:
    """Say so where the store has no run of this user: a misspelt name is excused, and whoever was meant is not."""
    try:
        store = seen_store("", site())
        if not knows_user(store, user):
            scope = f" ({store.visible.whose})" if store.visible.whose else ""
            say(f"no run of '{user}' is in the store{scope}: is the name right? It is taken as it is")
    except StoreError as error:
        say(f"whether '{user}' ever had a run is not known: {error}")


def _settle(arrived: str, lost: str) -> None:
    with _folder() as folder, alone(folder) as held:
        if not held:
            raise StoreError(f"a run of the audit holds '{folder}/lock'; try again when it has ended")
        with opened(folder) as state:
            if not (state.end_message(arrived, now()) if arrived else state.forget_message(lost)):
                raise InputError(f"no message '{arrived or lost}' is in doubt; see 'colloc audit mail'")
    write(f"counts as told: {arrived}\n" if arrived else f"counts as never sent: {lost}\n", "")


def _try_mail(address: str) -> None:
    """Send one mail by the settings in force, of which nothing is kept.

    Raises:
        InputError: [notices] cannot be used, or ``address`` is none.
        NotTakenError: the mail service did not take it.
        ProcessError: it was cut short.
    """
    config = site()
    settings = config.notices._replace(mode="admins", admins=(address,))
    try:
        check_settings(settings)
    except ConfigError as error:
        raise InputError(f"--test '{address}' cannot be sent: {error}") from error
    cluster = printable(config.cluster)
    text = f"This is a test: the audits of the cluster {cluster} can send mails to this address.\n"
    texts = Texts(f"[{cluster}] test of notices", text, f"<p>{html.escape(text)}</p>")
    id = message_id([address, os.urandom(16).hex()], settings)
    with as_owner(config.audit_folder):
        send(mail_content(id, address, texts, settings, now()), settings.sender)
    write(f"handed over to the mail service, whose log says what becomes of it\n    {id}\n", "")


def _line(waiver: Waiver) -> str:
    until = "for good" if waiver.until_s is None else f"until {stamp(local(waiver.until_s))}"
    subject = f" about {printable(waiver.subject)}" if waiver.subject else ""
    return (
        f"{printable(waiver.user)} is not told of {waiver.rule or 'anything'}{subject} {until}, "
        f"says {printable(waiver.by)}: {printable(waiver.why)}\n"
    )


def _until(text: str) -> float:
    """Return a time to come.

    Raises:
        InputError: it is none.
    """
    present = local(now())
    until = moment(text, present, ahead=True)
    if until <= present:
        raise InputError(f"--until '{text}' is over already")
    return until.timestamp()

# SPDX-License-Identifier: Apache-2.0
"""colloc audit ack, optout and outbox: a person's word on what is told to whom."""

import html
import os
import pwd
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Annotated

import typer

from slurm_colloc.accounting.seen import knows_user
from slurm_colloc.audit.ladder import ACCEPTED, DROPPED, QUEUED, WITHDRAWN, Waiver
from slurm_colloc.audit.message import Texts, check_settings, mail, message_id
from slurm_colloc.audit.rules import all_entries, choose, entries, kept_name
from slurm_colloc.audit.smtp import MailServer
from slurm_colloc.audit.state import State, alone, audit_folder, opened
from slurm_colloc.audit.wire import ServerError
from slurm_colloc.cli.colloc.output import moment, say, site, write
from slurm_colloc.cli.colloc.seen import own_name, seen_store
from slurm_colloc.cli.colloc.terminal import put
from slurm_colloc.clock import now
from slurm_colloc.errors import ConfigError, InputError, StoreError
from slurm_colloc.files import as_owner
from slurm_colloc.report.text import local, stamp
from slurm_colloc.units import counted, printable

Name = Annotated[str, typer.Argument(help="whose findings these are")]
Until = Annotated[str, typer.Option("--until", help="ISO 8601, or a span such as 30d")]
Why = Annotated[str, typer.Option("--why", help="for whoever looks at it later")]
End = Annotated[bool, typer.Option("--end", help="tell again from now on")]


def ack(
    user: Name,
    rule: Annotated[str, typer.Option("--rule", help="of this rule, by name or code")] = "",
    subject: Annotated[str, typer.Option("--subject", help="only about this job or application")] = "",
    until: Until = "30d",
    why: Why = "acknowledged",
    end: End = False,
) -> None:
    """Tell a user nothing of one rule's findings for a while."""
    if not user:
        raise InputError("the user is an empty word; name whose findings are acknowledged")
    if not rule:
        raise InputError("--rule says what is acknowledged; 'colloc audit optout' is for all of it")
    _waive(Waiver(user, rule, subject, _until(until), _says(), why), end=end)


def optout(
    user: Annotated[str, typer.Argument(help="who gets no mails; without a name, all are listed")] = "",
    rule: Annotated[str, typer.Option("--rule", help="only of this rule, by name or code")] = "",
    until: Until = "",
    why: Why = "wants none",
    end: End = False,
) -> None:
    """Send a user no more notices. Without a name, list who gets none of what."""
    if not user:
        if rule or until or end:
            raise InputError("--rule, --until and --end are of one user; name who is meant")
        with _state() as state:
            waivers = state.waivers()
        put("".join(map(_line, waivers)))
        if not waivers:
            say("nobody has opted out, and nothing is acknowledged: everybody is told")
        return
    _waive(Waiver(user, rule, "", _until(until) if until else None, _says(), why), end=end)


def outbox(
    resend: Annotated[str, typer.Option("--resend", metavar="ID", help="send this one again, with the next run")] = "",
    drop: Annotated[str, typer.Option("--drop", metavar="ID", help="never send this one; it does not count")] = "",
    everything: Annotated[bool, typer.Option("--all", help="also what was accepted, dropped or withdrawn")] = False,
    test: Annotated[str, typer.Option("--test", metavar="ADDRESS", help="send a mail there now, to try it")] = "",
) -> None:
    """List messages that wait, were refused, or are in doubt. Those in doubt the mail server may have, or not."""
    if sum(map(bool, (resend, drop, test, everything))) > 1:
        raise InputError("--resend, --drop, --test and --all are each a call of its own")
    if test:
        _try_mail(test)
        return
    if resend or drop:
        _settle(resend or drop, QUEUED if resend else DROPPED)
        return
    with _state() as state:
        messages = state.outbox()
        listed = [one for one in messages if everything or one.state not in (ACCEPTED, DROPPED, WITHDRAWN)]
        for one in listed:
            write(
                f"{one.state} since {_at(one.changed_s)}: {printable(one.recipient)}, "
                f"{counted(len(state.carried(one.id)), 'finding')}, {counted(one.attempts, 'attempt')}\n"
                f"    {one.id}\n" + (f"    {printable(one.reply)}\n" if one.reply else ""),
                "",
            )
    if not listed:
        settled = f"; --all lists {counted(len(messages), 'message')} that came to an end" if messages else ""
        say(f"no message waits, was refused or is in doubt{settled}")


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


def _says() -> str:
    """Return the name of the person who calls: whom sudo let in, not who they are by it."""
    name, uid = os.environ.get("SUDO_USER", ""), os.environ.get("SUDO_UID", "")
    try:
        return name if name and str(pwd.getpwnam(name).pw_uid) == uid else own_name()
    except KeyError:
        return own_name()


def _waive(waiver: Waiver, *, end: bool) -> None:
    for text in (waiver.user, waiver.rule, waiver.subject, waiver.why):
        if text != text.encode(errors="replace").decode():
            raise InputError(f"'{text}' has bytes outside UTF-8, which no name in the store has; write it without")
    audit = site().audit
    if waiver.rule and not end:  # of a rule that is off there may be waivers still
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
            seen = f" ({store.visible.whose})" if store.visible.whose else ""
            say(f"no run of '{user}' is in the store{seen}: is the name right? It is taken as it is")
    except StoreError as error:
        say(f"whether '{user}' ever had a run is not known: {error}")


def _settle(message: str, wanted: str) -> None:
    with _folder() as folder, alone(folder) as held:
        if not held:
            raise StoreError(f"a run of the audit holds '{folder}/lock'; try again when it has ended")
        with opened(folder) as state:
            if not state.settle(message, wanted, now()):
                raise InputError(f"no message '{message}' waits, was refused or is in doubt; see 'colloc audit outbox'")
    write(f"{wanted}: {message}\n", "")


def _try_mail(address: str) -> None:
    """Send one mail by the settings in force, of which nothing is kept.

    Raises:
        InputError: [notices] cannot be used, or ``address`` is none.
        ServerError: the mail server cannot be used, or did not take it.
    """
    config = site()
    settings = config.notices._replace(mode="admins", admins=(address,))
    try:
        check_settings(settings)
    except ConfigError as error:
        raise InputError(f"--test '{address}' cannot be sent: {error}") from error
    cluster = printable(config.cluster)
    text = f"This is a test: the audits of the cluster {cluster} can send mails to this address.\n"
    id = message_id([address, os.urandom(16).hex()], settings)
    content = mail(
        id, address, Texts(f"[{cluster}] test of notices", text, f"<p>{html.escape(text)}</p>"), settings, now()
    )
    server = MailServer(settings)
    with as_owner(config.audit_folder), closing(server):
        outcome = server.send(address, content, lambda: None)
    if outcome.state != ACCEPTED:
        raise ServerError(f"the mail to '{address}' is {outcome.state}: {printable(outcome.reply)}")
    write(f"{outcome.state}: {printable(outcome.reply)}\n    {id}\n", "")


def _line(waiver: Waiver) -> str:
    until = "for good" if waiver.until_s is None else f"until {_at(waiver.until_s)}"
    subject = f" about {printable(waiver.subject)}" if waiver.subject else ""
    return (
        f"{printable(waiver.user)} is not told of {waiver.rule or 'anything'}{subject} {until}, "
        f"says {printable(waiver.by)}: {printable(waiver.why)}\n"
    )


def _at(seconds: float) -> str:
    return stamp(local(seconds))


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

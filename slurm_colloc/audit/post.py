# SPDX-License-Identifier: Apache-2.0
"""Makes mails, whose headers no user writes in, and sends the same never twice.

Each is marked on the disk before a mail service or the site's command gets it. The host's own mail service queues
mails, tries again and reports what cannot be delivered. The site's command has on its standard input what was found,
and calls what it likes.
"""

import hashlib
import json
import os
import re
import shutil
import stat
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import default
from email.utils import format_datetime
from typing import NamedTuple

from slurm_colloc.audit.escalation import DOUBTFUL, SENT, Notification, Planned, key_of
from slurm_colloc.audit.state import State
from slurm_colloc.core.clock import now
from slurm_colloc.core.config_audit import Notices
from slurm_colloc.core.errors import CollocError, ConfigError, ProcessError, UnansweredError
from slurm_colloc.core.process import run
from slurm_colloc.core.units import counted

NOT_TAKEN = "not taken"
# The recipient of what is no mail.
COMMAND = "the command"
# Errors about messages that were not handed over, by what became of them.
_ERRORS = {
    NOT_TAKEN: "not handed over: {}; the next run tells of what is still found",
    DOUBTFUL: "in doubt: {}; see 'colloc audit mail' and the mail service's log",
}
_CUT_SHORT = "a run was cut short while it was handed over"
# A mail service has only to write the mail into its queue.
MAIL_TIMEOUT_S, COMMAND_TIMEOUT_S = 60.0, 30.0
# EX_TEMPFAIL: it takes nothing at the moment.
_NOT_NOW = 75
# Timers and cron leave these out of PATH.
_FOLDERS = ("/usr/sbin", "/usr/lib")
# A header and an envelope take these as they are: no quoted local part, no comment, no list.
_LOCAL = r"[A-Za-z0-9][A-Za-z0-9._+-]{0,62}"
_HOST = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?)*"
_ADDRESS = re.compile(f"{_LOCAL}@{_HOST}", re.ASCII)
_USER = re.compile(_LOCAL, re.ASCII)


class Texts(NamedTuple):
    """A mail's subject, which no word of a user is in, and its two bodies."""

    subject: str
    plain: str
    html: str


def check_settings(settings: Notices) -> None:
    """Look at what the configuration's types do not say.

    Raises:
        ConfigError: an address that is none, or something that a mode needs and has not.
    """
    template = settings.address.replace("{user}", "u")
    admins = (("admins", address) for address in settings.admins)
    for key, address in (("sender", settings.sender), ("address", template), *admins):
        if address and not _ADDRESS.fullmatch(address):
            raise ConfigError(f"'notices.{key}': '{address}' is no plain address such as 'hpc@example.org'")
    if settings.address and "{user}" not in settings.address:
        raise ConfigError(f"'notices.address': '{settings.address}' is one address for all; write {{user}} in it")
    needed = {"off": (), "admins": ("sender", "admins"), "users": ("sender", "admins", "address")}[settings.mode]
    for key in needed:
        if not getattr(settings, key):
            raise ConfigError(f"mails to {settings.mode} need 'notices.{key}', which site.toml does not set")
    for rule, action in settings.actions.items():
        if action not in ("hold", "cancel"):
            raise ConfigError(f"'notices.actions': '{rule}' must be 'hold' or 'cancel', not '{action}'")


def address_of(user: str, settings: Notices) -> str | None:
    """Return a user's address; None where the name makes none that is surely one."""
    address = settings.address.replace("{user}", user)
    return address if _USER.fullmatch(user) and _ADDRESS.fullmatch(address) else None


def digest_id(recipient: str, steps: Iterable[Planned], settings: Notices) -> str:
    """Return the Message-ID of a digest, always the same of the same steps on the same evidence to the same address."""
    keys = sorted([*key_of(due.finding), due.finding.digest, due.step] for due in steps)
    return message_id([recipient, *keys], settings)


def message_id(content: object, settings: Notices) -> str:
    """Return the id by which the same mail is known, so that it is not sent twice: only the same content has it."""
    key = hashlib.sha256(json.dumps(content).encode()).hexdigest()[:40]
    return f"<colloc-{key}@{settings.sender.rpartition('@')[2] or 'localhost'}>"


def mail_content(message: str, recipient: str, texts: Texts, settings: Notices, now_s: float) -> bytes:
    """Return a mail as the mail service gets it, which makes of it what goes over the wire."""
    email = EmailMessage(policy=default)
    email["From"] = settings.sender
    email["To"] = recipient
    email["Subject"] = texts.subject
    email["Date"] = format_datetime(datetime.fromtimestamp(now_s, UTC))
    email["Message-ID"] = message
    # Absence notices do not answer such a mail (RFC 3834).
    email["Auto-Submitted"] = "auto-generated"
    email["Precedence"] = "bulk"
    email["List-Unsubscribe"] = f"<mailto:{settings.sender}?subject=no%20more%20notices>"
    email.set_content(texts.plain, cte="quoted-printable")
    email.add_alternative(texts.html, subtype="html", cte="quoted-printable")
    return email.as_bytes()


class NotTakenError(CollocError):
    """The message was taken by nobody."""


class ServiceError(NotTakenError):
    """The message was taken by nobody, and another one would not be now."""


def find_sendmail() -> str:
    """Return the path of the mail service's program; empty where there is none."""
    return shutil.which("sendmail", path=os.pathsep.join((os.environ.get("PATH", os.defpath), *_FOLDERS))) or ""


def send(content: bytes, sender: str) -> None:
    """Hand one mail over, to the recipient that it names.

    Raises:
        ServiceError: there is no mail service, or it takes nothing at the moment.
        NotTakenError: it does not take this mail.
        ProcessError: it was cut short, and may have taken it.
        UnansweredError: the same, because it hangs.
    """
    program = find_sendmail()
    if not program:
        raise ServiceError(f"there is no 'sendmail' on PATH or in {', '.join(_FOLDERS)}; install a mail service")
    _hand_over((program, "-t", "-oi", "-f", sender), MAIL_TIMEOUT_S, content, ServiceError)


def run_command(path: str, content: bytes) -> None:
    """Run the site's command once.

    Raises:
        NotTakenError: it cannot be run, or its exit status says that it failed.
        ProcessError: it was cut short, and may have done its work.
    """
    if fault := fault_of(path):  # mails go all the same
        raise NotTakenError(f"'{path}': {fault}")
    _hand_over((path,), COMMAND_TIMEOUT_S, content, NotTakenError)


def _hand_over(argv: Sequence[str], timeout_s: float, content: bytes, not_now: type[NotTakenError]) -> None:
    """Run a program that takes a message; raise ``not_now`` where it does not start, or takes none at the moment."""
    try:
        # All of the message is there before the program starts: killed in between, it sends no half of one.
        done = run(argv, timeout_s, os.environ, content)
    except UnansweredError:
        raise
    except ProcessError as error:
        raise not_now(str(error)) from error
    if done.status < 0:
        raise ProcessError(f"'{argv[0]}' was ended by signal {-done.status}")
    if done.status:
        kind = not_now if done.status == _NOT_NOW else NotTakenError
        raise kind(f"'{argv[0]}' ended with status {done.status}: {done.last_words}")


def fault_of(path: str) -> str:
    """Return why a command is not run, empty where it can be; only root and who runs it may be able to change it."""
    try:
        real = os.path.realpath(path)
        statuses = [os.stat(place) for place in (real, os.path.dirname(real))]
    except FileNotFoundError:
        return "it is not there"
    except OSError as error:
        return f"it cannot be looked at: {error.strerror}"
    if not stat.S_ISREG(statuses[0].st_mode) or not os.access(real, os.X_OK, effective_ids=True):
        return "it is no program that this user may run"
    if any(
        status.st_uid not in (0, os.geteuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) for status in statuses
    ):
        return "others may change it: chown root and chmod 0755 it and its folder"
    return ""


class Post:
    """The messages of one run: it hands them over, and keeps in mind what went wrong."""

    def __init__(self, state: State, settings: Notices) -> None:
        self._state, self._settings = state, settings
        self._down = False
        self._faults = Counter[tuple[str, str]]()
        for row in state.messages(DOUBTFUL):
            if not row.reply:
                self._doubt(row.message, _CUT_SHORT)

    def give(self, message: Sequence[Notification], content: bytes) -> str:
        """Hand a message over, the same never twice; return SENT, DOUBTFUL or NOT_TAKEN, empty where it was before."""
        id, is_mail = message[0].message, message[0].recipient != COMMAND
        if is_mail and self._down:
            return NOT_TAKEN
        if not self._state.begin_message_once(message):
            return ""
        try:
            if is_mail:
                send(content, self._settings.sender)
            else:
                run_command(self._settings.command, content)
        except NotTakenError as error:
            self._state.forget_message(id)
            self._down |= isinstance(error, ServiceError)
            self._faults[NOT_TAKEN, str(error)] += 1
            return NOT_TAKEN
        except ProcessError as error:
            self._down |= is_mail and isinstance(error, UnansweredError)
            self._doubt(id, str(error))
            return DOUBTFUL
        self._state.end_message(id, now())
        return SENT

    def _doubt(self, id: str, reason: str) -> None:
        self._state.doubt(id, reason)
        self._faults[DOUBTFUL, reason] += 1

    def errors(self) -> list[str]:
        """Return what went wrong since this was asked last, each reason once."""
        faults = sorted(self._faults.items(), key=lambda fault: fault[0][0] == DOUBTFUL)
        self._faults.clear()
        return [f"{counted(count, 'message')} {_ERRORS[became].format(reason)}" for (became, reason), count in faults]

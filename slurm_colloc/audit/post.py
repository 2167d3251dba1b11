# SPDX-License-Identifier: Apache-2.0
"""Sends the same mail never twice: each is marked on the disk before a mail service or the site's command gets it.

The host's own mail service queues mails, tries again and reports what cannot be delivered. The site's command has on
its standard input what was found, and calls what it likes.
"""

import os
import shutil
import stat
from collections import Counter
from collections.abc import Iterable, Sequence

from slurm_colloc.audit.ladder import DOUBTFUL, SENT, Planned
from slurm_colloc.audit.state import COMMAND, Message, State
from slurm_colloc.core.clock import now
from slurm_colloc.core.config_audit import Notices
from slurm_colloc.core.errors import CollocError, ProcessError, UnansweredError
from slurm_colloc.core.process import run
from slurm_colloc.core.units import counted

NOT_TAKEN = "not taken"
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
        self._reasons = {became: Counter[str]() for became in _ERRORS}
        for message in state.messages(DOUBTFUL):
            if not message.reply:
                self._doubt(message, _CUT_SHORT)

    def give(self, message: Message, content: bytes, steps: Iterable[Planned] = ()) -> str:
        """Hand a message over, the same never twice; return SENT, DOUBTFUL or NOT_TAKEN, empty where it was before."""
        mail = message.channel != COMMAND
        if mail and self._down:
            return NOT_TAKEN
        if not self._state.begin_message_once(message, steps, now()):
            return ""
        try:
            if mail:
                send(content, self._settings.sender)
            else:
                run_command(self._settings.command, content)
        except NotTakenError as error:
            self._state.forget_message(message.id)
            self._down |= isinstance(error, ServiceError)
            self._reasons[NOT_TAKEN][str(error)] += 1
            return NOT_TAKEN
        except ProcessError as error:
            self._down |= mail and isinstance(error, UnansweredError)
            self._doubt(message, str(error))
            return DOUBTFUL
        self._state.end_message(message.id, now())
        return SENT

    def _doubt(self, message: Message, reason: str) -> None:
        self._state.doubt(message.id, reason)
        self._reasons[DOUBTFUL][reason] += 1

    def errors(self) -> list[str]:
        """Return what went wrong since this was asked last, each reason once."""
        lines = [
            f"{counted(count, 'message')} {_ERRORS[became].format(reason)}"
            for became, reasons in self._reasons.items()
            for reason, count in reasons.items()
        ]
        for reasons in self._reasons.values():
            reasons.clear()
        return lines

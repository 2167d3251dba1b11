# SPDX-License-Identifier: Apache-2.0
"""Mails by the host's own mail service, which queues them, tries again and reports what cannot be delivered."""

import os
import shutil

from slurm_colloc.core.errors import CollocError, ProcessError, UnansweredError
from slurm_colloc.core.process import run

# A mail service has only to write the mail into its queue.
TIMEOUT_S = 60.0
# EX_TEMPFAIL: it takes nothing at the moment.
_NOT_NOW = 75
# Timers and cron leave these out of PATH.
_FOLDERS = ("/usr/sbin", "/usr/lib")


class NotTakenError(CollocError):
    """Nobody has taken the message."""


class ServiceError(NotTakenError):
    """Nobody has taken the message, nor would take another one now."""


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
    argv = (program, "-t", "-oi", "-f", sender)
    try:
        # All of the mail is there before the program starts: killed in between, it sends no half of one.
        done = run(argv, TIMEOUT_S, os.environ, content)
    except UnansweredError:
        raise
    except ProcessError as error:
        raise ServiceError(str(error)) from error
    if done.status < 0:
        raise ProcessError(f"'{program}' was ended by signal {-done.status}")
    if done.status:
        kind = ServiceError if done.status == _NOT_NOW else NotTakenError
        raise kind(f"'{program}' ended with status {done.status}: {done.last_words}")

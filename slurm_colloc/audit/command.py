# SPDX-License-Identifier: Apache-2.0
"""The site's own command: what was found comes on its standard input, and it calls what it likes."""

import os
import stat

from slurm_colloc.audit.sendmail import NotTakenError
from slurm_colloc.core.errors import ProcessError, UnansweredError
from slurm_colloc.core.process import run

_TIMEOUT_S = 30.0


def give(path: str, content: bytes) -> None:
    """Run the command once.

    Raises:
        NotTakenError: it cannot be run, or its exit status says that it failed.
        ProcessError: it was cut short, and may have done its work.
    """
    if fault := fault_of(path):  # mails go all the same
        raise NotTakenError(f"'{path}': {fault}")
    try:
        done = run((path,), _TIMEOUT_S, os.environ, content)
    except UnansweredError:
        raise
    except ProcessError as error:
        raise NotTakenError(str(error)) from error
    if done.status < 0:
        raise ProcessError(f"'{path}' was ended by signal {-done.status}")
    if done.status:
        raise NotTakenError(f"'{path}' ended with status {done.status}: {done.last_words}")


def fault_of(path: str) -> str:
    """Return why a command is not run, empty where it can be; only root and who runs it may be able to change it."""
    try:
        real = os.path.realpath(path)
        found = [os.stat(place) for place in (real, os.path.dirname(real))]
    except FileNotFoundError:
        return "it is not there"
    except OSError as error:
        return f"it cannot be looked at: {error.strerror}"
    if not stat.S_ISREG(found[0].st_mode) or not os.access(real, os.X_OK, effective_ids=True):
        return "it is no program that this user may run"
    if any(one.st_uid not in (0, os.geteuid()) or one.st_mode & (stat.S_IWGRP | stat.S_IWOTH) for one in found):
        return "others may change it: chown root and chmod 0755 it and its folder"
    return ""

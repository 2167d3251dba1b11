# SPDX-License-Identifier: Apache-2.0
"""The one tree of errors.

Every message says what was tried, what came back and what to do, in lower case and without a full stop;
cli/ prints the chain of causes and turns the class into an exit status.
"""

from collections.abc import Iterable
from enum import IntEnum


class Status(IntEnum):
    """How a command of colloc ends; docs/reference/exit-status.md has the words."""

    DONE = 0
    FOUND = 1
    ERROR = 2
    UNKNOWN = 3
    INTERRUPTED = 130


def nearest(word: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """Return the end of a message about a word that is not known: which is near it, ``otherwise`` or all that are."""
    import difflib  # costs csub 5 ms, needed only on the way to an error

    all_known = list(known)
    near = difflib.get_close_matches(word, all_known, n=1)
    if near:
        return f"; did you mean '{near[0]}'?"
    return f"; there are {', '.join(all_known)}" if otherwise is None else otherwise


class CollocError(Exception):
    """Anything this project raises on purpose."""

    exit_status = Status.ERROR


class ConfigError(CollocError):
    """A site.toml that cannot be used: names the file, the key and the nearest valid one."""


class InputError(CollocError):
    """Text or numbers from outside (a user, sacct, a journal) that do not follow their grammar."""


class UnsureError(CollocError):
    """A submission that is not understood with certainty; csub answers it by handing over to sbatch unchanged."""


class MisusedError(CollocError):
    """An option of csub's own that cannot be what its user meant: nothing is submitted, least of all without it."""


class UnknownError(CollocError):
    """The data does not suffice to say anything: neither that all is well, nor that it is not."""

    exit_status = Status.UNKNOWN


class ProcessError(CollocError):
    """A program that could not be started, took too long, or failed."""


class UnansweredError(ProcessError):
    """A program that did not say what came of what it was asked; it may have done it."""


class StoreError(CollocError):
    """A history, journal or store file that cannot be read or written."""


class GpuError(CollocError):
    """NVML (or its simulation) could not be read."""


class DeadlineError(CollocError):
    """A step that did not end within its time."""

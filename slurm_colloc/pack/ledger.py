# SPDX-License-Identifier: Apache-2.0
"""What happened in a pack: a file of JSON lines that only grows, so that any end leaves what a resume needs.

Each line is one write that reached the disk before the pack went on. A line that a crash cut short is left out and
counted; a job that Slurm requeued goes on in the file that it began. Slurm gives a job's id again some day, so what
stands in the file before the newest pack is another job's.
"""

import fcntl
import json
import math
import os
from collections.abc import Mapping
from typing import Any, NamedTuple

from slurm_colloc import clock
from slurm_colloc.errors import InputError, StoreError
from slurm_colloc.files import PRIVATE_FILE, private_folder, sync_folder
from slurm_colloc.gpu.failure import Outcome
from slurm_colloc.pack.ledger_files import open_own
from slurm_colloc.pack.queue import Start
from slurm_colloc.pack.spec import Spec, to_json

_TEXT_LIMIT = 2000
_EVENTS = ("pack", "start", "end", "note", "stop")


class Entry(NamedTuple):
    """One line. ``event`` says which fields mean something; the others are as they stand here, and not written.

    ``pack`` begins a run of the job: ``spec`` and ``job``, names and values as the job's environment has them.
    ``start`` and ``end`` are of one attempt at task ``number``: ``step`` is the job step, ``memory_mib`` what it is
    counted for, ``status`` its exit status (negative: the signal that ended it), ``said`` the words that told the
    outcome. ``note`` is for people, ``stop`` says why no more tasks are started; both in ``said``.
    """

    at_s: float
    event: str
    number: int = 0
    attempt: int = 0
    step: str = ""
    outcome: str = ""
    status: int = 0
    said: str = ""
    memory_mib: int = 0
    spec: str = ""
    job: Mapping[str, str] = {}


class Ledger:
    """The one writer of a ledger, until it is closed or its process ends."""

    def __init__(self, path: str) -> None:
        """Open the ledger, or begin it.

        Raises:
            StoreError: another process writes it, it is somebody else's, or it cannot be written.
        """
        self.path = path
        folder = private_folder(os.path.dirname(path))
        self._descriptor = open_own(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
        try:
            self._claim()
            os.fchmod(self._descriptor, PRIVATE_FILE)
            size = os.fstat(self._descriptor).st_size
            # A line that a crash cut short must not take the next one with it.
            self._torn = size > 0 and os.pread(self._descriptor, 1, size - 1) != b"\n"
            if not size:
                sync_folder(folder)
        except OSError as error:
            os.close(self._descriptor)
            raise StoreError(f"ledger '{path}' cannot be written: {error.strerror}") from error
        except StoreError:
            os.close(self._descriptor)
            raise

    def _claim(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StoreError(f"another process writes the ledger '{self.path}'; end that one first") from error
        except OSError as error:
            raise StoreError(f"ledger '{self.path}' cannot be locked: {error.strerror}; mount with flock") from error

    def header(self, spec: Spec, job: Mapping[str, str]) -> None:
        """Write what the pack is: at each start of the job, a requeued one's too.

        Args:
            spec: the pack.
            job: what tells this job and its place, such as its ids and its node.

        Raises:
            StoreError: it cannot be written.
        """
        self._append(Entry(clock.now(), "pack", spec=to_json(spec), job=dict(job)))

    def start(self, start: Start, step: str = "") -> None:
        """Write that an attempt begins.

        Raises:
            StoreError: it cannot be written.
        """
        number, attempt, load = start.task.number, start.attempt, start.load
        self._append(Entry(clock.now(), "start", number, attempt, step, memory_mib=load.memory_mib))

    def end(self, start: Start, outcome: Outcome, status: int, said: str = "", step: str = "") -> None:
        """Write how an attempt ended.

        Args:
            start: the attempt.
            outcome: what it came to.
            status: exit status, negative for a signal.
            said: the words that told, "" if none.
            step: the job step, where it was not known at the start.

        Raises:
            StoreError: it cannot be written.
        """
        self._append(Entry(clock.now(), "end", start.task.number, start.attempt, step, outcome.value, status, said))

    def note(self, text: str) -> None:
        """Write something for people.

        Raises:
            StoreError: it cannot be written.
        """
        self._append(Entry(clock.now(), "note", said=text))

    def stop(self, why: str) -> None:
        """Write why no more tasks are started, although some are left.

        Raises:
            StoreError: it cannot be written.
        """
        self._append(Entry(clock.now(), "stop", said=why))

    def close(self) -> None:
        """Let another process write it; more than once does no harm."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _append(self, entry: Entry) -> None:
        line = b"\n" * self._torn + encode(entry)
        try:
            written = os.write(self._descriptor, line)
            # Whatever comes next begins a line of its own.
            self._torn = 0 < written < len(line)
            if written != len(line):
                raise StoreError(f"ledger '{self.path}' could be written in part only; is the disk full?")
            os.fsync(self._descriptor)
        except OSError as error:
            raise StoreError(f"ledger '{self.path}' cannot be written: {error.strerror}") from error


def encode(entry: Entry) -> bytes:
    """Return the line for ``entry``."""
    fields = entry._replace(said=entry.said[:_TEXT_LIMIT])._asdict()
    said = {name: value for name, value in fields.items() if value != Entry._field_defaults.get(name)}
    return json.dumps(said, separators=(",", ":")).encode() + b"\n"


def parse_entry(line: bytes) -> Entry:
    """Return the entry that ``line`` spells.

    Raises:
        InputError: it is none: cut short, or not ours.
    """
    try:
        found = json.loads(line)
        if not isinstance(found, dict) or not all(_fits(name, value) for name, value in found.items()):
            raise ValueError("a field of no or another kind")
        entry = Entry(**found)
        if entry.event not in _EVENTS:
            raise ValueError(f"event '{entry.event}'")
        if entry.event == "end":
            Outcome(entry.outcome)
    except (ValueError, TypeError, RecursionError) as error:
        raise InputError(f"line of a ledger is not of the expected form: {error}") from error
    return entry


def _fits(name: str, value: object) -> bool:
    if name == "job":
        return isinstance(value, dict) and all(isinstance(part, str) for part in value.values())
    if isinstance(value, bool):
        return False
    if name == "at_s":
        return isinstance(value, int | float) and 0 <= value < math.inf  # no NaN either
    kind: Any = Entry.__annotations__.get(name, ())
    return isinstance(value, kind)

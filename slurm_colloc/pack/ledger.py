# SPDX-License-Identifier: Apache-2.0
"""The history of a pack: a file of JSON lines that only grows, so that any end leaves what a resume needs.

Each line is one write that reached the disk before the pack went on. A line that a crash cut short is left out and
counted; a job that Slurm requeued goes on in the file that it began. Slurm gives a job's id again some day: a job that
begins for the first time empties the file.
"""

import fcntl
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from slurm_colloc.core import clock
from slurm_colloc.core.config import user_data_folder
from slurm_colloc.core.errors import InputError, StoreError
from slurm_colloc.core.files import PRIVATE_FILE, private_folder, read_bounded, sync_folder
from slurm_colloc.core.value_types import read_as
from slurm_colloc.gpu.failure import Outcome
from slurm_colloc.pack.spec import Spec, from_json, to_json
from slurm_colloc.pack.starts_and_retries import Start

_TEXT_LIMIT = 2000
# Every requeue writes all commands of the pack anew.
_LIMIT_BYTES = 1024 * 1024 * 1024
_EVENTS = ("pack", "start", "end", "note", "stop")
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")

# Where ledgers lie


def ledger_folder() -> str:
    """Return the folder of this user's ledgers."""
    return os.path.join(user_data_folder(), "packs")


def ledger_path(cluster: str, job_id: str, kind: str = "jsonl") -> str:
    """Return where the ledger of one job lies; the ``job_id`` of a job of an array is "<array's id>_<number>".

    Files of another ``kind`` lie beside it.

    Raises:
        InputError: a name that would leave the folder.
    """
    for kind_of_name, name in (("cluster", cluster), ("job id", job_id)):
        if not _NAME.fullmatch(name):
            raise InputError(f"{kind_of_name} '{name}' is no name for a file; is this a job of Slurm?")
    return os.path.join(ledger_folder(), cluster, f"{job_id}.{kind}")


def ledgers_of(cluster: str, job_id: str) -> tuple[str, ...]:
    """Return the ledgers that a job left, or the jobs of an array; none where none has begun, or it is no pack.

    Raises:
        InputError: a name that would leave the folder.
        StoreError: the folder cannot be read.
    """
    folder, name = os.path.split(ledger_path(cluster, job_id))
    one_of_them = re.compile(rf"{re.escape(job_id)}_\d+\.jsonl")
    try:
        names = [entry for entry in os.listdir(folder) if entry == name or one_of_them.fullmatch(entry)]
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise StoreError(f"ledgers in '{folder}' cannot be read: {error.strerror}") from error
    return tuple(os.path.join(folder, entry) for entry in sorted(names, key=lambda entry: (len(entry), entry)))


# Writing


class Entry(NamedTuple):
    """One line. ``event`` says which fields mean something; the others are as they stand here, and not written.

    ``pack`` begins a run of the job: ``spec`` and ``job``, names and values as the job's environment has them.
    ``start`` and ``end`` are of one attempt at task ``number``: ``step`` is the job step, ``status`` its exit status
    (negative: the signal that ended it), ``message`` the words that told the outcome. ``note`` is for people, ``stop``
    says why no more tasks are started; both in ``message``.
    """

    at_s: float
    event: str
    number: int = 0
    attempt: int = 0
    step: str = ""
    outcome: str = ""
    status: int = 0
    message: str = ""
    spec: str = ""
    job: Mapping[str, str] = {}


class LedgerWriter:
    """The one writer of a ledger, until it is closed or its process ends.

    Once it cannot be written any more the pack goes on without, and so does one that never had any.
    """

    def __init__(self, path: str, say: Callable[[str], None], *, anew: bool = False) -> None:
        """Open the ledger, or begin it.

        Args:
            path: of the ledger; "" for none.
            say: told what people should read at once.
            anew: the file is another job's, and is emptied.

        Raises:
            StoreError: another process writes it, or it cannot be written.
        """
        self.path, self._say, self._descriptor = path, say, -1
        if path:
            folder = private_folder(os.path.dirname(path))
            try:
                self._open(folder, anew=anew)
            except (OSError, StoreError) as error:
                self.close()
                if isinstance(error, StoreError):
                    raise
                raise StoreError(f"ledger '{path}' cannot be written: {error.strerror}") from error

    def _open(self, folder: str, *, anew: bool) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._descriptor = os.open(self.path, flags, PRIVATE_FILE)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise StoreError(f"another process writes the ledger '{self.path}'; end that one first") from error
        except OSError as error:
            raise StoreError(f"ledger '{self.path}' cannot be locked: {error.strerror}; mount with flock") from error
        if anew:
            os.ftruncate(self._descriptor, 0)
        size = os.fstat(self._descriptor).st_size
        if not size:
            sync_folder(folder)
        # A line that a crash cut short must not take the next one with it.
        elif os.pread(self._descriptor, 1, size - 1) != b"\n":
            os.write(self._descriptor, b"\n")

    def header(self, spec: Spec, job: Mapping[str, str]) -> None:
        """Write what the pack is: at each start of the job, a requeued one's too.

        Args:
            spec: the pack.
            job: variables that tell this job and its place, such as its ids and its node.

        Raises:
            StoreError: it cannot be written.
        """
        self._append(Entry(clock.now(), "pack", spec=to_json(spec), job=dict(job)))

    def start(self, start: Start) -> None:
        """Write that an attempt begins."""
        self._write(Entry(clock.now(), "start", start.task.number, start.attempt))

    def end(self, start: Start, outcome: Outcome, status: int, message: str = "", step: str = "") -> None:
        """Write how an attempt ended."""
        number, attempt = start.task.number, start.attempt
        self._write(Entry(clock.now(), "end", number, attempt, step, outcome.value, status, message))

    def note(self, text: str, event: str = "note") -> None:
        """Write and say something for people; at a "stop" why no more tasks are started, although some are left."""
        self._write(Entry(clock.now(), event, message=text))
        self._say(text)

    def close(self) -> None:
        """Let another process write it; more than once does no harm."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _write(self, entry: Entry) -> None:
        if self._descriptor >= 0:
            try:
                self._append(entry)
            except StoreError as error:
                self.close()
                self._say(f"{error}: what happens from now on is not written down, and a resume will run it again")

    def _append(self, entry: Entry) -> None:
        line = encode(entry)
        try:
            if os.write(self._descriptor, line) != len(line):
                raise StoreError(f"ledger '{self.path}' could be written in part only; is the disk full?")
            os.fsync(self._descriptor)
        except OSError as error:
            raise StoreError(f"ledger '{self.path}' cannot be written: {error.strerror}") from error


def encode(entry: Entry) -> bytes:
    """Return the line for ``entry``."""
    fields = entry._replace(message=entry.message[:_TEXT_LIMIT])._asdict()
    changed = {name: value for name, value in fields.items() if value != Entry._field_defaults.get(name)}
    return json.dumps(changed, separators=(",", ":")).encode() + b"\n"


def parse_entry(line: bytes) -> Entry:
    """Return the entry that ``line`` spells.

    Raises:
        InputError: it is none: cut short, or not ours.
    """
    try:
        entry: Entry = read_as(Entry, json.loads(line))
        if entry.event not in _EVENTS:
            raise ValueError(f"event '{entry.event}'")
        if entry.event == "end":
            Outcome(entry.outcome)
    except (ValueError, RecursionError) as error:
        raise InputError(f"line of a ledger is not of the expected form: {error}") from error
    return entry


# Reading


class TaskRecord(NamedTuple):
    """The last attempt at a task, and how many there were; one that Slurm refused to start and then did is one.

    ``outcome``, ``status`` and ``ended_s`` are None where it has no end: it is running, or went down with its job.
    ``began_s`` is None of one that never began.
    """

    number: int
    attempts: int = 0
    began_s: float | None = None
    outcome: Outcome | None = None
    status: int | None = None
    ended_s: float | None = None
    step: str = ""
    message: str = ""


class Ledger(NamedTuple):
    """The content of a ledger: ``job`` is the newest header's, ``tasks`` are those that ever started, by number.

    ``stopped`` says why the newest run of the job ended early, empty where it did not. ``restarts`` counts how often
    the job began anew, ``torn_lines`` the lines that could not be used.
    """

    spec: Spec
    job: Mapping[str, str]
    tasks: tuple[TaskRecord, ...]
    notes: tuple[str, ...]
    stopped: str
    began_s: float
    last_s: float
    restarts: int
    torn_lines: int


def read_ledger(path: str) -> Ledger:
    """Return what a ledger holds, while it is being written too; root may read anybody's.

    Raises:
        StoreError: missing, unreadable or somebody else's.
        InputError: it has no header, or one of another release: nothing is known of the pack.
    """
    entries: list[Entry] = []
    torn = 0
    uid = os.geteuid()
    for line in read_bounded(path, _LIMIT_BYTES, owners=(uid,) if uid else ()).split(b"\n"):
        try:
            entries += [parse_entry(line)] if line.strip() else []
        except InputError:
            torn += 1
    headers = [index for index, entry in enumerate(entries) if entry.event == "pack"]
    if not headers:
        raise InputError(f"ledger '{path}' does not say of which pack it is; its job died at its start")
    newest = entries[headers[-1]]
    try:
        spec = from_json(newest.spec)
    except InputError as error:
        raise InputError(f"ledger '{path}' cannot be used: {error}") from error
    return Ledger(
        spec=spec,
        job=newest.job,
        tasks=_records(entries),
        notes=tuple(entry.message for entry in entries if entry.event == "note"),
        stopped=next((entry.message for entry in reversed(entries[headers[-1] :]) if entry.event == "stop"), ""),
        began_s=entries[headers[0]].at_s,
        last_s=entries[-1].at_s,
        restarts=len(headers) - 1,
        torn_lines=torn,
    )


def is_restart(job: Mapping[str, str]) -> bool:
    """Return whether Slurm requeued the job, by its environment or a header's ``job``."""
    return job.get("SLURM_RESTART_COUNT", "") not in ("", "0")


def read_ledgers(paths: Iterable[str]) -> tuple[list[Ledger], list[str]]:
    """Return those ledgers of one pack that can be used, and why the others cannot.

    The jobs of an array have one spec; those beside them with another are of an earlier job of the same id.
    """
    ledgers: list[Ledger] = []
    unreadable = []
    for path in paths:
        try:
            ledgers.append(read_ledger(path))
        except (StoreError, InputError) as error:
            unreadable.append(str(error))
    newest = max(ledgers, key=lambda ledger: ledger.began_s, default=None)
    return [ledger for ledger in ledgers if newest and ledger.spec == newest.spec], unreadable


def _records(entries: Iterable[Entry]) -> tuple[TaskRecord, ...]:
    records: dict[int, TaskRecord] = {}
    begun_as: dict[int, int] = {}
    for entry in entries:
        before = records.get(entry.number)
        if entry.event == "pack":  # a requeued job counts from 1 again
            begun_as.clear()
        elif entry.event == "start":
            attempts = before.attempts if before else 0
            if begun_as.get(entry.number) != entry.attempt:
                attempts += 1
            begun_as[entry.number] = entry.attempt
            records[entry.number] = TaskRecord(entry.number, attempts, entry.at_s)
        elif entry.event == "end":
            # The line of its start may be one of the torn ones.
            begun = before or TaskRecord(entry.number, 1, entry.at_s)
            records[entry.number] = begun._replace(
                outcome=Outcome(entry.outcome),
                status=entry.status,
                ended_s=entry.at_s,
                step=entry.step,
                message=entry.message,
            )
    return tuple(records[number] for number in sorted(records))


def numbers_of(ledgers: Iterable[Ledger]) -> set[int]:
    """Return the numbers of all tasks of a pack, whichever of its jobs has or had them."""
    return {task.number for ledger in ledgers for task in ledger.spec._replace(jobs=1).tasks()}


def missing(ledgers: Collection[Ledger]) -> tuple[int, ...]:
    """Return the numbers of the tasks that no ledger of a pack calls done, in rising order.

    Those that never started, in whichever job of the array, are among them.
    """
    done = {task.number for ledger in ledgers for task in ledger.tasks if task.outcome is Outcome.DONE}
    return tuple(sorted(numbers_of(ledgers) - done))

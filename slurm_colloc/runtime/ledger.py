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
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any, NamedTuple

from slurm_colloc import clock
from slurm_colloc.config import user_data_folder
from slurm_colloc.errors import InputError, StoreError
from slurm_colloc.files import PRIVATE_FILE, private_folder, sync_folder, write_atomic
from slurm_colloc.runtime.queue import Outcome, Start
from slurm_colloc.runtime.spec import Spec, from_json, to_json

# A header holds every command of the pack.
_LINE_LIMIT_BYTES = 64 * 1024 * 1024
_TEXT_LIMIT = 2000
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
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


class TaskRecord(NamedTuple):
    """The last attempt at a task, and how many there were; one that Slurm refused to start and then did is one.

    ``outcome``, ``status`` and ``ended_s`` are None where it has no end: it is running, or went down with its job.
    """

    number: int
    attempts: int
    outcome: Outcome | None
    status: int | None
    began_s: float
    ended_s: float | None
    step: str
    said: str


class Told(NamedTuple):
    """What a ledger holds: ``job`` is the newest header's, ``tasks`` are those that ever started, by number.

    ``stopped`` says why the newest run of the job ended early, empty where it did not. ``restarts`` counts how often
    the job began anew, ``torn_lines`` what could not be used.
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


def ledger_folder() -> str:
    """Return the folder of this user's ledgers."""
    return os.path.join(user_data_folder(), "packs")


def ledger_path(cluster: str, job_id: str) -> str:
    """Return where the ledger of one job lies; of a job of an array ``job_id`` is "<array's id>_<number>".

    Raises:
        InputError: a name that would leave the folder.
    """
    return _path(cluster, job_id, "jsonl")


def _path(cluster: str, job_id: str, kind: str) -> str:
    for what, name in (("cluster", cluster), ("job id", job_id)):
        if not _NAME.fullmatch(name):
            raise InputError(f"{what} '{name}' is no name for a file; is this a job of Slurm?")
    return os.path.join(ledger_folder(), cluster, f"{job_id}.{kind}")


def job_name(environ: Mapping[str, str]) -> str:
    """Return the id by which Slurm's commands show the job of a batch script: "4711", of an array "4711_2"."""
    array, number = environ.get("SLURM_ARRAY_JOB_ID", ""), environ.get("SLURM_ARRAY_TASK_ID", "")
    return f"{array}_{number}" if array and number else environ.get("SLURM_JOB_ID", "")


def ledgers_of(cluster: str, job_id: str) -> tuple[str, ...]:
    """Return the ledgers that a job left, or the jobs of an array; none where none has begun, or it is no pack.

    Raises:
        InputError: a name that would leave the folder.
        StoreError: the folder cannot be read.
    """
    whole = ledger_path(cluster, job_id)
    one_of_them = re.compile(rf"{re.escape(job_id)}_\d+\.jsonl")
    folder, name = os.path.split(whole)
    try:
        found = [entry for entry in os.listdir(folder) if entry == name or one_of_them.fullmatch(entry)]
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise StoreError(f"ledgers in '{folder}' cannot be read: {error.strerror}") from error
    return tuple(os.path.join(folder, entry) for entry in sorted(found, key=lambda entry: (len(entry), entry)))


def keep_script(cluster: str, job_id: str, content: bytes) -> None:
    """Keep a pack's batch script beside its ledger; all jobs of an array have one, under the array's id.

    Raises:
        InputError: a name that would leave the folder.
        StoreError: it cannot be written.
    """
    path = _path(cluster, job_id, "sh")
    private_folder(os.path.dirname(path))
    write_atomic(path, content, durable=True)


def kept_script(cluster: str, job_id: str) -> bytes:
    """Return the batch script of a pack.

    Raises:
        InputError: a name that would leave the folder.
        StoreError: it was not kept, or cannot be read.
    """
    return b"".join(_lines(_path(cluster, job_id, "sh"), blank=True))


def note_resumed(cluster: str, job_id: str, by: str) -> None:
    """Write down which job runs what is missing of a pack.

    Raises:
        InputError: a name that would leave the folder.
        StoreError: it cannot be written.
    """
    path = _path(cluster, job_id, "resumed")
    private_folder(os.path.dirname(path))
    descriptor = _open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, f"{by}\n".encode())
        os.fsync(descriptor)
    except OSError as error:
        raise StoreError(f"file '{path}' cannot be written: {error.strerror}") from error
    finally:
        os.close(descriptor)


def forget_resumed(cluster: str, job_id: str) -> None:
    """Remove what says who resumed an earlier job of this id.

    Raises:
        InputError: a name that would leave the folder.
        StoreError: it cannot be removed.
    """
    path = _path(cluster, job_id, "resumed")
    try:
        with suppress(FileNotFoundError):
            os.unlink(path)
    except OSError as error:
        raise StoreError(f"file '{path}' cannot be removed: {error.strerror}") from error


def resumed_by(cluster: str, job_id: str) -> tuple[str, ...]:
    """Return the jobs that run, or ran, what was missing of a pack, and what was missing of them, and so on.

    Raises:
        InputError: a name that would leave the folder.
        StoreError: it cannot be read.
    """
    found: list[str] = []
    for one in chain([job_id], found):  # which grows meanwhile
        path = _path(cluster, one, "resumed")
        if os.path.lexists(path):
            names = (line.decode(errors="replace").strip() for line in _lines(path))
            found += [name for name in dict.fromkeys(names) if name.isdigit() and name not in (job_id, *found)]
    return tuple(found)


class Ledger:
    """The one writer of a ledger, until it is closed or its process ends."""

    def __init__(self, path: str) -> None:
        """Open the ledger, or begin it.

        Raises:
            StoreError: another process writes it, it is somebody else's, or it cannot be written.
        """
        self.path = path
        folder = private_folder(os.path.dirname(path))
        self._descriptor = _open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
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


def read_ledger(path: str) -> Told:
    """Return what a ledger holds, while it is being written too.

    Raises:
        StoreError: missing, unreadable or somebody else's.
        InputError: it has no header, or one of another release: nothing is known of the pack.
    """
    entries: list[Entry] = []
    torn = 0
    for line in _lines(path):
        try:
            entries.append(parse_entry(line))
        except InputError:
            torn += 1
    entries = _of_newest_pack(entries)
    headers = [entry for entry in entries if entry.event == "pack"]
    if not headers:
        raise InputError(f"ledger '{path}' does not say of which pack it is; its job died at its start")
    try:
        spec = from_json(headers[-1].spec)
    except InputError as error:
        raise InputError(f"ledger '{path}' cannot be used: {error}") from error
    newest = entries[max(index for index, entry in enumerate(entries) if entry.event == "pack") :]
    return Told(
        spec=spec,
        job=headers[-1].job,
        tasks=_records(entries),
        notes=tuple(entry.said for entry in entries if entry.event == "note"),
        stopped=next((entry.said for entry in reversed(newest) if entry.event == "stop"), ""),
        began_s=headers[0].at_s,
        last_s=entries[-1].at_s,
        restarts=len(headers) - 1,
        torn_lines=torn,
    )


def _of_newest_pack(entries: list[Entry]) -> list[Entry]:
    """Return what belongs to the newest pack: a job that begins for the first time is another, and so is another spec.

    The spec counts too because the first header may be torn, or a restart count inherited from another job.
    """
    at = [index for index, entry in enumerate(entries) if entry.event == "pack"]
    first = at[-1] if at else 0
    for index in reversed(at):
        if entries[index].spec != entries[at[-1]].spec:
            break
        first = index
        if not is_restart(entries[index].job):
            break
    return entries[first:]


def is_restart(job: Mapping[str, str]) -> bool:
    """Return whether Slurm requeued the job, by its environment or a header's ``job``."""
    return job.get("SLURM_RESTART_COUNT", "") not in ("", "0")


def read_ledgers(paths: Iterable[str]) -> tuple[list[Told], list[str]]:
    """Return what those ledgers hold that can be used, and why the others cannot.

    The jobs of an array have one spec; those beside them with another are of an earlier job of the same id.
    """
    found: dict[str, list[Told]] = {}
    unreadable = []
    for path in paths:
        try:
            told = read_ledger(path)
        except (StoreError, InputError) as error:
            unreadable.append(str(error))
            continue
        folder, name = os.path.split(path)
        job_id = re.split("[_.]", name)[0]
        found.setdefault(os.path.join(folder, job_id), []).append(told)
    used = []
    for jobs in found.values():
        newest = max(jobs, key=lambda one: one.began_s)
        used += [one for one in jobs if one.spec == newest.spec]
    return used, unreadable


def _records(entries: Iterable[Entry]) -> tuple[TaskRecord, ...]:
    found: dict[int, TaskRecord] = {}
    begun_as: dict[int, int] = {}
    for entry in entries:
        before = found.get(entry.number)
        if entry.event == "pack":  # a requeued job counts from 1 again
            begun_as.clear()
        elif entry.event == "start":
            attempts = (before.attempts if before else 0) + (begun_as.get(entry.number) != entry.attempt)
            begun_as[entry.number] = entry.attempt
            found[entry.number] = TaskRecord(entry.number, attempts, None, None, entry.at_s, None, entry.step, "")
        elif entry.event == "end":
            # The line of its start may be one of the torn ones.
            begun = before or TaskRecord(entry.number, 1, None, None, entry.at_s, None, "", "")
            found[entry.number] = begun._replace(
                outcome=Outcome(entry.outcome),
                status=entry.status,
                ended_s=entry.at_s,
                step=entry.step or begun.step,
                said=entry.said,
            )
    return tuple(found[number] for number in sorted(found))


def missing(told: Iterable[Told]) -> tuple[int, ...]:
    """Return the numbers of the tasks that no ledger of a pack calls done, in rising order.

    Those that never started, in whichever job of the array, are among them.
    """
    every: set[int] = set()
    done: set[int] = set()
    for one in told:
        every |= {task.number for job in range(one.spec.jobs) for task in one.spec.tasks(job)}
        done |= {task.number for task in one.tasks if task.outcome is Outcome.DONE}
    return tuple(sorted(every - done))


def _lines(path: str, *, blank: bool = False) -> Iterator[bytes]:
    try:
        with os.fdopen(_open(path, os.O_RDONLY), "rb") as stream:
            while line := stream.readline(_LINE_LIMIT_BYTES):
                if blank or line.strip():
                    yield line
    except OSError as error:
        raise StoreError(f"ledger '{path}' cannot be read: {error.strerror}") from error


def _open(path: str, flags: int) -> int:
    """Return a descriptor of the regular file ``path``, the user's own; root may have anybody's to read.

    Raises:
        StoreError: it is something else, or cannot be opened.
    """
    try:
        # O_NONBLOCK: a planted FIFO must not hang the job.
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, PRIVATE_FILE)
    except OSError as error:
        raise StoreError(f"ledger '{path}' cannot be opened: {error.strerror}") from error
    with suppress(OSError):
        found = os.fstat(descriptor)
        by_root = os.geteuid() == 0 and not flags & os.O_APPEND
        if stat.S_ISREG(found.st_mode) and (found.st_uid == os.geteuid() or by_root):
            return descriptor
    os.close(descriptor)
    raise StoreError(f"ledger '{path}' is no file of uid {os.geteuid()}; move it away")

# SPDX-License-Identifier: Apache-2.0
"""What the ledgers of a pack tell: how its tasks went, and which are missing."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from slurm_colloc.errors import InputError, StoreError
from slurm_colloc.gpu.failure import Outcome
from slurm_colloc.pack.inbox import added_tasks
from slurm_colloc.pack.ledger import Entry, parse_entry
from slurm_colloc.pack.ledger_files import lines_of
from slurm_colloc.pack.spec import Spec, Task, from_json


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

    ``added`` are the tasks that were added while it ran.

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
    added: tuple[Task, ...] = ()

    def numbers(self, job: int = 0) -> Iterator[int]:
        """Yield the numbers of all tasks of one of the pack's jobs, those added to this one among them."""
        yield from (task.number for task in (*self.spec.tasks(job), *self.added))


def read_ledger(path: str) -> Told:
    """Return what a ledger holds, while it is being written too.

    Raises:
        StoreError: missing, unreadable or somebody else's.
        InputError: it has no header, or one of another release: nothing is known of the pack.
    """
    entries: list[Entry] = []
    torn = 0
    for line in lines_of(path):
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
        added=added_tasks(path),
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
        every |= {*one._replace(spec=one.spec._replace(jobs=1)).numbers()}
        done |= {task.number for task in one.tasks if task.outcome is Outcome.DONE}
    return tuple(sorted(every - done))

# SPDX-License-Identifier: Apache-2.0
"""How a pack went, by its ledgers: each task, and what is still to be done."""

from collections import Counter
from typing import Any, NamedTuple

from slurm_colloc.core.errors import InputError
from slurm_colloc.core.units import clock_time, counted, printable
from slurm_colloc.gpu.failure import Outcome
from slurm_colloc.pack.ledger import Ledger, TaskRecord, ledgers_of, missing, read_ledgers
from slurm_colloc.pack.resume import resumed_by

_LINES = 50
_NOT_RUN = "not run"
_NO_END = "no end known"


class Pack(NamedTuple):
    """The ledgers of a pack's jobs.

    ``ledgers`` are of those that began, of an array several; ``resumed_by`` are the jobs that went on with it, of which
    the last says what is ``left``. ``unreadable`` says which ledgers could not be used.
    """

    job_id: str
    ledgers: tuple[Ledger, ...]
    resumed_by: tuple[str, ...]
    left: tuple[int, ...]
    unreadable: tuple[str, ...]


def read_pack(cluster: str, job_id: str) -> Pack | None:
    """Return a pack of the user who runs this, None where the job is none.

    Args:
        cluster: the one that it ran on.
        job_id: as Slurm shows it: "4711" is a job or a whole array, "4711_2" one job of it.

    Raises:
        InputError: no ledger of it can be used, or no id of a job.
        StoreError: the ledgers' folder cannot be read.
    """
    ledgers, unreadable = read_ledgers(ledgers_of(cluster, job_id))
    if not ledgers:
        if unreadable:
            raise InputError(unreadable[0])
        return None
    array_id = job_id.partition("_")[0]
    later_jobs, latest = resumed_by(cluster, array_id)
    # All jobs of an array that began count, also if one of them is asked for.
    last, also = read_ledgers(ledgers_of(cluster, latest)) if latest != array_id else (ledgers, [])
    return Pack(array_id, tuple(ledgers), later_jobs, missing(last), (*unreadable, *also))


def pack_text(pack: Pack, *, goes_on: bool = False) -> str:
    """Return lines for a terminal: totals, and how each task went, the undone first if there are more than 50.

    One that ``goes_on`` has tasks to be done and is not to be resumed.
    """
    tasks = _tasks(pack)
    numbers = {record.number for record in tasks}
    counts = Counter(map(_outcome, tasks))
    done = Outcome.DONE.value
    lines = [f"  pack       {counted(len(tasks), 'task')}: {_by_outcome(counts)}"]
    if repeated := sum(max(record.attempts - 1, 0) for record in tasks):
        lines.append(f"             {counted(repeated, 'repeated attempt')}")
    lines += [f"             {printable(ledger.stopped)}" for ledger in pack.ledgers if ledger.stopped]
    if torn := sum(ledger.torn_lines for ledger in pack.ledgers):
        lines.append(f"             {counted(torn, 'line')} of the ledger cannot be used")
    lines += [f"             {printable(problem)}" for problem in pack.unreadable]
    missing_tasks = len(numbers & {*pack.left})
    if pack.resumed_by:
        later = len(tasks) - counts[done] - missing_tasks
        lines.append(f"             then job {', '.join(pack.resumed_by)}: {later} more done")
    if missing_tasks:
        then = "" if goes_on else f": csub pack --resume={pack.job_id}"
        lines.append(f"             {counted(missing_tasks, 'task')} still to be done{then}")
    if len(tasks) > _LINES:
        tasks = sorted(tasks, key=lambda record: (_outcome(record) == done, record.number))
    lines += map(_line, tasks[:_LINES])
    if rest := tasks[_LINES:]:
        lines.append(f"  and {counted(len(rest), 'task')} more: {_by_outcome(Counter(map(_outcome, rest)))}")
    return "".join(f"{line}\n" for line in lines)


def pack_record(pack: Pack) -> dict[str, Any]:
    """Return all that is known of a pack, for JSON."""
    tasks = _tasks(pack)
    return {
        "job_id": pack.job_id,
        "tasks": [
            {
                "number": record.number,
                "outcome": record.outcome.value if record.outcome else None,
                "attempts": record.attempts,
                "status": record.status,
                "began_s": record.began_s,
                "ended_s": record.ended_s,
                "step": record.step,
                "said": record.message,
            }
            for record in tasks
        ],
        "outcomes": dict(Counter(map(_outcome, tasks))),
        "missing": sorted({*pack.left} & {record.number for record in tasks}),
        "resumed_by": list(pack.resumed_by),
        "unreadable": list(pack.unreadable),
        "jobs": [
            {
                **ledger.job,
                "began_s": ledger.began_s,
                "last_s": ledger.last_s,
                "restarts": ledger.restarts,
                "stopped": ledger.stopped,
                "notes": list(ledger.notes),
                "torn_lines": ledger.torn_lines,
            }
            for ledger in pack.ledgers
        ],
    }


def pack_summary(pack: Pack) -> str:
    """Return in a few words how a pack went."""
    return _by_outcome(Counter(map(_outcome, _tasks(pack))))


def _tasks(pack: Pack) -> list[TaskRecord]:
    """Return the tasks of the jobs that began, by number, with those that never began."""
    records: dict[int, TaskRecord] = {}
    for ledger in pack.ledgers:
        part = int(ledger.job.get("SLURM_ARRAY_TASK_ID", "0")) if ledger.spec.jobs > 1 else 0
        records |= {task.number: TaskRecord(task.number) for task in ledger.spec.tasks(part)}
    records |= {record.number: record for ledger in pack.ledgers for record in ledger.tasks}
    return [records[number] for number in sorted(records)]


def _outcome(record: TaskRecord) -> str:
    if record.outcome:
        return record.outcome.value
    return _NO_END if record.attempts else _NOT_RUN


def _by_outcome(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.most_common())


def _line(record: TaskRecord) -> str:
    words = [_outcome(record)]
    if record.attempts > 1:
        words.append(f"attempt {record.attempts}")
    if record.ended_s is not None and record.began_s is not None:
        words.append(clock_time(record.ended_s - record.began_s))
    if record.status is not None:
        words.append(f"signal {-record.status}" if record.status < 0 else f"status {record.status}")
    if record.outcome is not None:  # the step is known at its end
        words.append(f"step {record.step}" if record.step else "no step")
    message = f": {printable(record.message)}" if record.message else ""
    return f"  task {record.number:<6}{', '.join(words)}{message}"

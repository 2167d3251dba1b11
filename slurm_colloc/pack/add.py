# SPDX-License-Identifier: Apache-2.0
"""Further tasks for a pack that runs: whether it can take them, and that it has."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from slurm_colloc.clock import tries
from slurm_colloc.errors import InputError
from slurm_colloc.files import locked, remove
from slurm_colloc.pack.inbox import inbox_of, put
from slurm_colloc.pack.ledger import ledger_path, numbers_of, read_ledger
from slurm_colloc.pack.spec import Task
from slurm_colloc.slurm.array import MOST_TASKS
from slurm_colloc.slurm.client import CliClient
from slurm_colloc.slurm.options import CommandLine
from slurm_colloc.units import clock_time, spans

_OF_THE_CALL = frozenset({"dry-run", "explain"})
# A pack looks once a second. On a network file system its node may see the file up to a minute later.
_LOOKS, _EVERY_S = 450, 0.2
_LOCK_TRIES = 30


@contextmanager
def adding(cluster: str, job_id: str) -> Iterator[str]:
    """Keep every other csub of this user from adding to the same pack meanwhile, and give the pack's ledger.

    Raises:
        InputError: it is no pack that runs, or another csub is at it for a while.
        StoreError: the file system knows no locks.
    """
    ledger = ledger_path(cluster, job_id)
    if not os.path.isdir(inbox_of(ledger)):
        raise InputError(
            f"job {job_id} is not a running pack of yours that takes tasks; of a pack with several jobs name one, such"
            " as 4711_0"
        )
    for _ in tries(_LOCK_TRIES, 1.0):
        with locked(f"{ledger}.adding") as held:
            if held:
                yield ledger
                return
    raise InputError(f"another csub is adding to job {job_id}; try again when it has ended")


def plan_addition(
    job_id: str,
    ledger: str,
    line: CommandLine,
    commands: Sequence[str],
    slurm: CliClient,
) -> tuple[tuple[Task, ...], str, str]:
    """Return the tasks that are to be added to a running pack, which they are in words, and what to say of them.

    Args:
        job_id: the pack's.
        ledger: the pack's.
        line: csub's options.
        commands: a line of sh for each task.
        slurm: answers what has to be asked.

    Raises:
        CollocError: the pack cannot take them.
    """
    for option in (*line.options, *line.own):
        if option.name not in _OF_THE_CALL:
            raise InputError(f"'{option.written}' beside --add: an added task has what a task of the pack has")
    left_s = next((job.left_s for job in slurm.own_queue("-t", "R") if job.job_id == job_id), None)
    if left_s is None:
        raise InputError(f"job {job_id} is not a running job of yours")
    pack = read_ledger(ledger)
    limit_min = pack.spec.time_limit_min
    if limit_min is not None and 60 * limit_min > left_s:
        raise InputError(
            f"a task may take {clock_time(60 * limit_min)} beside the others, and job {job_id} has"
            f" {clock_time(left_s)} left"
        )
    known, jobs = numbers_of([pack]), pack.spec.jobs
    # Each of several jobs of one pack has numbers of its own.
    least = max(known, default=0) + 1
    first = least + (int(job_id.partition("_")[2] or 0) - least) % jobs
    tasks = tuple(Task(first + at * jobs, one) for at, one in enumerate(commands))
    if len(tasks) + len(known) > MOST_TASKS:
        raise InputError(f"a pack takes {MOST_TASKS} tasks at most")
    counted = pack.spec.load
    notes = [
        f"counted for {counted.memory_mib} MiB of GPU memory and {counted.sm_active_pct:.3g} % of the SMs each"
        if counted.memory_mib
        else "one task at a time",
        f"output: {os.path.join(pack.job.get('folder', ''), pack.spec.output)}",
    ]
    if limit_min is not None:
        notes.append(f"time limit {clock_time(60 * limit_min)} each")
    node = pack.job.get("node", "")
    what = f"task {spans(task.number for task in tasks)} to job {job_id} on {node}"
    return tasks, what, "; ".join(notes)


def add(ledger: str, tasks: Sequence[Task]) -> None:
    """Have the pack with this ledger take the tasks, and return when it has.

    Raises:
        InputError: it did not, and will not.
        StoreError: nobody knows whether it will.
    """
    path = put(ledger, tasks)
    try:
        for _ in tries(_LOOKS, _EVERY_S):
            if not os.path.lexists(path):
                return
    except BaseException:
        # Told to stop: the tasks are not to run if that can still be said. What is no more in the inbox the pack took.
        if remove(path):
            raise
        return
    if remove(path):
        raise InputError("the pack has not taken it, as it is about to end, or its node does not see the folder")

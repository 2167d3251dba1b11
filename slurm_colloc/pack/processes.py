# SPDX-License-Identifier: Apache-2.0
"""Which processes of this node are a task's.

Known are those that bear the marks of their task in their environment, the one that a step began with, and what
descends from either: a program may write over its environment (setproctitle does), and ``env -i`` or a container starts
one anew.
"""

import os
import signal
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

from slurm_colloc.gpu.proc import parse_stat
from slurm_colloc.pack.srun import RUN_VARIABLE, TASK_VARIABLE


class Process(NamedTuple):
    """A process: a pid alone is used again, with the time at which it began it is not."""

    pid: int
    parent: int
    began_ticks: int


def process_of(content: bytes) -> Process | None:
    """Return the process of a line of /proc/PID/stat; None for one that has ended, and for another text."""
    stat = parse_stat(content)
    return None if stat is None or stat.ended else Process(stat.pid, stat.parent, stat.start_ticks)


def process(pid: int) -> Process | None:
    """Return the process that has this pid now; None where there is none."""
    with suppress(OSError), open(f"/proc/{pid}/stat", "rb") as stream:
        return process_of(stream.read())
    return None


def families_of(run: str, numbers: Collection[int], roots: Mapping[int, Process]) -> dict[int, dict[int, Process]]:
    """Return the processes of these tasks of a run of a pack, by their pids.

    Args:
        run: its name.
        numbers: of the tasks.
        roots: the processes that their steps began with, as far as they are known.
    """
    every = {entry.pid: entry for entry in processes()}
    owners = {entry.pid: number for number, entry in roots.items() if is_still(entry)}
    owners |= {pid: number for pid in every if (number := _task_of(pid, run)) is not None}
    families: dict[int, dict[int, Process]] = {number: {} for number in numbers}
    for pid, entry in every.items():
        # The nearest says whose it is.
        owner = next((owners[ancestor] for ancestor in line_of(pid, every) if ancestor in owners), None)
        if owner in families:
            families[owner][pid] = entry
    return families


def signal_processes(processes: Iterable[Process], number: signal.Signals) -> None:
    """Send a signal to these processes, and to none that has come to have the pid of one."""
    # Parents first, as a rule: a shell whose child is ended before it takes that for the child's own end.
    for entry in sorted(processes):
        with suppress(OSError):
            if is_still(entry):
                os.kill(entry.pid, number)


def is_still(entry: Process) -> bool:
    """Return whether this very process still runs; its parent may have gone."""
    now = process(entry.pid)
    return now is not None and now.began_ticks == entry.began_ticks


def line_of(pid: int, every: Mapping[int, Process]) -> list[int]:
    """Return a process and its ancestors, from itself upwards, as far as they are among ``every``."""
    line: list[int] = []
    while pid in every and pid not in line:  # pids come round while they are read
        line.append(pid)
        pid = every[pid].parent
    return line


def processes() -> Iterator[Process]:
    """Yield the processes of this node."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        if entry := process(int(name)):
            yield entry


def variables_of(pid: int) -> Collection[bytes]:
    """Return the environment that a process began with, each as NAME=VALUE; nothing where nobody may know."""
    with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as stream:
        return stream.read().split(b"\0")
    return ()


def _task_of(pid: int, run: str) -> int | None:
    """Return whose task of this run the process says it is; None for every other, and where nobody may know.

    A job that a task submitted has the run's name from it, and a job id of its own.
    """
    variables = variables_of(pid)
    of_run, of_job = f"{RUN_VARIABLE}={run}".encode(), f"SLURM_JOB_ID={run.partition('-')[0]}".encode()
    if of_run in variables and of_job in variables:
        with suppress(ValueError):
            mark = f"{TASK_VARIABLE}=".encode()
            return next((int(variable.removeprefix(mark)) for variable in variables if variable.startswith(mark)), None)
    return None

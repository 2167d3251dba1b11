# SPDX-License-Identifier: Apache-2.0
"""Which tasks of a pack run now: a pure queue of tasks against the room on one GPU.

Tasks start in their order, as room becomes free. One that lost its GPU, or found no memory on it, runs again behind
those that have not run yet: after "out of memory" counted for twice the memory. A fault of the GPU ends all tasks
there, each with the same words: the first to fall is the likeliest culprit and runs again alone, the others beside each
other, and alone at their last attempt. One that used the GPU past the daemon runs again alone, where it may have all.
"""

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from slurm_colloc.core.model import Load, Room
from slurm_colloc.gpu.failure import Outcome
from slurm_colloc.pack.spec import Task
from slurm_colloc.placement.out_of_memory import more_mib
from slurm_colloc.placement.packing import may_share


class Start(NamedTuple):
    """One attempt at a task.

    ``attempt`` counts from 1, ``load`` is what it is counted for this time. ``alone`` says that it needs the GPU for
    itself, and has it.
    """

    task: Task
    attempt: int
    load: Load
    alone: bool = False


class Queue:
    """The tasks of one job. Their starts and ends are told to it; nothing happens by itself."""

    def __init__(self, tasks: Sequence[Task], load: Load, room: Room, retries: int) -> None:
        """Make a queue.

        Args:
            tasks: the tasks, in the order in which they start.
            load: the load that each is counted for at its first attempt.
            room: the most that tasks may come to at a time. A task that is larger runs alone, counted for all of it.
            retries: how often one task may be run again.
        """
        self._room = room
        self._retries = retries
        self._running: dict[int, Start] = {}
        self._fresh = deque(self._sized(Start(task, 1, load)) for task in tasks)
        self._again: deque[Start] = deque()
        self._alone: deque[Start] = deque()
        # Those that ran when the GPU last failed under one, and have not ended since.
        self._stricken: set[int] = set()

    @property
    def finished(self) -> bool:
        """Return whether every task has ended for good."""
        return not (self._running or self._fresh or self._again or self._alone)

    def ready(self) -> list[Start]:
        """Return what may start now; it counts as running from now on."""
        begun = []
        # Those that need the GPU for themselves come last: each of them has to wait until nothing else runs.
        while line := self._fresh or self._again or self._alone:
            if not self._fits(line[0]):
                break
            start = line.popleft()
            self._running[start.task.number] = start
            begun.append(start)
        return begun

    def ended(self, number: int, outcome: Outcome) -> bool:
        """Take the end of a running task; return whether it will be run again."""
        start = self._running.pop(number)
        victim = number in self._stricken
        self._stricken.discard(number)
        if start.attempt > self._retries:
            return False
        if outcome is Outcome.GPU_FAULT and start.alone:  # its own
            return False
        next_start = start._replace(attempt=start.attempt + 1)
        if outcome in (Outcome.GPU_FAULT, Outcome.LOST):
            suspect = outcome is Outcome.GPU_FAULT and not victim
            if suspect:
                self._stricken = set(self._running)
            next_start = next_start._replace(alone=start.alone or suspect or start.attempt == self._retries)
        elif outcome is Outcome.NOT_SHARING and not start.alone:
            next_start = next_start._replace(alone=True)
        elif outcome is Outcome.GPU_OOM and start.load.memory_mib < self._room.memory_mib:
            larger = start.load._replace(memory_mib=more_mib(start.load.memory_mib))
            next_start = self._sized(next_start._replace(load=larger))
        else:  # also one that found all the memory there is too little
            return False
        (self._alone if next_start.alone else self._again).append(next_start)
        return True

    def _sized(self, start: Start) -> Start:
        """Return an attempt counted for no more than there is; one that needs all of it is alone."""
        most_mib, load = self._room.memory_mib, start.load
        counted = load._replace(memory_mib=min(load.memory_mib, most_mib))
        return start._replace(load=counted, alone=start.alone or load.memory_mib >= most_mib)

    def _fits(self, start: Start) -> bool:
        if not self._running:
            return True
        running = list(self._running.values())
        # One that needs the GPU for itself is the only one that runs.
        if start.alone or running[0].alone or len(running) >= self._room.tasks:
            return False
        loads = [item.load for item in (*running, start)]
        return may_share(loads, self._room.memory_mib, self._room.sm_active_pct)

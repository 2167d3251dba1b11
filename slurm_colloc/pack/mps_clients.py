# SPDX-License-Identifier: Apache-2.0
"""Finds processes of a task that use the GPU without the pack's MPS daemon.

One that has a context on the GPU must be the daemon's client. One that has the GPU open may have no context: a launcher
or a monitor that only asked CUDA or NVML what there is has it open (seen on an H100), and a process that a client forks
inherits its files. The files only tell, therefore, when to ask nvidia-smi, which knows who has a context.
"""

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress

from slurm_colloc.core.errors import GpuError
from slurm_colloc.gpu import nvidia_smi
from slurm_colloc.pack.processes import Process, line_of

_GPU = re.compile(r"/nvidia[0-9]+$")


def with_gpu_open(pids: Iterable[int]) -> set[int]:
    """Return those that have a GPU open; one whose files nobody may see is not among them."""
    return {pid for pid in pids if any(map(_GPU.search, _files(f"/proc/{pid}/fd")))}


def _files(folder: str) -> Iterable[str]:
    with suppress(OSError):
        for entry in os.listdir(folder):
            with suppress(OSError):
                yield os.readlink(f"{folder}/{entry}")


def computing() -> set[int]:
    """Return the processes that have a context on a GPU of this node, as far as nvidia-smi says."""
    with suppress(GpuError):
        return nvidia_smi.computing()
    return set()


class Watch:
    """The processes of one attempt, as they were seen so far."""

    def __init__(self) -> None:
        """Begin with nothing seen."""
        self._suspects: set[int] = set()
        self._known: set[int] = set()

    def look(
        self,
        family: Mapping[int, Process],
        on_gpu: Collection[int],
        clients: Collection[int] | None,
        computing: Callable[[], Collection[int]],
    ) -> set[int]:
        """Return those that were seen past the daemon at this look and the one before.

        Args:
            family: the task's processes.
            on_gpu: those that have the GPU open.
            clients: the daemon's, asked for after ``on_gpu``; None where it does not answer: nothing is concluded.
            computing: tells who has a context on the GPU; asked only where somebody might be past the daemon.
        """
        if clients is None:
            self._suspects = set()
            return set()
        self._known |= family.keys() & clients
        # A process that a client forked is no client, and may have the GPU open.
        unknown = {pid for pid in on_gpu if self._known.isdisjoint(line_of(pid, family))}
        # A client's child may outlive it, and then descends from nobody.
        self._known |= set(on_gpu) - unknown
        if unknown:
            unknown &= set(computing())
        twice, self._suspects = unknown & self._suspects, unknown
        return twice

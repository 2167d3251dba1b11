# SPDX-License-Identifier: Apache-2.0
"""A step that the pack has started: its srun, the process it began with, how it ended."""

import os
from contextlib import suppress
from dataclasses import dataclass

from slurm_colloc import clock
from slurm_colloc.gpu.failure import TAIL_BYTES
from slurm_colloc.pack.processes import Process, process_of
from slurm_colloc.pack.steps import Files

# Slurm, which stops a job, signals its steps before its batch script: an end that may come of that is judged later.
JUDGED_AFTER_S = 1.0
# When Slurm starts no steps: its controller may be away for a while, or never start one more.
MOST_REFUSALS = 10
_FIRST_WAIT_S, _LONGEST_WAIT_S = 1.0, 60.0
_STAT_BYTES = 4096


@dataclass(slots=True, kw_only=True)
class Step:
    """One srun and the step that it is to start; ``status`` and ``ended_s`` count from its end.

    ``number`` is what its processes are known by. ``srun_output`` is the open file of srun's own words: open, it stays
    readable whatever a task does to its name.
    """

    number: int
    files: Files
    pid: int
    srun_output: int
    began_s: float
    status: int = 0
    ended_s: float | None = None
    _root: Process | None = None

    @property
    def root(self) -> Process | None:
        """Return the process that the step began with; None until it has told."""
        if self._root is None:
            for path in self._told():
                with suppress(OSError), open(path, "rb") as stream:
                    self._root = process_of(stream.read(_STAT_BYTES))
        return self._root

    @property
    def refused(self) -> bool:
        """Return whether Slurm did not start it."""
        return self.status != 0 and os.path.exists(self.files.step)

    def reap(self, now_s: float) -> None:
        """Take its end if it has ended."""
        if self.ended_s is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status, self.ended_s = os.waitstatus_to_exitcode(status), now_s

    def signal_srun(self, number: int) -> None:
        """Send a signal to its srun."""
        if self.ended_s is None:  # else the pid may be somebody else's
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def srun_said(self) -> bytes:
        """Return what srun said, and Slurm through it."""
        size = os.fstat(self.srun_output).st_size
        return os.pread(self.srun_output, TAIL_BYTES, max(0, size - TAIL_BYTES))

    def close(self, job_id: str) -> str:
        """Return the job step that it was, "" if it was none, and let go of srun's words and the file that says so."""
        os.close(self.srun_output)
        with suppress(OSError):  # a task may have emptied the folder
            for path in self._told():
                os.unlink(path)
                return f"{job_id}{path[len(self.files.step) :]}"
        return ""

    def _told(self) -> list[str]:
        folder, name = os.path.split(self.files.step)
        try:
            return [os.path.join(folder, found) for found in os.listdir(folder) if found.startswith(f"{name}.")]
        except OSError:
            return []


class Backoff:
    """What has failed several times in a row is let alone a second, then twice as long each time, up to a minute."""

    def __init__(self) -> None:
        """Begin with no failure."""
        self.failures = 0
        self.failed_s = self._until_s = 0.0

    @property
    def over(self) -> bool:
        """Return whether it may be tried again."""
        return clock.ticking() >= self._until_s

    def failed(self) -> float:
        """Take a failure and return how many seconds to wait."""
        self.failures += 1
        self.failed_s = clock.ticking()
        wait_s = min(_FIRST_WAIT_S * 2.0 ** min(self.failures - 1, 10), _LONGEST_WAIT_S)
        self._until_s = self.failed_s + wait_s
        return wait_s

    def worked(self) -> None:
        """Take that it did not fail."""
        self.failures = 0

# SPDX-License-Identifier: Apache-2.0
"""One attempt at a task: its files, its srun step, its end and its output."""

import os
import re
import signal
from collections import Counter
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass

from slurm_colloc.core.errors import StoreError
from slurm_colloc.core.files import PRIVATE_FOLDER, write_atomic
from slurm_colloc.gpu.failure import TAIL_BYTES, Outcome, outcome_of
from slurm_colloc.pack.mps_clients import Watch
from slurm_colloc.pack.processes import Process, process_of
from slurm_colloc.pack.spec import Spec, Task
from slurm_colloc.pack.srun import Files, Job
from slurm_colloc.pack.starts_and_retries import Start
from slurm_colloc.slurm.job_files import file_name, last_words, open_output

# Slurm, which stops a job, signals its steps before its batch script: an end that may come of that is judged later.
_JUDGED_AFTER_S = 1.0
_STAT_BYTES = 4096
# Slurm's own words about a step, and those of an srun that a task called itself, which tell nothing about the task.
_CANCELLED = re.compile(rb"\*\*\* (?:STEP|JOB) \S+ ON \S+ CANCELLED AT")
_NAMED_STEP = re.compile(rb"\b(?:STEP |StepId=)(\d+\.\d+)")
_SRUNS_LINE = re.compile(rb"^(?:srun|slurmstepd)\b[^\n]*", re.MULTILINE)
_MAY_BE_STOPPED = {
    code for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGINT) for code in (-number, 128 + number)
}

# A batch script has this name, too, which people know as $0.
_SCRIPT = "slurm_script"
# Slurm gives the step of an srun inside a task the node's number of the GPU, and the daemon has but number 0.
_PROLOG = b"#!/bin/sh\necho export CUDA_VISIBLE_DEVICES=0\n"


@dataclass(slots=True, kw_only=True)
class Attempt:
    """A running task: one srun and the step that it is to start; ``status`` and ``ended_s`` count from its end.

    ``srun_output`` is the open file of srun's own words: open, it stays readable whatever a task does to its name.
    ``watch`` is None where nobody looks at its clients. ``lost`` says that its daemon died under it. ``ended_for`` says
    why the pack ends it, since ``ending_s``; ``was_asked`` that it had processes which were told, ``pressed`` that this
    was not enough.
    """

    start: Start
    slot: int
    files: Files
    pid: int
    srun_output: int
    output_at: int
    error_at: int
    began_s: float
    status: int = 0
    ended_s: float | None = None
    watch: Watch | None = None
    lost: bool = False
    ended_for: tuple[Outcome, str] | None = None
    ending_s: float = 0.0
    was_asked: bool = False
    pressed: bool = False
    _root: Process | None = None

    @property
    def number(self) -> int:
        """Return the number of its task, by which its processes are known."""
        return self.start.task.number

    @property
    def root(self) -> Process | None:
        """Return the process that the step began with; None until it has told."""
        if self._root is None:
            for path in self._step_files():
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
            for path in self._step_files():
                os.unlink(path)
                return f"{job_id}{path[len(self.files.step) :]}"
        return ""

    @property
    def at_work(self) -> bool:
        """Return whether it runs, and nobody ends it."""
        return self.ended_s is None and self.ended_for is None

    def in_doubt(self, now_s: float) -> bool:
        """Return whether it may have ended because the job is being stopped, of which nobody has told yet."""
        if self.ended_s is None or now_s - self.ended_s >= _JUDGED_AFTER_S:
            return False
        if self.status:
            return self.status in _MAY_BE_STOPPED
        return _CANCELLED.search(self.srun_said()) is not None

    def judged(self, step: str, srun_said: bytes, shared: Collection[str]) -> tuple[Outcome, str]:
        """Return what it came to in a job that nobody stopped, and the words that told.

        Args:
            step: that it was, "" where that is not known.
            srun_said: the words of its srun.
            shared: files to which other tasks write too.
        """
        status = self.status
        srun_said = of_step(srun_said, step)
        # A task that ends well because it was told to end is not done; and srun then ends with 0, whatever it did.
        if self.ended_for is not None and (self.was_asked or self.pressed):
            return self.ended_for
        if status == 0 and _CANCELLED.search(srun_said):
            status = 128 + signal.SIGTERM
        if status != 0 and self.lost:
            return Outcome.LOST, "the MPS daemon died"
        by_slurm = outcome_of(status, srun_said)
        if by_slurm[0] is not Outcome.FAILED:
            return by_slurm
        return outcome_of(status, self.said(shared))

    def said(self, shared: Collection[str]) -> bytes:
        """Return the last words of the task itself, without those of srun, from files that are not ``shared``."""
        files = self.files
        begins_at = {files.output: self.output_at, files.error: self.error_at}
        begins = [(name, begin) for name, begin in begins_at.items() if name not in shared]
        words = b"\n".join(last_words(name, begin, TAIL_BYTES // len(begins) - 1) for name, begin in begins)
        return _SRUNS_LINE.sub(b"", words)

    def _step_files(self) -> list[str]:
        folder, name = os.path.split(self.files.step)
        try:
            return [os.path.join(folder, entry) for entry in os.listdir(folder) if entry.startswith(f"{name}.")]
        except OSError:
            return []


class TaskFiles:
    """The files of a pack's tasks."""

    def __init__(self, spec: Spec, job: Job, folder: str, script: bytes) -> None:
        """Take the user's script, and a folder of this pack's own for it."""
        self._spec, self._job, self._folder, self._content = spec, job, folder, script
        self.script, self.prolog = os.path.join(folder, _SCRIPT), os.path.join(folder, "prolog")

    def of(self, task: Task) -> Files:
        """Return the files of one task."""
        job = self._job

        def named(pattern: str) -> str:
            return file_name(
                pattern,
                job_id=f"{job.job_id}_{task.number}",
                array_job_id=job.array_job_id,
                task=task.number,
                name=job.name,
                user=job.user,
                node=job.node,
                folder=job.folder,
            )

        output = named(self._spec.output)
        return Files(
            step=os.path.join(self._folder, f"step-{task.number}"),
            output=output,
            error=named(self._spec.error) if self._spec.error else output,
            input=named(self._spec.input or os.devnull),
        )

    def opened(self, task: Task) -> tuple[Files, int, int, int]:
        """Begin the files of an attempt at a task.

        Return them, where its output and its errors begin in theirs, and the open one for the words of srun.

        Raises:
            InputError: its output cannot be written.
            StoreError: the private ones cannot.
        """
        files = self.of(task)
        error_at = output_at = open_output(files.output, append=self._spec.append)
        if files.error != files.output:
            error_at = open_output(files.error, append=self._spec.append)
        try:
            return files, output_at, error_at, self._private(files)
        except (OSError, StoreError) as error:
            raise StoreError(f"the pack's private files cannot be written: {error}") from error

    def _private(self, files: Files) -> int:
        """Make an attempt's private files, and the others where they are not, or no more; return the one for srun."""
        folder = self._folder
        os.makedirs(folder, 0o700, exist_ok=True)
        if os.lstat(folder).st_uid != os.geteuid():  # somebody else was there first, after a task had removed it
            raise StoreError(f"folder '{folder}' belongs to somebody else")
        for path, content in ((self.script, self._content), (self.prolog, _PROLOG)):
            if not os.path.exists(path):
                write_atomic(path, content, PRIVATE_FOLDER)
        os.close(os.open(files.step, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        return os.open(f"{files.step}-srun", flags, 0o600)

    def shared(self, tasks: Iterable[Task]) -> set[str]:
        """Return the output files of several tasks, of which the writer of a line is not known."""
        named = Counter(name for task in tasks for name in {*self.of(task)[1:3]})
        return {name for name, count in named.items() if count > 1 and name != os.devnull}


def of_step(words: bytes, step: str) -> bytes:
    """Return Slurm's words without those on another step, or all of them if this one's name is not known."""
    lines = words.splitlines(keepends=True)
    named = [_NAMED_STEP.search(line) for line in lines]
    return b"".join(
        line for line, name in zip(lines, named, strict=True) if not (step and name and name[1] != step.encode())
    )

# SPDX-License-Identifier: Apache-2.0
"""A pack at work: tasks are started as room becomes free, their ends judged, their daemon and the stop looked after."""

import os
import re
import secrets
import shutil
import signal
from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from slurm_colloc import clock
from slurm_colloc.errors import InputError, ProcessError, StoreError
from slurm_colloc.files import PRIVATE_FOLDER, write_atomic
from slurm_colloc.process import spawn_into
from slurm_colloc.runtime.faults import TAIL_BYTES, outcome_of
from slurm_colloc.runtime.files import add_words, file_name, last_words, open_output
from slurm_colloc.runtime.queue import Outcome, Queue, Start
from slurm_colloc.runtime.record import Record
from slurm_colloc.runtime.shared_gpu import SharedGpu, processes_of, signal_tasks
from slurm_colloc.runtime.signals import PASSED_ON, STOPPING, Signals
from slurm_colloc.runtime.spec import Spec, Task
from slurm_colloc.runtime.steps import RUN_VARIABLE, Files, Job, command_line, slots, srun_environment, task_variables
from slurm_colloc.runtime.summary import Result

_TICK_S = 1.0
_SOON_S = 0.1
# Slurm, which stops a job, signals its steps before its batch script: an end that may come of that is judged later.
_JUDGED_AFTER_S = 1.0
_MAY_BE_STOPPED = {
    code for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGINT) for code in (-number, 128 + number)
}
# Slurm's default KillWait, after which it kills, is 30 s; before that the daemon has to be quit.
_GENTLE_S, _FORCED_S = 10.0, 20.0
_LOST_GRACE_S = 10.0
_LOOK_S, _CLIENT_WITHIN_S = 10.0, 120.0
# When Slurm starts no steps: its controller may be away for a while, or never start one more.
_FIRST_WAIT_S, _LONGEST_WAIT_S, _MOST_REFUSALS = 1.0, 60.0, 10
# Slurm's own words about a step, and those of an srun that a task called itself, which tell nothing about the task.
_CANCELLED = re.compile(rb"\*\*\* (?:STEP|JOB) \S+ ON \S+ CANCELLED AT")
_NAMED_STEP = re.compile(rb"\b(?:STEP |StepId=)(\d+\.\d+)")
_SRUNS_LINE = re.compile(rb"^(?:srun|slurmstepd)\b[^\n]*", re.MULTILINE)


@dataclass(slots=True)
class _Attempt:
    """A running task; ``status`` and ``ended_s`` count from its end, ``lost`` says that its daemon died under it.

    ``srun_said`` is the open file of srun's own words: open, it stays readable whatever a task does to its name.
    """

    start: Start
    pid: int
    slot: int
    files: Files
    output_at: int
    error_at: int
    srun_said: int
    began_s: float
    status: int = 0
    ended_s: float | None = None
    checked: bool = False
    lost: bool = False

    @property
    def number(self) -> int:
        return self.start.task.number


class Loop:
    """The tasks of one job from the first to the last."""

    def __init__(
        self,
        spec: Spec,
        job: Job,
        tasks: Sequence[Task],
        at_once: int,
        gpu: SharedGpu,
        record: Record,
        environ: Mapping[str, str],
        script: str,
    ) -> None:
        """Make ready to run.

        Args:
            spec: of the pack.
            job: that it runs in.
            tasks: those to run.
            at_once: how many may run at a time.
            gpu: that they share.
            record: told what happens.
            environ: of the batch script.
            script: the file with the user's script, in a folder of this pack's own.

        Raises:
            ProcessError: there is no srun.
            StoreError: the script cannot be read.
        """
        self._spec, self._job, self._gpu, self._record, self._environ = spec, job, gpu, record, environ
        self._script = script
        # By it the tasks' processes are told from those of other runs, of packs that a task submits above all.
        self._token = f"{job.job_id}-{secrets.token_hex(8)}"
        try:
            with open(script, "rb") as stream:
                self._content = stream.read()
        except OSError as error:
            raise StoreError(f"script '{script}' cannot be read: {error.strerror}") from error
        self._queue = Queue(tasks, spec.load, spec.room._replace(tasks=at_once), spec.retries)
        self._pending: deque[Start] = deque()
        self._cores = slots(job.cores, at_once, spec.cpus_per_task) if job.cores else [()] * at_once
        self._free = deque(range(at_once))
        self._running: dict[int, _Attempt] = {}
        self._srun_environment = srun_environment(environ)
        found = shutil.which("srun", path=environ.get("PATH"))
        if found is None:
            raise ProcessError("there is no 'srun' on PATH; is Slurm's client installed on this node?")
        self._srun = os.path.abspath(found)
        self._shared = self._shared_files(tasks)
        self._refusals = 0
        self._refused_s = self._not_before_s = 0.0
        self._gave_up = False
        self.stopped = False
        self._stopped_s = 0.0
        self._forced = False
        self._to_stop: tuple[int, ...] = ()
        self._daemon_died_s: float | None = None
        self._next_look_s = 0.0
        self._tasks, self._at_once = len(tasks), at_once
        self._outcomes: dict[int, Outcome] = {}
        self._again = 0
        self._run_s = 0.0
        self._began_s = clock.ticking()

    def run(self, signals: Signals) -> None:
        """Run the tasks until each has ended for good, or the job is stopped."""
        # The start of the daemon takes its time, and may have seen the job stopped.
        self._heed(signals.wait(0))
        if not self.stopped:
            self._begin_what_may()
        while self.stopped or self._running or not (self._gave_up or self._queue.finished):
            held = any(attempt.ended_s is not None for attempt in self._running.values())
            self._heed(signals.wait(_SOON_S if held or self.stopped else _TICK_S))
            self._look_after_daemon()
            self._collect()
            if not self.stopped:
                self._look_for_clients()
                self._begin_what_may()
            elif self._stop_is_over():
                return

    def result(self, done_before: int) -> Result:
        """Return how it went."""
        stopped = dict.fromkeys(self._running, Outcome.STOPPED)
        return Result(
            job_id=self._job.job_id,
            node=self._job.node,
            tasks=self._tasks,
            done_before=done_before,
            at_once=self._at_once,
            outcomes=self._outcomes | stopped,
            again=self._again,
            run_s=self._run_s,
            wall_s=clock.ticking() - self._began_s,
            with_gpu=bool(self._environ.get("CUDA_VISIBLE_DEVICES")),
        )

    # --- beginning ---

    def _begin_what_may(self) -> None:
        if self._refusals >= _MOST_REFUSALS and not self._running and not self._gave_up:
            self._gave_up = True
            self._record.stop(f"Slurm refused a step {self._refusals} times in a row: no more tasks are started")
        # One that cannot even begin leaves its place to the next.
        while self._daemon_died_s is None and not self._gave_up and clock.ticking() >= self._not_before_s:
            self._pending += self._queue.ready()
            if not self._pending or len(self._running) >= self._gpu.at_once:
                return
            self._begin(self._pending.popleft())

    def _begin(self, start: Start) -> None:
        number = start.task.number
        self._record.start(start)
        try:
            files = self._files(start.task)
            output_at = open_output(files.output, append=self._spec.append)
            error_at = output_at
            if files.error != files.output:
                error_at = open_output(files.error, append=self._spec.append)
        except InputError as error:
            self._take_end(start, Outcome.FAILED, 1, str(error), "")
            return
        try:
            srun_said = self._private_files(files)
        except (OSError, StoreError) as error:
            self._take_end(start, Outcome.LOST, 1, f"the pack's private files cannot be written: {error}", "")
            return
        slot = self._free.popleft()
        alone = start.attempt > 1 and not self._running
        variables = task_variables(self._spec, self._job, start.task, start.attempt, self._environ)
        argv = command_line(
            self._srun,
            self._spec,
            self._job,
            start.task,
            script=self._script,
            files=files,
            cores=self._cores[slot],
            variables=variables | {RUN_VARIABLE: self._token} | self._gpu.environment(start.load, alone=alone),
        )
        try:
            pid = spawn_into(argv, self._srun_environment, srun_said)
        except ProcessError as error:
            os.close(srun_said)
            self._free.append(slot)
            self._take_refusal(start, clock.ticking(), 1, str(error))
            return
        attempt = _Attempt(start, pid, slot, files, output_at, error_at, srun_said, clock.ticking())
        attempt.checked = not self._gpu.under_mps
        self._running[number] = attempt

    def _private_files(self, files: Files) -> int:
        """Make an attempt's private files, and the others anew if a task removed them; return the one for srun."""
        folder = os.path.dirname(self._script)
        os.makedirs(folder, 0o700, exist_ok=True)
        if os.lstat(folder).st_uid != os.geteuid():  # somebody else was there first, after a task had removed it
            raise StoreError(f"folder '{folder}' belongs to somebody else")
        if not os.path.exists(self._script):
            write_atomic(self._script, self._content, PRIVATE_FOLDER)
        os.close(os.open(files.step, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        return os.open(f"{files.step}-srun", flags, 0o600)

    def _shared_files(self, tasks: Iterable[Task]) -> set[str]:
        """Return the output files of several tasks: who wrote what there, nobody can tell."""
        named = Counter(name for task in tasks for name in {*self._files(task)[1:3]})
        shared = {name for name, count in named.items() if count > 1 and name != os.devnull}
        if shared:
            self._record.note(
                f"several tasks write to '{min(shared)}': what is said there tells nothing about one of them, and"
                " one that runs out of GPU memory is not run again; put %a into --output and --error for that"
            )
        return shared

    def _files(self, task: Task) -> Files:
        job = self._job

        def named(pattern: str) -> str:
            return file_name(
                pattern,
                job_id=job.job_id,
                array_job_id=job.array_job_id,
                task=task.number,
                name=job.name,
                user=job.user,
                node=job.node,
                folder=job.folder,
            )

        output = named(self._spec.output)
        return Files(
            step=os.path.join(os.path.dirname(self._script), f"step-{task.number}"),
            output=output,
            error=named(self._spec.error) if self._spec.error else output,
            input=named(self._spec.input or os.devnull),
        )

    # --- ends ---

    def _collect(self) -> None:
        now_s = clock.ticking()
        self._reap(now_s)
        ended = [one for one in self._running.values() if one.ended_s is not None and not self._in_doubt(one, now_s)]
        if not self.stopped:  # else they may be saving what they have, though their srun has ended already
            self._clear([attempt.number for attempt in ended])
        for attempt in ended:
            del self._running[attempt.number]
            self._free.append(attempt.slot)
            step = self._step_of(attempt)
            srun_said = self._srun_said(attempt)
            os.close(attempt.srun_said)
            if srun_said:  # for people, as with an array
                add_words(attempt.files.error, srun_said)
            if step:
                self._refusals = 0
            elif not self.stopped and not attempt.lost and attempt.status and os.path.exists(attempt.files.step):
                lines = srun_said.decode(errors="replace").strip().splitlines() or ["srun said nothing"]
                self._take_refusal(attempt.start, attempt.began_s, attempt.status, lines[-1])
                continue
            self._run_s += (attempt.ended_s or now_s) - attempt.began_s
            outcome, said = self._judged(attempt, step, srun_said)
            self._take_end(attempt.start, outcome, attempt.status, said, step)

    def _in_doubt(self, attempt: _Attempt, now_s: float) -> bool:
        """Return whether an attempt may have ended because the job is being stopped, of which nobody has told yet."""
        if self.stopped or attempt.ended_s is None or now_s - attempt.ended_s >= _JUDGED_AFTER_S:
            return False
        if attempt.status:
            return attempt.status in _MAY_BE_STOPPED
        return _CANCELLED.search(self._srun_said(attempt)) is not None

    def _reap(self, now_s: float) -> None:
        """Take the ends of what has ended."""
        for attempt in self._running.values():
            if attempt.ended_s is None:
                pid, status = os.waitpid(attempt.pid, os.WNOHANG)
                if pid:
                    attempt.status, attempt.ended_s = os.waitstatus_to_exitcode(status), now_s

    def _clear(self, ended: Collection[int]) -> None:
        """Kill what tasks left behind, as Slurm does after a batch script; not every site's proctrack finds it all."""
        left = set().union(*processes_of(self._token, ended).values()) if ended else set()
        if left:
            self._gpu.terminate(left)
            signal_tasks(self._token, ended, signal.SIGKILL)

    def _judged(self, attempt: _Attempt, step: str, srun_said: bytes) -> tuple[Outcome, str]:
        """Return what an attempt came to, and the words that told."""
        status = attempt.status
        srun_said = _of_step(srun_said, step)
        # A task that ends well because it was told to end is not done; and srun then ends with 0, whatever it did.
        if self.stopped:
            return Outcome.STOPPED, ""
        if status == 0 and _CANCELLED.search(srun_said):
            status = 128 + signal.SIGTERM
        if status != 0 and attempt.lost:
            return Outcome.LOST, "the MPS daemon died"
        by_slurm = outcome_of(status, srun_said)
        if by_slurm[0] is not Outcome.FAILED:
            return by_slurm
        return outcome_of(status, _SRUNS_LINE.sub(b"", self._said(attempt)))

    def _said(self, attempt: _Attempt) -> bytes:
        """Return the last words of a task itself, from files that are its own."""
        files = attempt.files
        begins_at = {files.output: attempt.output_at, files.error: attempt.error_at}
        own = [one for one in begins_at.items() if one[0] not in self._shared]
        return b"\n".join(last_words(name, at, TAIL_BYTES // len(own) - 1) for name, at in own)

    def _srun_said(self, attempt: _Attempt) -> bytes:
        size = os.fstat(attempt.srun_said).st_size
        return os.pread(attempt.srun_said, TAIL_BYTES, max(0, size - TAIL_BYTES))

    def _step_of(self, attempt: _Attempt) -> str:
        """Return the job step of an attempt, "" if it was none, and remove the file that says so."""
        folder, name = os.path.split(attempt.files.step)
        with suppress(FileNotFoundError):  # a task may have emptied the folder
            for found in os.listdir(folder):
                if found.startswith(f"{name}."):
                    os.unlink(os.path.join(folder, found))
                    return f"{self._job.job_id}{found[len(name) :]}"
        return ""

    def _take_refusal(self, start: Start, began_s: float, status: int, said: str) -> None:
        """Take that Slurm did not start a step: the same attempt is made again later, and counts once."""
        self._record.end(start, Outcome.LOST, status, f"the step did not start: {said}", "")
        self._pending.append(start)
        if began_s < self._refused_s:  # told with one of those that began beside it
            return
        self._refused_s = clock.ticking()
        self._refusals += 1
        wait_s = min(_FIRST_WAIT_S * 2 ** min(self._refusals - 1, 10), _LONGEST_WAIT_S)
        self._not_before_s = self._refused_s + wait_s
        self._record.note(f"Slurm does not start a step, which is tried again in {wait_s:.0f} s: {said}")

    def _take_end(self, start: Start, outcome: Outcome, status: int, said: str, step: str) -> None:
        number = start.task.number
        self._record.end(start, outcome, status, said, step)
        if self._queue.ended(number, outcome) and not self.stopped:
            self._again += 1
            self._record.note(f"task {number} is run again, attempt {start.attempt + 1}: {outcome.value}")
        else:
            self._outcomes[number] = outcome

    # --- the daemon and its clients ---

    def _look_after_daemon(self) -> None:
        """Let what ran under a daemon that died come to its end, then begin anew."""
        if not self._gpu.dead:
            return
        now_s = clock.ticking()
        if self._daemon_died_s is None:
            self._daemon_died_s = now_s
            self._record.note("the MPS daemon died; the tasks that ran under it are ended and run again")
            for attempt in self._running.values():
                attempt.lost = True
        elif now_s - self._daemon_died_s > _LOST_GRACE_S:
            self._signal_sruns(signal.SIGTERM)
        if not self._running and not self.stopped:
            self._gpu.renew()
            self._daemon_died_s = None

    def _look_for_clients(self) -> None:
        """Find the tasks that do not use the GPU through the daemon: MPS lets them run, and says nothing."""
        now_s = clock.ticking()
        unchecked = {number: one for number, one in self._running.items() if not one.checked}
        if now_s < self._next_look_s or not unchecked or self._daemon_died_s is not None:
            return
        self._next_look_s = now_s + _LOOK_S
        clients = self._gpu.clients()
        found = processes_of(self._token, unchecked)
        for number, attempt in unchecked.items():
            if clients is not None and found[number] & clients:
                attempt.checked = True
            elif now_s - attempt.began_s > _CLIENT_WITHIN_S:
                attempt.checked = True
                said = f"task {number} does not use the GPU through MPS, or not at all"
                if clients is None:
                    said = f"whether task {number} uses the GPU through MPS is not known: the daemon does not answer"
                self._record.note(said)

    # --- being stopped ---

    def _heed(self, came: set[int]) -> None:
        for number in came & set(PASSED_ON):
            self._signal_sruns(number)
        if self.stopped or not came & set(STOPPING):
            return
        self.stopped, self._stopped_s = True, clock.ticking()
        # First of all: there may be little time.
        names = ", ".join(signal.Signals(number).name for number in sorted(came & set(STOPPING)))
        self._record.stop(f"stopped by {names}: no more tasks are started")
        # The tasks themselves, that they may save what they have; srun would have them killed.
        self._to_stop = tuple(self._running)
        signal_tasks(self._token, self._to_stop, signal.SIGTERM)

    def _left_to_stop(self) -> set[int]:
        return set().union(*processes_of(self._token, self._to_stop).values())

    def _stop_is_over(self) -> bool:
        waited_s = clock.ticking() - self._stopped_s
        left = self._left_to_stop()
        if left and waited_s > _GENTLE_S and not self._forced:
            self._forced = True
            self._gpu.terminate(left)
            self._signal_sruns(signal.SIGTERM)
        # What is still there then is the job's, and Slurm ends it with the job.
        return not (left or self._running) or waited_s > _FORCED_S

    def _signal_sruns(self, number: int) -> None:
        for attempt in self._running.values():
            if attempt.ended_s is None:  # else the pid may be somebody else's
                with suppress(ProcessLookupError):
                    os.kill(attempt.pid, number)


def _of_step(said: bytes, step: str) -> bytes:
    """Return what Slurm said, without what it said of another step; of any where it is not known which this one is."""
    lines = said.splitlines(keepends=True)
    named = [_NAMED_STEP.search(line) for line in lines]
    return b"".join(
        line for line, other in zip(lines, named, strict=True) if not (step and other and other[1] != step.encode())
    )

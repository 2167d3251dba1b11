# SPDX-License-Identifier: Apache-2.0
"""The main loop of a pack: starts tasks, handles their ends, the MPS daemon and the stop.

It waits for signals and for the ends of child processes at the same time. The signals are caught and not blocked: a
process that is started in the meantime, a daemon above all, would inherit a blocked one and could not be ended by it.
"""

import os
import select
import signal
from collections import defaultdict, deque
from collections.abc import Collection, Sequence
from functools import cache
from types import FrameType

from slurm_colloc.core import clock
from slurm_colloc.core.errors import InputError, ProcessError, StoreError
from slurm_colloc.core.units import clock_time, counted, spans
from slurm_colloc.gpu.failure import Outcome, gpu_is_gone
from slurm_colloc.pack.attempt import Attempt
from slurm_colloc.pack.mps_clients import Watch, computing, with_gpu_open
from slurm_colloc.pack.run import Run
from slurm_colloc.pack.spec import Task
from slurm_colloc.pack.srun import slots
from slurm_colloc.pack.starts_and_retries import Queue, Start
from slurm_colloc.slurm.job_files import add_words

_TICK_S = 1.0
_SOON_S = 0.1
# Slurm's default KillWait, after which it kills, is 30 s; before that the daemon has to be quit.
_GENTLE_S, _FORCED_S = 10.0, 20.0
_LOST_GRACE_S = 10.0
_LOOK_S = 10.0
_PAST_MPS = (
    "it uses the GPU, but not through the pack's MPS daemon, so that nothing bounds it; something keeps the variables"
    " CUDA_MPS_* or the daemon's folder from it: env -i, sudo, srun --export, a container"
)
# When Slurm starts no steps: its controller may be away for a while, or never start one more. A step that was refused
# is tried again after a second, then after twice as long each time, up to a minute.
_MOST_REFUSALS, _FIRST_WAIT_S, _DOUBLED = 10, 1.0, 6
# Tasks that fail one after the other because their GPU is no longer there.
_GONE_FOR_SURE = 2
# scancel, the time limit, preemption and a terminal that goes away; none is meant to go unanswered.
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
# Signals that a user has sent to his batch script (--signal=B:USR1@60), and means for what runs in it.
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)


def _nothing(_: int, __: FrameType | None) -> None:
    """Stand as a handler: a signal without one does not reach the pipe, or ends the process."""


class Signals:
    """Catches signals from now until the process ends; for the main thread."""

    def __init__(self) -> None:
        """Begin to catch them."""
        self._read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, *STOPPING, *PASSED_ON):
            if signal.getsignal(number) is not signal.SIG_IGN:  # told to ignore it (nohup), this process does
                signal.signal(number, _nothing)

    def wait(self, timeout_s: float) -> set[int]:
        """Return the numbers of what has come since the last time, waiting for the first for ``timeout_s`` at most."""
        if not select.select([self._read], [], [], timeout_s)[0]:
            return set()
        return set(os.read(self._read, 65536))


class Loop:
    """The tasks of one job from the first to the last."""

    def __init__(self, run: Run, tasks: Sequence[Task]) -> None:
        """Make ready to run these tasks."""
        self._run, self._spec, self._job, self._gpu, self._ledger = run, run.spec, run.job, run.gpu, run.ledger
        self._queue = Queue(tasks, run.spec.load, run.spec.room, run.spec.retries)
        self._pending: deque[Start] = deque()
        cores, at_once = run.job.cores, run.spec.room.tasks
        self._cores = slots(cores, at_once, run.spec.cpus_per_task) if cores else [()] * at_once
        self._free = deque(range(at_once))
        self._running: dict[int, Attempt] = {}
        self._tasks = tasks
        self._shared = run.files.shared(tasks)
        if self._shared:
            self._ledger.note(
                f"several tasks write to '{min(self._shared)}': what is said there tells nothing about one of them, and"
                " one that runs out of GPU memory is not run again; put %a into --output and --error for that"
            )
        self._refusals = 0
        self._refused_s = self._again_s = 0.0
        self._gave_up = False
        self._gone_in_a_row = 0
        self.stopped = False
        self._stopped_s = 0.0
        self._forced = False
        self._to_stop: tuple[Attempt, ...] = ()
        self._daemon_died_s: float | None = None
        self._next_look_s = 0.0
        self._outcomes: dict[int, Outcome] = {}
        self._retried = 0
        self._began_s = clock.ticking()

    def run(self, signals: Signals) -> None:
        """Run the tasks until each has ended for good, or the job is stopped."""
        # The start of the daemon takes its time, and may have seen the job stopped.
        self._heed(signals.wait(0))
        if not self.stopped:
            self._begin_what_may()
        while self.stopped or self._running or not (self._gave_up or self._queue.finished):
            held = any(attempt.ended_s is not None for attempt in self._running.values())
            soon = held or self.stopped
            self._heed(signals.wait(_SOON_S if soon else _TICK_S))
            self._look_after_daemon()
            self._collect()
            if not self.stopped:
                self._look_for_clients()
                self._end_what_must()
                self._begin_what_may()
            elif self._stop_is_over():
                return

    @property
    def all_done(self) -> bool:
        """Return whether every task succeeded."""
        return all(self._outcomes.get(task.number) is Outcome.DONE for task in self._tasks)

    def summary(self, done_before: int) -> str:
        """Return how it went, as lines for people; ``done_before`` further tasks had succeeded before."""
        by_outcome: dict[Outcome, list[int]] = defaultdict(list)
        for number, outcome in (self._outcomes | dict.fromkeys(self._running, Outcome.STOPPED)).items():
            by_outcome[outcome].append(number)
        done = len(by_outcome.pop(Outcome.DONE, []))
        went = f"{counted(len(self._tasks), 'task')}: {done} succeeded"
        if done_before:
            went += f" ({done_before} more had done so before)"
        lines = [f"pack of job {self._job.job_id} on {self._job.node}: {went}"]
        lines += [f"  {outcome.value}: {spans(numbers)}" for outcome, numbers in sorted(by_outcome.items())]
        if unbegun := {task.number for task in self._tasks} - self._outcomes.keys() - self._running.keys():
            lines.append(f"  not run: {spans(unbegun)}")
        if self._retried:
            lines.append(f"  {counted(self._retried, 'attempt')} repeated")
        wall_s = clock.ticking() - self._began_s
        per_hour = 3600 * done / wall_s if wall_s else 0.0
        at_once = self._spec.room.tasks
        lines.append(f"  {clock_time(wall_s)}, {per_hour:.4g} tasks per hour, {at_once} at a time at most")
        return "".join(f"{line}\n" for line in lines)

    # --- beginning ---

    def _begin_what_may(self) -> None:
        if not self._gave_up and (reason := self._why_no_more()):
            self._give_up(reason)
        # One that cannot even begin leaves its place to the next.
        while self._daemon_died_s is None and not self._gave_up and clock.ticking() >= self._again_s:
            self._pending += self._queue.ready()
            if not self._pending or len(self._running) >= self._gpu.at_once:
                return
            self._begin(self._pending.popleft())

    def _why_no_more(self) -> str:
        """Return why no more tasks are started, "" if more are; a doubt waits for the tasks that run."""
        if self._gone_in_a_row >= _GONE_FOR_SURE:
            return f"{self._gone_in_a_row} tasks in a row say that the GPU is gone: no more are started on this node"
        together = self._spec.together
        if together and self._gpu.at_once < len(self._tasks):
            return "without an MPS daemon the tasks would run one at a time, and they run together or not at all"
        if self._refusals >= _MOST_REFUSALS and (together or not self._running):
            return f"Slurm refused a step {self._refusals} times in a row: no more tasks are started"
        return ""

    def _give_up(self, reason: str) -> None:
        """Start no more tasks; those that run together with the missing ones end."""
        self._gave_up = True
        self._ledger.note(reason, "stop")
        if self._spec.together:
            self._end([attempt for attempt in self._running.values() if attempt.at_work], Outcome.STOPPED, reason)

    def _begin(self, start: Start) -> None:
        self._ledger.start(start)
        try:
            files, output_at, error_at, srun_output = self._run.files.opened(start.task)
        except (InputError, StoreError) as error:
            outcome = Outcome.FAILED if isinstance(error, InputError) else Outcome.LOST
            self._take_end(start, outcome, 1, str(error), "")
            return
        slot = self._free.popleft()
        try:
            pid = self._run.spawn(start, files, self._cores[slot], srun_output)
        except ProcessError as error:
            self._free.append(slot)
            self._take_refusal(start, clock.ticking(), 1, str(error))
            return
        attempt = Attempt(
            files=files,
            pid=pid,
            srun_output=srun_output,
            began_s=clock.ticking(),
            start=start,
            slot=slot,
            output_at=output_at,
            error_at=error_at,
            watch=Watch() if self._gpu.at_once > 1 and not start.alone else None,
        )
        self._running[attempt.number] = attempt

    # --- ends ---

    def _collect(self) -> None:
        now_s = clock.ticking()
        for attempt in self._running.values():
            attempt.reap(now_s)
        ended = [attempt for attempt in self._running.values() if attempt.ended_s is not None]
        if not self.stopped:  # else they may be saving what they have, though their srun has ended already
            ended = [attempt for attempt in ended if not attempt.in_doubt(now_s)]
            # Slurm does so after a batch script; some sites' proctrack leaves processes behind.
            self._run.kill(ended)
        for attempt in ended:
            del self._running[attempt.number]
            self._free.append(attempt.slot)
            srun_said = attempt.srun_said()
            step = attempt.close(self._job.job_id)
            if srun_said:  # for people, as with an array
                add_words(attempt.files.error, srun_said)
            if step:
                self._refusals = 0
            elif not self.stopped and not attempt.lost and attempt.refused:
                lines = srun_said.decode(errors="replace").strip().splitlines() or ["srun said nothing"]
                self._take_refusal(attempt.start, attempt.began_s, attempt.status, lines[-1])
                continue
            outcome, message = (Outcome.STOPPED, "") if self.stopped else attempt.judged(step, srun_said, self._shared)
            self._gone_in_a_row = self._gone_in_a_row + 1 if gpu_is_gone(message) else 0
            self._take_end(attempt.start, outcome, attempt.status, message, step)

    def _take_refusal(self, start: Start, began_s: float, status: int, message: str) -> None:
        """Take that Slurm did not start a step: the same attempt is made again later, and counts once."""
        self._ledger.end(start, Outcome.LOST, status, f"the step did not start: {message}", "")
        self._pending.append(start)
        if began_s < self._refused_s:  # told with one of those that began beside it
            return
        wait_s = _FIRST_WAIT_S * 2.0 ** min(self._refusals, _DOUBLED)
        self._refusals += 1
        self._refused_s = clock.ticking()
        self._again_s = self._refused_s + wait_s
        self._ledger.note(f"Slurm does not start a step, which is tried again in {wait_s:.0f} s: {message}")

    def _take_end(self, start: Start, outcome: Outcome, status: int, message: str, step: str) -> None:
        number = start.task.number
        self._ledger.end(start, outcome, status, message, step)
        if self._queue.ended(number, outcome) and not self.stopped:
            self._retried += 1
            self._ledger.note(f"task {number} is run again, attempt {start.attempt + 1}: {outcome.value}")
        else:
            self._outcomes[number] = outcome
            if self._spec.together and outcome is not Outcome.DONE and not (self.stopped or self._gave_up):
                self._give_up(f"task {number} has not succeeded ({outcome.value}), and the tasks run together")

    # --- the daemon and its clients ---

    def _look_after_daemon(self) -> None:
        """Let what ran under a daemon that died come to its end, then begin anew."""
        if not self._gpu.dead:
            return
        now_s = clock.ticking()
        if self._daemon_died_s is None:
            self._daemon_died_s = now_s
            self._ledger.note("the MPS daemon died; the tasks that ran under it are ended and run again")
            for attempt in self._running.values():
                attempt.lost = True
        elif now_s - self._daemon_died_s > _LOST_GRACE_S:
            self._signal_sruns(signal.SIGTERM)
        if not self._running and not self.stopped:
            self._gpu.renew()
            self._daemon_died_s = None

    def _look_for_clients(self) -> None:
        """Find the tasks that do not use the GPU through the daemon: they may take all of it, and say nothing."""
        now_s = clock.ticking()
        watched = [
            (attempt, attempt.watch)
            for attempt in self._running.values()
            if attempt.watch is not None and attempt.at_work
        ]
        if now_s < self._next_look_s or not watched or self._daemon_died_s is not None:
            return
        self._next_look_s = now_s + _LOOK_S
        families = self._run.families([attempt for attempt, _ in watched])
        on_gpu = {number: with_gpu_open(family) for number, family in families.items()}
        clients = self._gpu.clients()
        computing_once = cache(computing)
        past_mps = []
        for attempt, watch in watched:
            number = attempt.number
            if watch.look(families[number], on_gpu[number], clients, computing_once):
                past_mps.append(attempt)
        self._end(past_mps, Outcome.NOT_SHARING, _PAST_MPS)

    # --- ending a task ---

    def _end_what_must(self) -> None:
        """End tasks whose time is over, before Slurm does, and press those that were asked to end and have not."""
        now_s = clock.ticking()
        running = [attempt for attempt in self._running.values() if attempt.ended_s is None]
        pressed = [
            attempt
            for attempt in running
            if attempt.ended_for and not attempt.pressed and now_s - attempt.ending_s > _GENTLE_S
        ]
        for attempt in pressed:
            attempt.pressed = True
            if attempt.ended_for and not attempt.was_asked:
                self._ledger.note(f"task {attempt.number} is ended: {attempt.ended_for[1]}")
        self._run.kill(pressed)
        for attempt in pressed:
            attempt.signal_srun(signal.SIGTERM)
        limit_min = self._spec.time_limit_min
        for attempt in running:
            if limit_min is not None and not attempt.ended_for and now_s - attempt.began_s >= 60 * limit_min:
                self._end([attempt], Outcome.TIME_LIMIT, f"its time limit of {limit_min:g} minutes is over")

    def _end(self, attempts: Collection[Attempt], outcome: Outcome, message: str) -> None:
        """Ask tasks to end; until they are pressed, they have the GPU to save what they have."""
        have_processes = self._run.signal(attempts, signal.SIGTERM)
        for attempt in attempts:
            attempt.ended_for, attempt.ending_s = (outcome, message), clock.ticking()
            # One without processes may have ended well already, and its srun not yet.
            attempt.was_asked = attempt.number in have_processes
            if attempt.was_asked:
                self._ledger.note(f"task {attempt.number} is ended: {message}")

    # --- being stopped ---

    def _heed(self, came: set[int]) -> None:
        for number in came & set(PASSED_ON):
            self._signal_sruns(number)
        if self.stopped or not came & set(STOPPING):
            return
        self.stopped, self._stopped_s = True, clock.ticking()
        # First of all: there may be little time.
        names = ", ".join(signal.Signals(number).name for number in sorted(came & set(STOPPING)))
        self._ledger.note(f"stopped by {names}: no more tasks are started", "stop")
        # The tasks themselves, that they may save what they have; srun would have them killed.
        self._to_stop = tuple(self._running.values())
        self._run.signal(self._to_stop, signal.SIGTERM)

    def _stop_is_over(self) -> bool:
        waited_s = clock.ticking() - self._stopped_s
        processes = self._run.processes(self._to_stop)
        if processes and waited_s > _GENTLE_S and not self._forced:
            self._forced = True
            self._gpu.terminate(processes)
            self._signal_sruns(signal.SIGTERM)
        # Processes that are still there then are the job's, and Slurm ends them with it.
        return not (processes or self._running) or waited_s > _FORCED_S

    def _signal_sruns(self, number: int) -> None:
        for attempt in self._running.values():
            attempt.signal_srun(number)

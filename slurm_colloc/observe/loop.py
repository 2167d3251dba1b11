# SPDX-License-Identifier: Apache-2.0
"""Sampling until told to stop: the one loop of the agent on a node and of the sampler inside a job."""

import math
import os
import select
import signal
from collections.abc import Callable, Iterator, Sequence

from slurm_colloc.core import clock
from slurm_colloc.core.errors import CollocError, DeadlineError, GpuError
from slurm_colloc.core.usage_model import NodeSample
from slurm_colloc.observe.sampler import Sampler

Sink = Callable[[NodeSample], object]
# A driver that takes longer than this does not come back by itself: its calls cannot be interrupted.
HUNG_S = 60.0
_ALIVE_S = 30.0


class Pace:
    """The times at which to sample; a signal to end, or the end of a watched process, is answered at once.

    The first readings come densely where ``dense`` asks for it, so that a short job is seen too.
    """

    def __init__(
        self,
        period_s: float,
        *,
        watch_pid: int = 0,
        count: int = 0,
        dense: bool = False,
        alive: Callable[[], object] = lambda: None,
    ) -> None:
        """Set the pace.

        Args:
            period_s: seconds from one reading to the next.
            watch_pid: end with this process; 0: with none.
            count: end after so many readings; 0: go on.
            dense: begin with a reading each second, and double that up to the period.
            alive: called after each reading and at least every 30 s, for whoever watches this process.
        """
        self._period_s = period_s
        self._count = count
        self._alive = alive
        self._step_s = min(1.0, period_s) if dense else period_s
        self._waiting = select.poll()
        self._stop_read, self._stop_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._waiting.register(self._stop_read, select.POLLIN)
        self.ended = False
        if watch_pid:
            try:
                self._waiting.register(os.pidfd_open(watch_pid), select.POLLIN)
            except ProcessLookupError:
                self.ended = True

    def stop(self, *_: object) -> None:
        """End the sampling; fit to be a signal's handler."""
        try:
            os.write(self._stop_write, b".")
        except BlockingIOError:  # told so many times already that the pipe is full
            return

    def stop_on_signals(self) -> None:
        """End the sampling on SIGTERM and SIGINT."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.stop)

    def __iter__(self) -> Iterator[tuple[float, float]]:
        """Yield (UTC epoch seconds, seconds of a clock that nobody sets), the last time when told to stop."""
        due_s, count = clock.ticking(), 0
        while not self.ended:
            yield clock.now(), clock.ticking()
            count += 1
            if count == self._count:
                return
            # The next is due from when this one was due, not from when it was done: else a pass each 10.02 s.
            due_s = max(due_s + self._step_s, clock.ticking())
            self._step_s = min(self._period_s, self._step_s * 2)
            self.ended = self._told_to_end_before(due_s)
            if self.ended:
                yield clock.now(), clock.ticking()

    def _told_to_end_before(self, due_s: float) -> bool:
        while True:
            self._alive()
            left_s = due_s - clock.ticking()
            if self._waiting.poll(min(max(0.0, left_s), _ALIVE_S) * 1000):
                return True
            if left_s <= _ALIVE_S:
                return False


def follow(
    sampler: Sampler,
    pace: Pace,
    sinks: Sequence[Sink],
    say: Callable[[str], None],
    *,
    patience_s: float = math.inf,
) -> int:
    """Sample at ``pace`` and hand each NodeSample to every sink; return how many NodeSamples all sinks took.

    A driver reload or a full disk passes, and the gap shows as coverage: each trouble is said once, with its end.

    Raises:
        DeadlineError: the driver hangs. The pass cannot be ended, so that the process has to be.
        GpuError: the driver has not answered for ``patience_s``.
    """
    complained, taken_by_all = "", 0
    answered_s = clock.ticking()
    for at_s, ticking_s in pace:
        try:
            sample = clock.with_timeout(
                HUNG_S,
                f"reading the GPUs (bound {HUNG_S:g} s)",
                lambda: sampler.sample(at_s, ticking_s),  # noqa: B023
            )
        except CollocError as error:
            if isinstance(error, DeadlineError):
                raise
            if ticking_s - answered_s >= patience_s:
                raise GpuError(f"no answer for {patience_s:g} s: {error}") from error
            troubles = [str(error)]
        else:
            answered_s = ticking_s
            troubles = [trouble for sink in sinks if (trouble := _into(sink, sample))]
            taken_by_all += not troubles
            troubles += [sampler.complaint] if sampler.complaint else []
        now_said = "; ".join(troubles)
        if now_said != complained:
            say(now_said or "sampling again")
            complained = now_said
    return taken_by_all


def _into(sink: Sink, sample: NodeSample) -> str:
    try:
        sink(sample)
    except CollocError as error:
        return str(error)
    return ""

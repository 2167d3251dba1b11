# SPDX-License-Identifier: Apache-2.0
"""Waits for signals and for the ends of child processes at the same time.

The signals are caught and not blocked: what is started in the meantime, a daemon above all, would inherit a blocked
one and could not be ended by it.
"""

import os
import select
import signal
from types import FrameType

# scancel, the time limit, preemption and a terminal that goes away; none is meant to go unanswered.
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
# What a user has sent to his batch script (--signal=B:USR1@60), and means for what runs in it.
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)


def _nothing(_: int, __: FrameType | None) -> None:
    """Stand as a handler: a signal without one does not reach the pipe, or ends the process."""


class Signals:
    """Catches signals from now until the process ends; for the main thread."""

    def __init__(self) -> None:
        """Begin to catch them."""
        self._read, write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        for one in (signal.SIGCHLD, *STOPPING, *PASSED_ON):
            if signal.getsignal(one) is not signal.SIG_IGN:  # told to ignore it (nohup), this process does
                signal.signal(one, _nothing)

    def wait(self, timeout_s: float) -> set[int]:
        """Return the numbers of what has come since the last time, waiting for the first for ``timeout_s`` at most."""
        if not select.select([self._read], [], [], timeout_s)[0]:
            return set()
        return set(os.read(self._read, 65536))

# SPDX-License-Identifier: Apache-2.0
"""The only now(), so that a test can hold the clock still by replacing one name, and the only bound on a step."""

import _thread
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from slurm_colloc.core.errors import DeadlineError, ProcessError

_Result = TypeVar("_Result")


def now() -> float:
    """Return the time in UTC epoch seconds."""
    return time.time()


def ticking() -> float:
    """Return seconds by a clock that nobody sets; only differences mean something."""
    return time.monotonic()


def pause(duration_s: float) -> None:
    """Do nothing for a while."""
    time.sleep(duration_s)


def tries(most: int, every_s: float) -> Iterator[None]:
    """Yield so many times, at once and then each time after a pause: until whoever asks has an answer."""
    for number in range(most):
        if number:
            pause(every_s)
        yield


def with_timeout(timeout_s: float, what: str, step: Callable[[], _Result]) -> _Result:
    """Return what ``step`` returns, or raise what it raises, if it does so in time.

    A step that hangs in a file system cannot be ended, not even by a signal. It goes on in a thread of its own, which
    ends with the process, at exec or os._exit.

    Raises:
        DeadlineError: the time is over.
        ProcessError: a limit leaves no room for a thread.
    """
    done = _thread.allocate_lock()
    done.acquire()
    outcome: list[tuple[_Result | None, BaseException | None]] = []

    def work() -> None:
        try:
            outcome.append((step(), None))
        except BaseException as error:  # noqa: BLE001 - raised again below, in the thread that asked
            outcome.append((None, error))
        finally:
            done.release()

    try:
        _thread.start_new_thread(work, ())
    except RuntimeError as problem:
        raise ProcessError(f"{what}: {problem}") from problem
    if not done.acquire(timeout=max(timeout_s, 0)):
        raise DeadlineError(f"{what} took too long")
    result, error = outcome[0]
    if error is not None:
        raise error
    return result  # type: ignore[return-value]

# SPDX-License-Identifier: Apache-2.0
"""The time window of a report, and its progress."""

from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

from slurm_colloc.core.clock import now

# Is told how many pieces of the work are done, of how many.
Step = Callable[[int, int], None]


def ignore(done: int, of: int) -> None:
    """Tell nobody."""


class Window(NamedTuple):
    """[since, until), seen from ``now``: runs that still go on have run until then."""

    since_s: float
    until_s: float
    now_s: float

    @property
    def parameters(self) -> dict[str, float]:
        """Return what queries call it."""
        return {"since": self.since_s, "until": self.until_s, "now": self.now_s}


def window_of(since: datetime, until: datetime) -> Window:
    """Return [since, until) as it is seen now."""
    return Window(since.timestamp(), until.timestamp(), now())

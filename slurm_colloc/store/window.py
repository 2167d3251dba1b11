# SPDX-License-Identifier: Apache-2.0
"""The time window of a report, and its progress."""

from collections.abc import Callable
from typing import NamedTuple

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

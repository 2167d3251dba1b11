# SPDX-License-Identifier: Apache-2.0
"""Wait for what other processes do."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_for(condition: Callable[[], object], what: str = "it did not come to pass", limit_s: float = 60.0) -> None:
    """Wait until a condition holds; fail with ``what`` where it does not in time."""
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until, what
        time.sleep(0.05)

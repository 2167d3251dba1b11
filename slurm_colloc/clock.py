# SPDX-License-Identifier: Apache-2.0
"""The only now(): UTC seconds since the epoch, so that a test can hold the clock still by replacing one name."""

import time


def now() -> float:
    """Return the time in UTC epoch seconds."""
    return time.time()

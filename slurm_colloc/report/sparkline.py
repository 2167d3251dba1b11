# SPDX-License-Identifier: Apache-2.0
"""A row of signs for values over time; a gap is a gap, and what is 0 looks unlike what is little."""

from collections.abc import Sequence
from math import ceil

# From 0 on; the first is for 0 alone.
BLOCKS, ASCII = "▁▂▃▄▅▆▇█", "_.-=+*#@"
_GAP = " "


def sparkline(values: Sequence[float | None], top: float, signs: str = BLOCKS) -> str:
    """Return one sign for each value between 0 and ``top``, blank where there is none."""
    last = len(signs) - 1
    return "".join(
        _GAP if value is None else signs[0 if value <= 0 or top <= 0 else max(1, min(last, ceil(last * value / top)))]
        for value in values
    )

# SPDX-License-Identifier: Apache-2.0
"""The value of --array: the numbers that it names."""

import re
from collections.abc import Mapping

from slurm_colloc.core.errors import InputError
from slurm_colloc.core.units import spans, whole

MOST_TASKS = 100_000
_PART = r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?"
_VARIABLES = ("MIN", "MAX", "STEP", "COUNT")


def parse_array(text: str) -> tuple[int, ...]:
    """Return the numbers that --array names, "0-15:4,20", in rising order; each once.

    Raises:
        InputError: outside sbatch's grammar, or more than MOST_TASKS, those that are there twice counted twice.
    """
    numbers: set[int] = set()
    listed = 0
    for part in text.split(","):
        match = re.fullmatch(_PART, part)
        if match is None:
            raise InputError(f"--array='{text}' is not of the form 0-15:4,20")
        low, high, stride = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if high < low or stride < 1:
            raise InputError(f"--array='{text}' names a range that is empty")
        span = range(low, high + 1, stride)
        listed += len(span)
        if listed > MOST_TASKS:
            raise InputError(f"--array='{text}' lists more than {MOST_TASKS} tasks")
        numbers.update(span)
    return tuple(sorted(numbers))


def array_written(text: str) -> str:
    """Return the numbers that --array names, without how many may run at once, and always written the same way.

    A text outside sbatch's grammar stays as it is.
    """
    numbers = text.partition("%")[0]
    try:
        return spans(parse_array(numbers)) if numbers else ""
    except InputError:
        return numbers


def array_of_task(environ: Mapping[str, str]) -> str:
    """Return what ``array_written`` does of the array that a task of it runs in; empty of none.

    Slurm tells a task its array's first, last and step: an array of several ranges can only be told apart as such.
    """
    low, high, step, count = (whole(environ.get(f"SLURM_ARRAY_TASK_{name}", "")) for name in _VARIABLES)
    if low is None or high is None:
        return ""
    numbers = range(low, min(high, low + MOST_TASKS * 2) + 1, step or 1)
    return spans(numbers) if len(numbers) == count else f"{low}-{high} in part"

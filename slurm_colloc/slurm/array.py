# SPDX-License-Identifier: Apache-2.0
"""The value of --array: the numbers that it names."""

from collections.abc import Mapping

from slurm_colloc.core.errors import InputError
from slurm_colloc.core.units import spans, whole

MOST_TASKS = 100_000
_TOLD = ("MIN", "MAX", "STEP", "COUNT")


def parse_array(text: str) -> tuple[int, ...]:
    """Return the numbers that --array names, "0-15:4,20", in rising order; each once.

    Raises:
        InputError: outside sbatch's grammar, or more than MOST_TASKS, those that are there twice counted twice.
    """
    numbers: set[int] = set()
    listed = 0
    for part in text.split(","):
        span, _, step = part.partition(":")
        first, dash, last = span.partition("-")
        words = [first, *([last] if dash else []), *([step] if _ else [])]
        if not all(word.isascii() and word.isdigit() and len(word) < 10 for word in words) or (_ and not dash):
            raise InputError(f"--array='{text}' is not of the form 0-15:4,20")
        low, high, stride = int(first), int(last) if dash else int(first), int(step) if _ else 1
        if high < low or stride < 1:
            raise InputError(f"--array='{text}' names a range that is empty")
        listed += len(range(low, high + 1, stride))
        if listed > MOST_TASKS:
            raise InputError(f"--array='{text}' lists more than {MOST_TASKS} tasks")
        numbers.update(range(low, high + 1, stride))
    return tuple(sorted(numbers))


def array_written(text: str) -> str:
    """Return the numbers that --array names, without how many may run at once, and always written the same way.

    What is outside sbatch's grammar stays as it is.
    """
    numbers = text.partition("%")[0]
    try:
        return spans(parse_array(numbers)) if numbers else ""
    except InputError:
        return numbers


def array_of_task(environ: Mapping[str, str]) -> str:
    """Return what ``array_written`` does of the array that a task of it runs in; empty of none.

    Slurm tells a task first, last and step: of other arrays than one range it is only known that they are such.
    """
    first, last, step, count = (whole(environ.get(f"SLURM_ARRAY_TASK_{name}", "")) for name in _TOLD)
    if first is None or last is None:
        return ""
    numbers = range(first, min(last, first + MOST_TASKS * 2) + 1, step or 1)
    return spans(numbers) if len(numbers) == count else f"{first}-{last} in part"

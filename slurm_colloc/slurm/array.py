# SPDX-License-Identifier: Apache-2.0
"""The value of --array: the numbers that it names."""

from slurm_colloc.core.errors import InputError

MOST_TASKS = 100_000


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

# SPDX-License-Identifier: Apache-2.0
"""The value of --array: the numbers that it names, and numbers as such a value."""

from collections.abc import Iterator, Sequence

from slurm_colloc.errors import InputError

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


def ranges(numbers: Sequence[int]) -> str:
    """Return rising numbers as a value of --array: "1-3,7,10-20:5"."""
    spans: list[list[int]] = []
    for number in numbers:
        # One number waits for the next to show the step; two of a larger step may be none.
        if spans and (len(spans[-1]) == 1 or number - spans[-1][-1] == spans[-1][1] - spans[-1][0]):
            spans[-1].append(number)
        elif spans and len(spans[-1]) == 2 and spans[-1][1] - spans[-1][0] > 1:
            spans.append([spans[-1].pop(), number])
        else:
            spans.append([number])
    return ",".join(word for span in spans for word in _words(span))


def _words(span: Sequence[int]) -> Iterator[str]:
    step = span[1] - span[0] if len(span) > 1 else 1
    if len(span) == 1 or (len(span) == 2 and step > 1):
        yield from map(str, span)
    else:
        yield f"{span[0]}-{span[-1]}" + (f":{step}" if step > 1 else "")

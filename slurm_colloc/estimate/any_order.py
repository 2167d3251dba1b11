# SPDX-License-Identifier: Apache-2.0
"""The words of a submission without what starts its programs, and in one order where the order says nothing.

Two submissions of one script that differ in no more than that are the same job. What a job is known by stays as it is:
only against the last submission is it asked.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby

# Before a command, of one task (several are told apart otherwise); "-u train.py" was taken for an option's value.
_STARTS = re.compile(r"(?:srun|time|exec|nohup|/usr/bin/time|PYTHONUNBUFFERED=\S*)\s+(?=[^\s-])")
_PYTHON = re.compile(r"python(?:3(?:\.\d+)?)?\s+(?:-u[= ])?")
_SHOWN_TOO = re.compile(r"(?: 2>&1)? \| tee (?:-a[ =])?[\w./~-]+\.(?:log|out|txt)$")
_SETS_UP = re.compile(
    r"(?:module|ml) (?:load|add) [\w./+ -]+$|(?:source|\.|conda|mamba) [\w./~${}-]*activate(?: [\w./~-]+)?$"
)
# Read by libraries for their threads and their output.
_THREADS = re.compile(
    r"(?:export )?(?:OMP_NUM_THREADS|MKL_NUM_THREADS|OPENBLAS_NUM_THREADS|TOKENIZERS_PARALLELISM)=[\w#*]+$"
)
_NOT_PLAIN = re.compile(r"[\"'`|;&<>(){}\\]| -- ")
_OPTION = re.compile(r"--?[A-Za-z]")


def in_one_order(words: Sequence[str]) -> list[str]:
    """Return what two submissions have in common that are the same but for the order and the start of commands."""
    lines = [line for word in words for line in map(_command, word.split("\n"))]
    found: list[str] = []
    for is_free, some in groupby(lines, _is_free):
        group = list(some)
        found += sorted(group) if is_free else group
    return found


def _is_free(line: str) -> bool:
    return bool(_SETS_UP.match(line) or _THREADS.match(line))


def _command(line: str) -> str:
    bare = _SHOWN_TOO.sub("", line)
    while found := _STARTS.match(bare):
        bare = bare[found.end() :]
    bare = _PYTHON.sub("python ", bare, count=1) if bare.startswith("python") else bare
    return bare if _NOT_PLAIN.search(bare) else " ".join(_sorted_options(bare.split(" ")))


def _sorted_options(tokens: Sequence[str]) -> Iterator[str]:
    """Yield words with the options between two others in one order, unless one is given twice: then the last counts."""
    names = Counter(token.partition("=")[0] for token in tokens if _OPTION.match(token))
    is_once = not any(count > 1 for count in names.values())
    for is_option, some in groupby(tokens, lambda token: bool(_OPTION.match(token))):
        group = list(some)
        yield from sorted(group) if is_option and is_once else group


def values_by_name(names: Sequence[str], values: Sequence[str], wanted: Sequence[str]) -> list[str] | None:
    """Return the values in the order of other names; None where a name stands twice, or the names are others."""
    found = dict(zip(names, values, strict=False))
    if not len(found) == len(names) == len(values) == len(wanted) or set(wanted) != set(found):
        return None
    return [found[name] for name in wanted]

# SPDX-License-Identifier: Apache-2.0
"""The words of a submission without what starts its programs, and in one order where the order says nothing.

Two submissions of one script that differ in no more than that are the same job. A job's signature stays as it is: this
is asked against the last submission only.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise

# It stands before a command and starts one task: each of several would be one more of the job. "-u train.py" was taken
# for an option's value.
_SRUN = re.compile(r"srun(?: (?:-u|--unbuffered)[ =]| --cpu-bind=\w+ | )(?=[^\s-])")
_TASKS = re.compile(r"\d+ tasks")
_SHOWN_TOO = re.compile(
    r"(?: [12&]?>>? ?[\w./~${}*@-]+\.(?:log|out|err|txt))*(?: 2>&1)?(?: \| tee (?:-a[ =])?[\w./~-]+\.(?:log|out|txt))?$"
)
# Options without which a program needs as much: seeds, places of results, and how much it says.
_SAYS_NOTHING = re.compile(
    r"--?[\w.-]+=\*|-v+|--(?:verbose|quiet|silent|(?:no-?)?progress(?:-?bar)?|debug-log)|hydra\.verbose=\w+"
)
_LOADS = re.compile(r"(?:module (?:load|add)|ml(?: load| add)?) ([\w./+ -]+)$")
# These modules are known to bring nothing of another; the last of two that bring a Python counts.
_SETS_UP = re.compile(
    r"module load (?:cuda|cudnn|nccl|gcc|openmpi|cmake|git|python)\b[\w.-]*(?:/[\w./-]+)?$"
    r"|(?:source|\.|conda|mamba) [\w./~${}-]*activate(?: [\w./~-]+)?$|eval [\"']?\$\(conda shell\.\w+ hook\)[\"']?$"
)
# Read by libraries for their threads and their output.
_THREADS = re.compile(
    r"(?:export )?(?:OMP_NUM_THREADS|MKL_NUM_THREADS|OPENBLAS_NUM_THREADS|TOKENIZERS_PARALLELISM)=[\w#*]+$"
)
_NOT_PLAIN = re.compile(r"[\"'`|;&<>(){}\\]| -- ")
# The same shell by its place or as it is found, and how a script ends that did nothing until then.
_NO_MATTER = (
    r"(?m)\A#!/(?:usr/)?bin/(?:env )?(?=(?:ba)?sh$)"
    r"| \|\| (?:exit(?: [1-9]\d*)?|\{ (?:echo [^;|]*; )?exit [1-9]\d*; \})$"
)
_ENDS = r"(?<![;\\]) ?;(?!;) ?"
_OPTION = re.compile(r"--?[A-Za-z]")
# The order of these programs' options is known to say nothing, but for files of settings: the last that sets counts.
_IN_ANY_ORDER = re.compile(r"(?:python|torchrun|accelerate|deepspeed) ")
_SETTINGS = re.compile(r"(?i)conf|experiment|cfg|preset|recipe|override|args|params|set\b|include|yaml|json")


def in_one_order(words: Sequence[str]) -> list[list[str]]:
    """Return what two submissions have in common that are the same but for the order and the start of commands."""
    is_one_task = not any(map(_TASKS.fullmatch, words[:3]))
    return [_of_word(word, is_one_task) for word in words]


def _of_word(word: str, is_one_task: bool) -> list[str]:
    if "<<" in word:  # a program reads it there, and it is no command
        return [word]
    # Each command stands on a line then, and its script goes on.
    word = re.sub(r"(?m)^[^\"'\n]+$", lambda line: re.sub(_ENDS, "\n", line[0]), re.sub(_NO_MATTER, "", word))
    word = re.sub(r"(?m)^(then|else|do) ", r"\1\n", word)
    before, _, last = word.rpartition("\n")
    # A command behind exec would not run.
    text = "\n".join([*([before] if before else []), last.removeprefix("exec ")])
    lines = [part for line in text.split("\n") for part in _loaded(line)]
    lines_found: list[str] = []
    for is_free, some in groupby((_command(line, is_one_task) for line in lines), _is_free):
        group = list(some)
        lines_found += sorted(group) if is_free and _is_each_once(map(_set_up, group)) else group
    return lines_found


def _loaded(line: str) -> list[str]:
    match = _LOADS.fullmatch(line)
    return [f"module load {one}" for one in match[1].split()] if match else [line]


def _is_free(line: str) -> bool:
    return bool(_SETS_UP.match(line) or _THREADS.match(line))


def _set_up(line: str) -> str:
    """Return what a line sets up, of which the last counts."""
    return "python" if "activate" in line else re.split(r"[=/]|-?\d", line.split(" ")[-1])[0]


def _command(line: str, is_one_task: bool) -> str:
    bare = _SHOWN_TOO.sub("", line)
    if is_one_task and (match := _SRUN.match(bare)):
        bare = bare[match.end() :]
    is_sorted = _IN_ANY_ORDER.match(bare) and not _NOT_PLAIN.search(bare)
    return (
        " ".join(_sorted_options([token for token in bare.split(" ") if not _SAYS_NOTHING.fullmatch(token)]))
        if is_sorted
        else bare
    )


def _sorted_options(tokens: Sequence[str]) -> Iterator[str]:
    """Yield words with options and settings in one order, unless one may speak of another: the last counts.

    A word that may have the next one as its value stays before it.
    """
    names = [_name(token) for token in tokens if _OPTION.match(token) or "=" in token]
    is_apart = _is_each_once(names) and not any(map(_SETTINGS.search, names))
    follows = zip(tokens, (*tokens[1:], "-e"), strict=True)
    pairs = [(_is_valued(one) or bool(_OPTION.match(one) and _OPTION.match(after)), one) for one, after in follows]
    groups = [(is_valued, [one for _, one in some]) for is_valued, some in groupby(pairs, lambda pair: pair[0])]
    for number, (is_valued, group) in enumerate(groups, 1):
        # The words behind the last of a row may be more of its values.
        most = len(group) if number == len(groups) else len(group) - 1
        yield from [*sorted(group[:most]), *group[most:]] if is_valued and is_apart else group


def _is_valued(token: str) -> bool:
    return "=" in token and (bool(_OPTION.match(token)) or token[0].isalpha())


def _name(token: str) -> str:
    return re.sub(r"^-+(?:no[-_]?)?", "", token.partition("=")[0].lower())


def _is_each_once(names: Iterable[str]) -> bool:
    """Return whether no name is another's beginning: -b is --batch, and --model.width is part of --model."""
    ordered = sorted(names)
    return not any(after.startswith(before) for before, after in pairwise(ordered))

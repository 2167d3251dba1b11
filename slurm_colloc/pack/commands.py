# SPDX-License-Identifier: Apache-2.0
"""The tasks of ``csub pack``: the lines of a file, or one command for each combination of values."""

import itertools
import math
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence

from slurm_colloc.errors import InputError
from slurm_colloc.slurm.array import MOST_TASKS

# Not the shell's own "${NAME}".
_PLACEHOLDER = re.compile(r"(?<!\$)\{([A-Za-z_]\w*)\}", re.ASCII)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_RANGE = re.compile(r"(-?\d{1,9})\.\.(-?\d{1,9})", re.ASCII)
_FILE_LIMIT_BYTES = 64 * 1024 * 1024
_NAME_LIMIT_BYTES = 255
# Linux takes no longer argument (MAX_ARG_STRLEN), and a NUL byte ends it; sh gets each command as one.
_COMMAND_LIMIT_BYTES = 32 * 4096 - 1


def plain_name(name: str) -> str:
    """Return what a pack's job and script are called: the last part of ``name``, "pack" where it names no file."""
    last = name.rpartition("/")[2]
    return last if last not in ("", ".", "..") and len(os.fsencode(last)) <= _NAME_LIMIT_BYTES else "pack"


def read_commands(text: bytes) -> tuple[bytes, tuple[str, ...]]:
    """Return the script that stands for a file of commands, and the commands: one in each line.

    Raises:
        InputError: no commands, too many, or a line that goes on in the next.
    """
    if b"\0" in text:
        raise InputError("the file holds NUL bytes, so it is no text")
    if b"\r\n" in text:
        raise InputError("the file has DOS line ends; dos2unix converts it")
    directives: list[bytes] = []
    commands: list[bytes] = []
    for number, line in enumerate(text.split(b"\n"), 1):
        bare = line.strip()
        if bare and not bare.startswith(b"#"):
            if bare.endswith(b"\\"):
                raise InputError(f"line {number} ends with a backslash, but each line is a task of its own")
            commands.append(bare)
        elif not commands and line.startswith((b"#SBATCH", b"#CSUB")):
            directives.append(line)
    if not commands:
        raise InputError("the file holds no commands")
    _check_count(len(commands))
    _check_sizes(commands)
    return script_of(directives, commands), tuple(line.decode(errors="surrogateescape") for line in commands)


def script_of(directives: Iterable[bytes], commands: Iterable[bytes]) -> bytes:
    """Return the script that stands for commands: by its text their pack is told from others, a resumed one too."""
    return b"".join(line + b"\n" for line in (b"#!/bin/sh", *directives, *commands))


def expand(words: Sequence[str]) -> tuple[bytes, tuple[str, ...]]:
    """Return the script that stands for ``cmd args... [::: name=v1,v2 ...]``, and the product of all its values.

    Raises:
        InputError: a placeholder without values, values without a placeholder, or too many tasks.
    """
    end = words.index(":::") if ":::" in words else len(words)
    command, lists = words[:end], [word for word in words[end:] if word != ":::"]
    if not command:
        raise InputError("there is no command before ':::'")
    values: dict[str, list[str]] = {}
    for word in lists:
        name, equals, text = word.partition("=")
        if not equals or not _NAME.fullmatch(name) or name in values:
            raise InputError(f"'{word}' behind ':::' is not of the form name=v1,v2, each name once")
        values[name] = list(_values(name, text))
    used = {name for word in command for name in _PLACEHOLDER.findall(word)}
    if unknown := sorted(used - set(values)):
        raise InputError(f"no values are given for '{{{unknown[0]}}}'; write them as ::: {unknown[0]}=v1,v2")
    if unused := sorted(set(values) - used):
        raise InputError(f"'{{{unused[0]}}}' stands nowhere in the command, but values are given for it")
    _check_count(math.prod(map(len, values.values())))
    commands = []
    # Alternately text and placeholder.
    pieces = [_PLACEHOLDER.split(word) for word in command]
    for chosen in itertools.product(*values.values()):
        by_name = dict(zip(values, chosen, strict=True))
        words_now = ((by_name[one] if at % 2 else one for at, one in enumerate(word)) for word in pieces)
        commands.append(shlex.join(map("".join, words_now)))
    if any("\n" in line for line in commands):
        raise InputError("a word of the command holds a newline; put it into a script")
    _check_sizes(line.encode(errors="surrogateescape") for line in commands)
    return script_of((), [shlex.join(command).encode(errors="surrogateescape")]), tuple(commands)


def _values(name: str, text: str) -> Iterator[str]:
    if text.startswith("@"):
        lines = read_file(text[1:]).decode(errors="surrogateescape").split("\n")
        found = [line.strip() for line in lines if line.strip()]
        if not found:
            raise InputError(f"file '{text[1:]}' with the values of '{name}' is empty")
        yield from found
        return
    for part in text.split(","):
        span = _RANGE.fullmatch(part)
        if not part:
            raise InputError(f"a value of '{name}' is empty in '{name}={text}'")
        if span is None:
            yield part
            continue
        low, high = int(span[1]), int(span[2])
        _check_count(abs(high - low) + 1)
        yield from map(str, range(low, high + 1) if high >= low else range(low, high - 1, -1))


def _check_count(count: int) -> None:
    if count > MOST_TASKS:
        raise InputError(f"these are {count} tasks, and a pack takes {MOST_TASKS} at most")


def _check_sizes(commands: Iterable[bytes]) -> None:
    for number, command in enumerate(commands, 1):
        if b"\0" in command:
            raise InputError(f"the command of task {number} holds a NUL byte, which no program can be given")
        if len(command) > _COMMAND_LIMIT_BYTES:
            size = f"{len(command)} bytes, and Linux takes {_COMMAND_LIMIT_BYTES} at most"
            raise InputError(f"the command of task {number} has {size}; put it into a script")


def read_file(path: str) -> bytes:
    """Return what a file holds that the user named; "-" is standard input.

    Raises:
        InputError: it cannot be read or is too large.
    """
    try:
        with open(0 if path == "-" else path, "rb", closefd=path != "-") as stream:
            content = stream.read(_FILE_LIMIT_BYTES + 1)
    except OSError as error:
        raise InputError(f"file '{path}' cannot be read: {error.strerror}") from error
    if len(content) > _FILE_LIMIT_BYTES:
        raise InputError(f"file '{path}' is larger than {_FILE_LIMIT_BYTES} bytes")
    return content

# SPDX-License-Identifier: Apache-2.0
"""The tasks of ``csub pack``: the lines of a file, or one command."""

import codecs
import os
import shlex
from collections.abc import Iterable, Sequence

from slurm_colloc.core.errors import InputError
from slurm_colloc.slurm.array import MOST_TASKS

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
    for number, line in enumerate(text.removeprefix(codecs.BOM_UTF8).split(b"\n"), 1):
        bare = line.strip()
        if bare and not bare.startswith(b"#"):
            if bare.endswith(b"\\"):
                raise InputError(f"line {number} ends with a backslash, but each line is a task of its own")
            commands.append(bare)
        elif not commands and line.startswith((b"#SBATCH", b"#CSUB")):
            directives.append(line)
    if not commands:
        raise InputError("the file holds no commands")
    if len(commands) > MOST_TASKS:
        raise InputError(f"these are {len(commands)} tasks, and a pack takes {MOST_TASKS} at most")
    _check_sizes(commands)
    return script_of(directives, commands), tuple(line.decode(errors="surrogateescape") for line in commands)


def script_of(directives: Iterable[bytes], commands: Iterable[bytes]) -> bytes:
    """Return the script that stands for commands: by its text their pack is told from others, a resumed one too."""
    return b"".join(line + b"\n" for line in (b"#!/bin/sh", *directives, *commands))


def one_command(words: Sequence[str]) -> tuple[bytes, tuple[str, ...]]:
    """Return the script that stands for a command, and the command as a line of sh.

    Raises:
        InputError: it is too long, or no line.
    """
    line = shlex.join(words)
    if "\n" in line:
        raise InputError("a word of the command holds a newline; put it into a script")
    encoded = line.encode(errors="surrogateescape")
    _check_sizes([encoded])
    return script_of((), [encoded]), (line,)


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

# SPDX-License-Identifier: Apache-2.0
"""A task's output, error and input: sbatch's names for them, opened as sbatch opens them, and their last words."""

import errno
import os
import re
import stat
from contextlib import suppress

from slurm_colloc.core.errors import InputError

# What sbatch reads behind "%": at most so wide, filled up with zeros.
_REPLACED = re.compile(r"%(?:%|(\d*)([AJNabjnstux]))")
_WIDEST = 10
_NOTHING = "/dev/null"
# What stands for "%a" of a job that is no array.
_NO_TASK = 4294967294


def file_name(
    pattern: str, *, job_id: str, array_job_id: str, task: int | None, name: str, user: str, node: str, folder: str
) -> str:
    """Return the file that ``pattern`` names, as sbatch would for a job or a task of an array; "none" is no file.

    Args:
        pattern: of --output, --error or --input.
        job_id: %j: the job's own, of a task of an array the raw one, of a pack's task "<job>_<task>".
        array_job_id: %A; of a job of its own the same id.
        task: its number, %a; None for a job of its own.
        name: of the job, %x.
        user: its owner, %u.
        node: short name of its first node, %N.
        folder: where names that are not absolute begin.
    """
    if pattern.lower() == "none":
        return _NOTHING
    number = _NO_TASK if task is None else task
    numbers = {"A": array_job_id, "a": str(number), "b": str(number % 10), "j": job_id, "J": job_id, "n": "0", "t": "0"}
    words = {"x": name, "u": user, "N": node, "s": "batch"}

    def one(found: re.Match[str]) -> str:
        width, letter = found.groups()
        if letter is None:
            return "%"
        return words[letter] if letter in words else numbers[letter].zfill(min(int(width or 0), _WIDEST))

    # A backslash anywhere means that nothing is replaced, and goes itself.
    text = pattern.replace("\\", "") if "\\" in pattern else _REPLACED.sub(one, pattern)
    return os.path.join(folder, text)


def open_output(path: str, *, append: bool) -> int:
    """Open an output file as sbatch does and return at which byte this task's part of it begins.

    Raises:
        InputError: it cannot be written.
    """
    # O_NONBLOCK: a pipe that nobody reads would hold up all tasks.
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | (os.O_APPEND if append else os.O_TRUNC)
    try:
        descriptor = os.open(path, flags, 0o666)
        try:
            told = os.fstat(descriptor)
            return told.st_size if append and stat.S_ISREG(told.st_mode) else 0
        finally:
            os.close(descriptor)
    except OSError as error:
        why = "it is a pipe that nobody reads" if error.errno == errno.ENXIO else error.strerror
        raise InputError(f"output file '{path}' cannot be written: {why}") from error


def add_words(path: str, words: bytes) -> None:
    """Add to the end of an output file, as far as that can be done."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.write(descriptor, words)
        finally:
            os.close(descriptor)


def last_words(path: str, begins_at: int, limit_bytes: int) -> bytes:
    """Return the end of what was written to ``path`` behind byte ``begins_at``; nothing where it cannot be read."""
    try:
        # O_NONBLOCK: the user may have named a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            at = max(begins_at, size - limit_bytes)
            return os.pread(descriptor, limit_bytes, at) if size > at else b""
        finally:
            os.close(descriptor)
    except OSError:
        return b""

# SPDX-License-Identifier: Apache-2.0
"""A task's output, error and input: sbatch's names for them, opened as sbatch opens them, and their last words."""

import errno
import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from slurm_colloc.core.errors import InputError

# Letters behind "%" that sbatch replaces: at most so wide, filled up with zeros.
_REPLACED = re.compile(r"%(?:%|(\d*)([AJNabjnstux]))")
_WIDEST = 10
_NOTHING = "/dev/null"
# The number "%a" of a job that is no array.
_NO_TASK = 4294967294


def job_name(environ: Mapping[str, str]) -> str:
    """Return the id by which Slurm's commands show the job of a batch script: "4711", of an array "4711_2"."""
    array, number = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{number}" if array and number else environ.get("SLURM_JOB_ID", "")


def file_name(
    pattern: str, *, job_id: str, array_job_id: str, task: int | None, name: str, user: str, node: str, folder: str
) -> str:
    """Return the file that ``pattern`` names, as sbatch would for a job or a task of an array; "none" is no file.

    Args:
        pattern: the value of --output, --error or --input.
        job_id: %j: the job's own, an array task's raw one, "<job>_<task>" for a pack's task.
        array_job_id: %A; the same id for a job of its own.
        task: its number, %a; None for a job of its own.
        name: the job's name, %x.
        user: its owner, %u.
        node: short name of its first node, %N.
        folder: the one that names which are not absolute begin in.
    """
    if pattern.lower() == "none":
        return _NOTHING
    number = _NO_TASK if task is None else task
    numbers = {"A": array_job_id, "a": str(number), "b": str(number % 10), "j": job_id, "J": job_id, "n": "0", "t": "0"}
    words = {"x": name, "u": user, "N": node, "s": "batch"}

    def replaced(match: re.Match[str]) -> str:
        width, letter = match.groups()
        if letter is None:
            return "%"
        return words[letter] if letter in words else numbers[letter].zfill(min(int(width or 0), _WIDEST))

    # A backslash anywhere means that nothing is replaced, and goes itself.
    text = pattern.replace("\\", "") if "\\" in pattern else _REPLACED.sub(replaced, pattern)
    return os.path.join(folder, text)


@contextmanager
def _opened(path: str, flags: int) -> Iterator[int]:
    # O_NONBLOCK: the user may have named a pipe, and one that nobody reads would hold up all tasks.
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_output(path: str, *, append: bool) -> int:
    """Open an output file as sbatch does and return at which byte this task's part of it begins.

    Raises:
        InputError: it cannot be written.
    """
    try:
        with _opened(path, os.O_WRONLY | os.O_CREAT | (os.O_APPEND if append else os.O_TRUNC)) as descriptor:
            status = os.fstat(descriptor)
            return status.st_size if append and stat.S_ISREG(status.st_mode) else 0
    except OSError as error:
        reason = "it is a pipe that nobody reads" if error.errno == errno.ENXIO else error.strerror
        raise InputError(f"output file '{path}' cannot be written: {reason}") from error


def add_words(path: str, words: bytes) -> None:
    """Add to the end of an output file, as far as that can be done."""
    with suppress(OSError), _opened(path, os.O_WRONLY | os.O_APPEND) as descriptor:
        os.write(descriptor, words)


def last_words(path: str, begins_at: int, limit_bytes: int) -> bytes:
    """Return the end of what was written to ``path`` behind byte ``begins_at``; nothing where it cannot be read."""
    with suppress(OSError), _opened(path, os.O_RDONLY) as descriptor:
        size = os.fstat(descriptor).st_size
        start = max(begins_at, size - limit_bytes)
        return os.pread(descriptor, limit_bytes, start) if size > start else b""
    return b""

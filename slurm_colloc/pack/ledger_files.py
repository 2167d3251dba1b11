# SPDX-License-Identifier: Apache-2.0
"""The files beside a pack's job: the ledger of each of its jobs, the batch script, and who resumed it."""

import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain

from slurm_colloc.config import user_data_folder
from slurm_colloc.errors import InputError, StoreError
from slurm_colloc.files import PRIVATE_FILE, private_folder, write_atomic

# A header holds every command of the pack.
_LINE_LIMIT_BYTES = 64 * 1024 * 1024
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")


def ledger_folder() -> str:
    """Return the folder of this user's ledgers."""
    return os.path.join(user_data_folder(), "packs")


def ledger_path(cluster: str, job_id: str) -> str:
    """Return where the ledger of one job lies; of a job of an array ``job_id`` is "<array's id>_<number>".

    Raises:
        InputError: a name that would leave the folder.
    """
    return _path(cluster, job_id, "jsonl")


def _path(cluster: str, job_id: str, kind: str) -> str:
    for what, name in (("cluster", cluster), ("job id", job_id)):
        if not _NAME.fullmatch(name):
            raise InputError(f"{what} '{name}' is no name for a file; is this a job of Slurm?")
    return os.path.join(ledger_folder(), cluster, f"{job_id}.{kind}")


def job_name(environ: Mapping[str, str]) -> str:
    """Return the id by which Slurm's commands show the job of a batch script: "4711", of an array "4711_2"."""
    array, number = environ.get("SLURM_ARRAY_JOB_ID", ""), environ.get("SLURM_ARRAY_TASK_ID", "")
    return f"{array}_{number}" if array and number else environ.get("SLURM_JOB_ID", "")


def ledgers_of(cluster: str, job_id: str) -> tuple[str, ...]:
    """Return the ledgers that a job left, or the jobs of an array; none where none has begun, or it is no pack.

    Raises:
        InputError: a name that would leave the folder.
        StoreError: the folder cannot be read.
    """
    whole = ledger_path(cluster, job_id)
    one_of_them = re.compile(rf"{re.escape(job_id)}_\d+\.jsonl")
    folder, name = os.path.split(whole)
    try:
        found = [entry for entry in os.listdir(folder) if entry == name or one_of_them.fullmatch(entry)]
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise StoreError(f"ledgers in '{folder}' cannot be read: {error.strerror}") from error
    return tuple(os.path.join(folder, entry) for entry in sorted(found, key=lambda entry: (len(entry), entry)))


def keep_script(cluster: str, job_id: str, content: bytes) -> None:
    """Keep a pack's batch script beside its ledger; all jobs of an array have one, under the array's id.

    Raises:
        InputError: a name that would leave the folder.
        StoreError: it cannot be written.
    """
    path = _path(cluster, job_id, "sh")
    private_folder(os.path.dirname(path))
    write_atomic(path, content, durable=True)


def kept_script(cluster: str, job_id: str) -> bytes:
    """Return the batch script of a pack.

    Raises:
        InputError: a name that would leave the folder.
        StoreError: it was not kept, or cannot be read.
    """
    return b"".join(lines_of(_path(cluster, job_id, "sh"), blank=True))


def note_resumed(cluster: str, job_id: str, by: str) -> None:
    """Write down which job runs what is missing of a pack.

    Raises:
        InputError: a name that would leave the folder.
        StoreError: it cannot be written.
    """
    path = _path(cluster, job_id, "resumed")
    private_folder(os.path.dirname(path))
    descriptor = open_own(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, f"{by}\n".encode())
        os.fsync(descriptor)
    except OSError as error:
        raise StoreError(f"file '{path}' cannot be written: {error.strerror}") from error
    finally:
        os.close(descriptor)


def forget_resumed(cluster: str, job_id: str) -> None:
    """Remove what says who resumed an earlier job of this id.

    Raises:
        InputError: a name that would leave the folder.
        StoreError: it cannot be removed.
    """
    path = _path(cluster, job_id, "resumed")
    try:
        with suppress(FileNotFoundError):
            os.unlink(path)
    except OSError as error:
        raise StoreError(f"file '{path}' cannot be removed: {error.strerror}") from error


def resumed_by(cluster: str, job_id: str) -> tuple[str, ...]:
    """Return the jobs that run, or ran, what was missing of a pack, and what was missing of them, and so on.

    Raises:
        InputError: a name that would leave the folder.
        StoreError: it cannot be read.
    """
    found: list[str] = []
    for one in chain([job_id], found):  # which grows meanwhile
        path = _path(cluster, one, "resumed")
        if os.path.lexists(path):
            names = (line.decode(errors="replace").strip() for line in lines_of(path))
            found += [name for name in dict.fromkeys(names) if name.isdigit() and name not in (job_id, *found)]
    return tuple(found)


def first_of(cluster: str, job_id: str) -> str:
    """Return the pack that a pack resumes, or the one that that one resumes, and so on; itself if it resumes none.

    Raises:
        InputError: a name that would leave the folder.
        StoreError: the folder, or a file in it, cannot be read.
    """
    folder, ends = os.path.dirname(ledger_path(cluster, job_id)), ".resumed"
    earlier: dict[str, str] = {}
    try:
        names = sorted(name for name in os.listdir(folder) if name.endswith(ends))
    except OSError as error:
        raise StoreError(f"ledgers in '{folder}' cannot be read: {error.strerror}") from error
    for name in names:
        for line in lines_of(os.path.join(folder, name)):
            earlier[line.decode(errors="replace").strip()] = name.removesuffix(ends)
    first, seen = job_id, {job_id}
    while first in earlier and earlier[first] not in seen:
        first = earlier[first]
        seen.add(first)
    return first


def lines_of(path: str, *, blank: bool = False) -> Iterator[bytes]:
    """Yield the lines of a file of this user, those that are not blank unless ``blank``.

    Raises:
        StoreError: it is somebody else's, or cannot be read.
    """
    try:
        with os.fdopen(open_own(path, os.O_RDONLY), "rb") as stream:
            while line := stream.readline(_LINE_LIMIT_BYTES):
                if blank or line.strip():
                    yield line
    except OSError as error:
        raise StoreError(f"ledger '{path}' cannot be read: {error.strerror}") from error


def open_own(path: str, flags: int) -> int:
    """Return a descriptor of the regular file ``path``, the user's own; root may have anybody's to read.

    Raises:
        StoreError: it is something else, or cannot be opened.
    """
    try:
        # O_NONBLOCK: a planted FIFO must not hang the job.
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, PRIVATE_FILE)
    except OSError as error:
        raise StoreError(f"ledger '{path}' cannot be opened: {error.strerror}") from error
    with suppress(OSError):
        found = os.fstat(descriptor)
        by_root = os.geteuid() == 0 and not flags & os.O_APPEND
        if stat.S_ISREG(found.st_mode) and (found.st_uid == os.geteuid() or by_root):
            return descriptor
    os.close(descriptor)
    raise StoreError(f"ledger '{path}' is no file of uid {os.geteuid()}; move it away")

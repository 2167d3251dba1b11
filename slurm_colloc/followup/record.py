# SPDX-License-Identifier: Apache-2.0
"""What a companion job is told: which job it follows, and how to submit that one's script once more.

A record is a private folder in the user's data folder: ``record.json``, a copy of the user's script below ``script/``,
and what the companion adds: ``claimed`` before it submits anything, ``outcome.json`` when it is done. For a job that is
measured first see ``slurm_colloc.followup.sized``.
"""

import json
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from slurm_colloc.clock import now
from slurm_colloc.config import user_data_folder
from slurm_colloc.errors import InputError, StoreError
from slurm_colloc.files import PRIVATE_FILE, private_folder, read_own, write_atomic
from slurm_colloc.kinds import read_as

VERSION = 1
# Why a job may have to be submitted once more: it ran out of GPU memory.
OUT_OF_MEMORY = "out-of-memory"
# Another job is measured first; what waits for that one is then submitted anew in the size it needs.
FIRST = "first"
# Who claims a record, for what its companion would do is done or not to be done any more; else it is a companion's id.
CSUB = "csub"
_RECORD, _CLAIM, _OUTCOME, _SCRIPT = "record.json", "claimed", "outcome.json", "script"
_LIMIT_BYTES = 16 * 1024 * 1024
_NAME = re.compile(r"[A-Za-z0-9][\w.+-]{0,254}", re.ASCII)
_KEPT, _KEPT_S, _WAITED_FOR_S = 200, 30 * 86400.0, 365 * 86400.0


class Record(NamedTuple):
    """How a job was submitted, and what it was given.

    ``name`` is the record's own, the job's id for OUT_OF_MEMORY. ``job_id`` is the job that is followed, ``attempt``
    counts how often the user's job was run again before. ``own`` are csub's own options, ``options`` sbatch's,
    ``script`` is the kept script's name (``from_stdin``: it came by standard input). ``folder`` is where csub was
    called, ``names`` those of all variables of its environment, ``variables`` those with their values that a job's
    environment has otherwise. ``output`` and ``error`` are sbatch's patterns below ``work_folder``, ``append`` is
    --open-mode, ``begins`` at which byte of a file the job's own part begins. ``array`` is the value of --array.
    ``given`` is the piece that was asked for, ``budget_mib`` what it was sized for, ``sm_active_pct`` how busy a job
    counts. ``kind`` is by which option a job is measured first.
    """

    version: int
    why: str
    cluster: str
    name: str
    job_id: str
    attempt: int
    user: str
    job_name: str
    signature: str
    own: tuple[str, ...]
    options: tuple[str, ...]
    script: str
    from_stdin: bool
    script_args: tuple[str, ...]
    folder: str
    names: tuple[str, ...]
    variables: Mapping[str, str]
    account: str = ""
    qos: str = ""
    partition: str = ""
    array: str = ""
    output: str = ""
    error: str = ""
    work_folder: str = ""
    append: bool = False
    begins: Mapping[str, int] = {}
    mode: str = ""
    given: str = ""
    budget_mib: int = 0
    sm_active_pct: float | None = None
    kind: str = ""


class Outcome(NamedTuple):
    """What came of a record: the new job's id ("" for none), and in words what was done and why."""

    job_id: str
    said: str
    at_s: float


def record_folder(cluster: str, name: str) -> str:
    """Return where the record of this name lies.

    Raises:
        InputError: a name that would leave the folder.
    """
    for what, part in (("cluster", cluster), ("name", name)):
        if not _NAME.fullmatch(part):
            raise InputError(f"{what} '{part}' is no name for a file")
    # A companion is somewhere else.
    return os.path.abspath(os.path.join(user_data_folder(), "again", cluster, name))


def write_record(record: Record, script: bytes) -> str:
    """Write a record and the script, in place of an earlier job's of that name, and return its folder.

    Raises:
        InputError: a name that would leave the folder.
        StoreError: it cannot be written.
    """
    folder = record_folder(record.cluster, record.name)
    _prune(os.path.dirname(folder))
    with suppress(FileNotFoundError):
        if os.path.islink(folder):  # Job ids come round again
            os.unlink(folder)
        shutil.rmtree(folder)
    private_folder(os.path.join(folder, _SCRIPT))
    write_atomic(script_path(folder, record), script)
    write_atomic(os.path.join(folder, _RECORD), json.dumps(record._asdict()).encode(), durable=True)
    return folder


def script_path(folder: str, record: Record) -> str:
    """Return where the copy of the user's script lies; by its name Slurm calls the job.

    Raises:
        InputError: a name that would leave the folder.
    """
    if record.script in ("", ".", "..") or "/" in record.script:
        raise InputError(f"script '{record.script}' is no name for a file")
    return os.path.join(folder, _SCRIPT, record.script)


def name_also(folder: str, name: str) -> None:
    """Let a record be found by a further name, in place of an earlier one of that name.

    Raises:
        StoreError: it cannot be written.
    """
    path = os.path.join(os.path.dirname(folder), name)
    try:
        with suppress(FileNotFoundError):
            os.unlink(path)
        os.symlink(os.path.basename(folder), path)
    except OSError as error:
        raise StoreError(f"link '{path}' cannot be made: {error.strerror}") from error


def read_record(folder: str) -> Record:
    """Return the record in ``folder``.

    Raises:
        StoreError: missing, unreadable or somebody else's.
        InputError: another release's, or cut short.
    """
    content = read_own(os.path.join(folder, _RECORD), _LIMIT_BYTES)
    try:
        # Of a release before, with fewer fields: a companion may wait for days.
        record: Record = read_as(Record, json.loads(content))
        if record.version != VERSION:
            raise ValueError("the fields differ from this release's")
    except (ValueError, RecursionError) as error:
        raise InputError(f"record in '{folder}' is not of the expected form: {error}") from error
    return record


def is_recorded(folder: str) -> bool:
    """Return whether a companion was told what to do, or was to be."""
    return os.path.lexists(os.path.join(folder, _RECORD))


def claim(folder: str, by: str) -> bool:
    """Say for good that ``by`` submits what the record holds; False where that was said before.

    Raises:
        StoreError: nobody can say it, so nothing may be submitted.
    """
    path = os.path.join(folder, _CLAIM)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, PRIVATE_FILE)
    except FileExistsError:
        return False
    except OSError as error:
        raise StoreError(f"file '{path}' cannot be written: {error.strerror}") from error
    try:
        os.write(descriptor, f"{by}\n".encode())
        os.fsync(descriptor)
    except OSError as error:
        # Else whoever comes after would leave it to one who did nothing.
        with suppress(OSError):
            os.unlink(path)
        raise StoreError(f"file '{path}' cannot be written: {error.strerror}") from error
    finally:
        os.close(descriptor)
    return True


def is_claimed(folder: str) -> bool:
    """Return whether a companion has begun to submit what the record holds."""
    return os.path.lexists(os.path.join(folder, _CLAIM))


def is_settled(folder: str) -> bool:
    """Return whether csub claimed it and told its user what it did."""
    try:
        return read_own(os.path.join(folder, _CLAIM), _LIMIT_BYTES) == f"{CSUB}\n".encode()
    except StoreError:
        return False


def write_outcome(folder: str, job_id: str, said: str) -> None:
    """Write down what came of the record.

    Raises:
        StoreError: it cannot be written.
    """
    path = os.path.join(folder, _OUTCOME)
    write_atomic(path, json.dumps(Outcome(job_id, said, now())._asdict()).encode(), durable=True)


def read_outcome(folder: str) -> Outcome | None:
    """Return what came of a record, None where nothing has yet.

    Raises:
        StoreError: unreadable or somebody else's.
        InputError: it is not of the expected form.
    """
    path = os.path.join(folder, _OUTCOME)
    if not os.path.lexists(path):
        return None
    try:
        outcome: Outcome = read_as(Outcome, json.loads(read_own(path, _LIMIT_BYTES)))
    except (ValueError, RecursionError) as error:
        raise InputError(f"file '{path}' is not of the expected form: {error}") from error
    return outcome


def _prune(folder: str) -> None:
    """Remove records that are old and many; one of which nothing has come yet may still be waited for."""
    with suppress(OSError):
        entries = [(entry.stat(follow_symlinks=False).st_mtime, entry.path) for entry in os.scandir(folder)]
        for changed_s, path in sorted(entries, reverse=True)[_KEPT:]:
            if os.path.islink(path):
                if not os.path.exists(path):
                    os.unlink(path)
                continue
            done = is_claimed(path) or os.path.lexists(os.path.join(path, _OUTCOME))
            if now() - changed_s > (_KEPT_S if done else _WAITED_FOR_S):
                shutil.rmtree(path, ignore_errors=True)

# SPDX-License-Identifier: Apache-2.0
"""The record of a job that may be submitted again: how to submit it, and its state.

A record is a private folder in the user's data folder: ``record.json``, a copy of the user's script below ``script/``,
and one file, or link, for each step that was taken, each whole and never taken back:

    claimed     by whom it is submitted: a companion's id, or CSUB, which closes it: nobody will
    submitted   the job that was submitted
    outcome     what came of it

A companion that was requeued goes on behind the last of them.
"""

import json
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from slurm_colloc.core.clock import now
from slurm_colloc.core.errors import InputError, StoreError
from slurm_colloc.core.files import private_folder, read_own, sync_folder, write_atomic
from slurm_colloc.core.value_types import read_as
from slurm_colloc.slurm.job_files import file_name
from slurm_colloc.submit.decision import kept_scripts

VERSION = 3
# Who claims a record so that nobody submits anything.
CSUB = "csub"
# A record's options name no job: what was waited for is over by then, and Slurm may have forgotten it.
SINGLETON = "--dependency=singleton"
CLAIMED, SUBMITTED, OUTCOME = "claimed", "submitted", "outcome"
_RECORD, _SCRIPT = "record.json", "script"
_LIMIT_BYTES = 16 * 1024 * 1024
_NAME = re.compile(r"[A-Za-z0-9][\w.+-]{0,254}", re.ASCII)
_KEPT, _KEPT_S, _WAITED_FOR_S = 200, 30 * 86400.0, 365 * 86400.0


class Record(NamedTuple):
    """How a job was submitted, and what it was given.

    ``job_id`` is the job that is followed, ``attempt`` counts how often the user's job was run again before.
    ``own`` are csub's own options, ``options`` sbatch's, ``script`` is the kept script's name (``from_stdin``: it
    came by standard input). ``folder`` is where csub was called, ``names`` those of all variables of its
    environment, ``variables`` those with their values that a job's environment has otherwise. ``output`` and
    ``error`` are sbatch's patterns below ``work_folder``, ``append`` is --open-mode, ``begins`` at which byte of a
    file the job's own part begins. ``array`` is the value of --array. ``given`` is the piece that was asked for,
    ``budget_mib`` what it was sized for, ``sm_active_pct`` how busy a job counts.
    """

    version: int
    cluster: str
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

    @property
    def companion_name(self) -> str:
        """Return the companion's job name."""
        return f"csub-retry-{self.job_id}"

    def files(self, job_id: str, array_job_id: str, task: int | None, node: str = "") -> tuple[str, str]:
        """Return the error and the output file of a job, or of a task of an array, that is submitted so."""
        facts = {"job_id": job_id, "array_job_id": array_job_id, "name": self.job_name, "user": self.user}
        return (
            file_name(self.error or self.output, task=task, node=node, folder=self.work_folder, **facts),
            file_name(self.output, task=task, node=node, folder=self.work_folder, **facts),
        )


class State(NamedTuple):
    """How far it came, each "" for a step that was not taken: who claimed it, the job's id, and what came of it."""

    claimed_by: str
    submitted: str
    outcome: str

    @property
    def closed(self) -> bool:
        """Return whether nothing is to be done: all is done, or csub said that nobody does anything."""
        return bool(self.outcome) or self.claimed_by == CSUB


def record_folder(cluster: str, job_id: str) -> str:
    """Return where the record of a job lies.

    Raises:
        InputError: a name that would leave the folder.
    """
    for what, part in (("cluster", cluster), ("job id", job_id)):
        if not _NAME.fullmatch(part):
            raise InputError(f"{what} '{part}' is no name for a file")
    # A companion is somewhere else.
    return os.path.abspath(os.path.join(kept_scripts(), cluster, job_id))


def write_record(record: Record, script: bytes) -> str:
    """Write a record and the script, in place of an earlier job's of that id, and return its folder.

    Raises:
        InputError: a name that would leave the folder.
        StoreError: it cannot be written.
    """
    folder = record_folder(record.cluster, record.job_id)
    _prune(os.path.dirname(folder))
    with suppress(FileNotFoundError):
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


def read_record(folder: str) -> Record:
    """Return the record in ``folder``.

    Raises:
        StoreError: missing, unreadable or somebody else's.
        InputError: another release's, or cut short.
    """
    content = read_own(os.path.join(folder, _RECORD), _LIMIT_BYTES)
    try:
        record: Record = read_as(Record, json.loads(content))
        if record.version != VERSION:
            raise ValueError("the fields differ from this release's")
    except (ValueError, RecursionError) as error:
        raise InputError(f"record in '{folder}' is not of the expected form: {error}") from error
    return record


def read_state(folder: str) -> State:
    """Return how far a record came.

    Raises:
        StoreError: a step's file is unreadable or somebody else's.
    """

    def step(name: str) -> str:
        path = os.path.join(folder, name)
        return read_own(path, _LIMIT_BYTES).decode(errors="replace").strip() if os.path.lexists(path) else ""

    submitted = step(SUBMITTED)
    if not (submitted == "" or (submitted.isascii() and submitted.isdigit())):
        raise StoreError(f"a file in '{folder}' that is to hold a job's id holds none")
    claimed_by = ""
    with suppress(FileNotFoundError):
        claimed_by = os.readlink(os.path.join(folder, CLAIMED))
    return State(claimed_by, submitted, step(OUTCOME))


def retry_status(cluster: str, job_id: str) -> str:
    """Return what became of one's own job after it ran out of GPU memory; empty where nobody follows it."""
    with suppress(InputError, StoreError):
        state = read_state(record_folder(cluster, job_id.partition("_")[0]))
        if state.outcome:
            return state.outcome
        if state.claimed_by and not state.closed:
            return "it is being submitted again, or its companion died over that: see squeue"
    return ""


def write_step(folder: str, step: str, words: str) -> None:
    """Write down a step for good.

    Raises:
        StoreError: it cannot be written.
    """
    write_atomic(os.path.join(folder, step), words.encode(errors="backslashreplace"), durable=True)


def claim(folder: str, by: str) -> bool:
    """Say for good that ``by`` submits what the record holds; False where that was said before.

    Raises:
        StoreError: nobody can say it, so nothing may be submitted.
    """
    path = os.path.join(folder, CLAIMED)
    try:
        # A link is there with what it says, or not at all.
        os.symlink(by, path)
    except FileExistsError:
        return False
    except OSError as error:
        raise StoreError(f"link '{path}' cannot be made: {error.strerror}") from error
    try:
        sync_folder(folder)
    except OSError as error:
        # Else whoever comes after would leave it to one who did nothing.
        with suppress(OSError):
            os.unlink(path)
        raise StoreError(f"link '{path}' cannot be written: {error.strerror}") from error
    return True


def _prune(folder: str) -> None:
    """Remove records that are old and many; one of which nothing has come yet may still be waited for."""
    with suppress(OSError):
        entries = [(entry.stat(follow_symlinks=False).st_mtime, entry.path) for entry in os.scandir(folder)]
        for changed_s, path in sorted(entries, reverse=True)[_KEPT:]:
            done = any(os.path.lexists(os.path.join(path, step)) for step in (CLAIMED, OUTCOME))
            if now() - changed_s > (_KEPT_S if done else _WAITED_FOR_S):
                shutil.rmtree(path, ignore_errors=True)

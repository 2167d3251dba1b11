# SPDX-License-Identifier: Apache-2.0
"""The settings of a pack's job: one line of JSON in its batch script, fixed at submission.

The script is, from its top: "#!/bin/sh", the user's directives, csub's block, which becomes ``slurm_colloc.pack``
and gives it the script's own path, MARK with the Spec, and behind that line the user's own script, byte for byte.
"""

import json
import os
from collections.abc import Iterable
from typing import NamedTuple

from slurm_colloc.core.errors import InputError
from slurm_colloc.core.model import Load, Room
from slurm_colloc.core.value_types import read_as
from slurm_colloc.slurm.array import MOST_TASKS, parse_array

MARK = b"#csub-pack "
VERSION = 1
_NAME_LIMIT_BYTES = 255


class Task(NamedTuple):
    """One task: ``number`` is its SLURM_ARRAY_TASK_ID, ``command`` a line of sh, empty for the user's script."""

    number: int
    command: str = ""


class Spec(NamedTuple):
    """A pack of tasks.

    ``array`` is the value of --array without its "%n"; ``commands`` are lines of sh instead, numbered from 1; ``only``
    are the numbers to run, empty for all. The tasks are dealt out over ``jobs`` jobs of one array, or all are one
    job's. ``interpreter`` is how the user's script is started, ``script_args`` are its arguments. ``cpus_per_task`` and
    ``time_limit_min`` are one task's (None: the job's). ``output``, ``error`` and ``input`` are file name patterns as
    sbatch has them, ``append`` is --open-mode. ``retries`` says how often a task that lost its GPU, or found no memory
    on it, is run again. ``argv`` is how csub was called, for --resume.
    ``resumes`` is the job whose missing tasks these are. Tasks that run ``together`` begin at once or not at all, and
    end when one of them fails.
    """

    version: int
    name: str
    array: str
    commands: tuple[str, ...]
    only: tuple[int, ...]
    jobs: int
    interpreter: tuple[str, ...]
    script_args: tuple[str, ...]
    load: Load
    room: Room
    cpus_per_task: int
    time_limit_min: float | None
    output: str
    error: str
    input: str
    append: bool
    retries: int
    argv: tuple[str, ...]
    resumes: str = ""
    together: bool = False

    def tasks(self, job: int = 0) -> tuple[Task, ...]:
        """Return the tasks of one of ``jobs`` jobs, in their order.

        Raises:
            InputError: ``array`` is outside its grammar.
        """
        if self.commands:
            every = [Task(number, command) for number, command in enumerate(self.commands, 1)]
        else:
            every = [Task(number) for number in parse_array(self.array)]
        chosen = set(self.only)
        selected = [task for task in every if not chosen or task.number in chosen]
        return tuple(selected[job :: self.jobs])


def split_script(content: bytes) -> tuple[bytes, bytes, bytes]:
    """Return what stands before the line of a pack's batch script that holds its Spec, the Spec, and the user's script.

    Raises:
        InputError: it is no pack's.
    """
    head, mark, rest = content.partition(b"\n" + MARK)
    if not mark:
        raise InputError(f"it has no line '{MARK.decode().strip()}': it is no pack's")
    line, _, script = rest.partition(b"\n")
    return head, line, script


def script_of(directives: Iterable[bytes], commands: Iterable[bytes]) -> bytes:
    """Return the script that stands for commands: its text tells their pack from others, a resumed one too."""
    return b"".join(line + b"\n" for line in (b"#!/bin/sh", *directives, *commands))


def plain_name(name: str) -> str:
    """Return what a pack's job and script are called: the last part of ``name``, "pack" where it names no file."""
    last = name.rpartition("/")[2]
    return last if last not in ("", ".", "..") and len(os.fsencode(last)) <= _NAME_LIMIT_BYTES else "pack"


def to_json(spec: Spec) -> str:
    """Return ``spec`` as one line."""
    return json.dumps(spec._asdict())


def from_json(text: str | bytes) -> Spec:
    """Return the Spec in one line of JSON.

    Raises:
        InputError: it is none, or of another version.
    """
    try:
        fields = json.loads(text)
        if fields["version"] != VERSION:
            raise InputError(f"the pack was submitted by another release of csub (version {fields['version']})")
        spec: Spec = read_as(Spec, fields)
        if not 1 <= spec.jobs <= MOST_TASKS:
            raise ValueError(f"{spec.jobs} jobs")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise InputError(f"this is no pack: {error!r}; was the job's script changed?") from error
    return spec

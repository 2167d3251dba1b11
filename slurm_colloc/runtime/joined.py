# SPDX-License-Identifier: Apache-2.0
"""A job that runs as a step of another one: ``python -I -m slurm_colloc.runtime.joined FOLDER``, started by srun.

It says "began JOB.STEP" on its standard output, or "refused: " and why, before the user's script runs. From there on it
needs nobody at the other end: output goes to the user's files, and how the script ended into the record's folder.
"""

import json
import os
import re
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from slurm_colloc.clock import now, pause, tries
from slurm_colloc.errors import CollocError, InputError, ProcessError, StoreError
from slurm_colloc.files import PRIVATE_FILE, read_own, write_atomic
from slurm_colloc.kinds import read_as
from slurm_colloc.process import ask, run, wait_for
from slurm_colloc.runtime.again_record import finished_path
from slurm_colloc.runtime.files import job_file_name, open_output

BEGAN, REFUSED = "began ", "refused: "
_TASK, _STARTED = "task.json", "started"
_LIMIT_BYTES = 1024 * 1024
_ASK_DRIVER_S = 10.0
_NOT_BEGUN = 75
# slurmdbd hears of an end some seconds later than the controller.
_ASK_EVERY_S, _ASKED_TIMES = 2.0, 15
_ASK_SLURM_S = 10.0
# Slurm signals a step's processes one after the other, and a script may end at the first.
_SIGNALS_APART_S = 1.0
_EXCLUSIVE = re.compile(rb"exclusive|prohibited", re.IGNORECASE)
# None of these ends the step's first process: it stays to say how the script ended.
_SURVIVED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


class Task(NamedTuple):
    """What the step runs; ``output``, ``error`` and ``input`` are sbatch's patterns, below ``folder``."""

    script: str
    interpreter: tuple[str, ...]
    script_args: tuple[str, ...]
    name: str
    user: str
    folder: str
    output: str
    error: str
    input: str
    append: bool


class Started(NamedTuple):
    """Which step has begun, "JOB.STEP", empty where csub said first that none may; and when."""

    step: str
    at_s: float


def write_task(folder: str, task: Task) -> None:
    """Write what the step is to run.

    Raises:
        StoreError: it cannot be written.
    """
    write_atomic(os.path.join(folder, _TASK), json.dumps(task._asdict()).encode(), durable=True)


def read_task(folder: str) -> Task:
    """Return what the step is to run.

    Raises:
        CollocError: it is missing or not of the expected form.
    """
    content = read_own(os.path.join(folder, _TASK), _LIMIT_BYTES)
    try:
        task: Task = read_as(Task, json.loads(content))
    except (ValueError, RecursionError) as error:
        raise InputError(f"task in '{folder}' is not of the expected form: {error}") from error
    return task


def begin(folder: str, step: str) -> bool:
    """Say for good that ``step`` runs the script, or, empty, that no step may; False where something was said before.

    Raises:
        StoreError: nobody can say it.
    """
    path = os.path.join(folder, _STARTED)
    temporary = f"{path}.{os.urandom(6).hex()}"
    try:
        # A link, unlike O_EXCL alone, shows the file whole or not at all.
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
        try:
            os.write(descriptor, json.dumps(Started(step, now())._asdict()).encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        try:
            os.link(temporary, path)
        finally:
            os.unlink(temporary)
    except FileExistsError:
        return False
    except OSError as error:
        raise StoreError(f"file '{path}' cannot be written: {error.strerror}") from error
    return True


def read_started(folder: str) -> Started | None:
    """Return what was said first; None where nothing was.

    Raises:
        CollocError: it cannot be read.
    """
    path = os.path.join(folder, _STARTED)
    if not os.path.lexists(path):
        return None
    try:
        started: Started = read_as(Started, json.loads(read_own(path, _LIMIT_BYTES)))
    except (ValueError, RecursionError) as error:
        raise InputError(f"file '{path}' is not of the expected form: {error}") from error
    return started


def had_its_end(text: str, started: Started) -> bool:
    """Return whether the step came to an end of its own, and not by its job's.

    Measured on 22.05, 24.11 and 26.05: a step that its job's end took along ends in the same second or later.

    Args:
        text: ``sacct -n -P -j JOB -o JobIDRaw,Start,End``, times in epoch seconds.
        started: the step.
    """
    job = started.step.partition(".")[0]
    rows = {row[0]: row[1:] for row in (line.split("|") for line in text.splitlines()) if len(row) == 3}
    if job not in rows or started.step not in rows:
        return False
    (job_start, job_end), (_, step_end) = rows[job], rows[started.step]
    if not (job_start.isdigit() and job_end.isdigit() and step_end.isdigit()):
        return False
    # A job that was requeued since then numbers its steps anew.
    return int(job_start) <= started.at_s and int(step_end) < int(job_end)


def ran_its_course(folder: str) -> bool:
    """Return whether the step in this record's folder had its run: then it is not to be run again.

    Raises:
        CollocError: the record cannot be read.
    """
    if os.path.lexists(finished_path(folder)):
        return True
    started = read_started(folder)
    if started is None or not started.step:
        return False
    argv = ("sacct", "-n", "-P", "-j", started.step.partition(".")[0], "-o", "JobIDRaw,Start,End")
    text = ""
    for _ in tries(_ASKED_TIMES, _ASK_EVERY_S):
        # Without an accounting nothing says that the step ended of its own.
        with suppress(ProcessError):
            environ = {**os.environ, "SLURM_TIME_FORMAT": "%s"}
            text = ask(argv, _ASK_SLURM_S, environ).decode(errors="replace")
        if all_ended(text, started):
            break
    return had_its_end(text, started)


def all_ended(text: str, started: Started) -> bool:
    """Return whether the accounting has heard of the end of both the step and its job; see ``had_its_end``."""
    rows = {row[0]: row[2] for row in (line.split("|") for line in text.splitlines()) if len(row) == 3}
    return all(rows.get(one, "").isdigit() for one in (started.step, started.step.partition(".")[0]))


def reason_to_refuse(environ: Mapping[str, str]) -> str:
    """Return why the script must not run in this step; empty when it may."""
    if not environ.get("CUDA_VISIBLE_DEVICES"):
        return "the step was given no GPU (CUDA_VISIBLE_DEVICES is not set)"
    with suppress(ProcessError):  # no driver's program to ask
        done = run(("nvidia-smi", "--query-gpu=compute_mode", "--format=csv,noheader"), _ASK_DRIVER_S, environ)
        if done.status == 0 and _EXCLUSIVE.search(done.stdout):
            mode = done.stdout.decode(errors="replace").split("\n")[0].strip()
            return f"the GPU serves one process at a time (compute mode {mode})"
    return ""


def files_of(task: Task, step: str, node: str) -> tuple[str, str, str]:
    """Return the output, error and input files; %j is "JOB.STEP", for the job's own files are the host's."""
    output, error, source = (
        job_file_name(pattern, step, step, None, name=task.name, user=task.user, node=node, folder=task.folder)
        for pattern in (task.output, task.error or task.output, task.input or os.devnull)
    )
    return output, error, source


def main() -> int:
    """Run the script of the folder named by the first argument and return its exit status."""
    [folder] = sys.argv[1:]
    environ = dict(os.environ)
    step = f"{environ.get('SLURM_JOB_ID', '')}.{environ.get('SLURM_STEP_ID', '')}"
    node = environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0]
    try:
        task = read_task(folder)
        why = reason_to_refuse(environ)
        output, error, source = files_of(task, step, node)
        if not why:
            os.chdir(task.folder)
            os.close(os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))
            open_output(output, append=task.append)
            if error != output:
                open_output(error, append=task.append)
            why = "" if begin(folder, step) else "csub had given up by then"
    except (CollocError, OSError) as problem:
        why = str(problem)
    with suppress(OSError):  # csub may be gone; the script runs all the same
        os.write(1, f"{REFUSED}{why}\n".encode() if why else f"{BEGAN}{step}\n".encode())
    if why:
        return _NOT_BEGUN
    return _run(task, folder, (output, error, source), environ)


def _run(task: Task, folder: str, files: tuple[str, str, str], environ: Mapping[str, str]) -> int:
    told: list[int] = []
    for number in _SURVIVED:
        signal.signal(number, lambda got, _: told.append(got))
    _take_over(files)
    try:
        status = wait_for([*task.interpreter, task.script, *task.script_args], environ, _SURVIVED)
    except CollocError as error:
        os.write(2, f"csub: {error}\n".encode(errors="replace"))
        status = 126
    ended_s = now()
    pause(_SIGNALS_APART_S)
    # After a SIGTERM nobody knows whether it is done: the job's end sends one.
    if signal.SIGTERM not in told:
        with suppress(StoreError):  # then Slurm's accounting tells whether the step had an end of its own
            write_atomic(finished_path(folder), json.dumps({"status": status, "at_s": ended_s}).encode(), durable=True)
    return 128 - status if status < 0 else status


def _take_over(files: tuple[str, str, str]) -> None:
    """Put the user's files in place of the connection to srun, which ends with csub."""
    output, error, source = files
    try:
        descriptor = os.open(source, os.O_RDONLY)
    except OSError:
        descriptor = os.open(os.devnull, os.O_RDONLY)
    os.dup2(descriptor, 0)
    flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK
    ours = os.open(output, flags)
    os.dup2(ours, 1)
    os.dup2(ours if error == output else os.open(error, flags), 2)
    for number in (0, 1, 2):
        os.set_blocking(number, True)


if __name__ == "__main__":
    sys.exit(main())

# SPDX-License-Identifier: Apache-2.0
"""The program of a pack's job: ``python -I -m slurm_colloc.pack.job SCRIPT`` runs the tasks that SCRIPT names.

Its exit status is 0 if every task succeeded, 1 if one did not, 2 for a pack that cannot be run, 143 when it was
stopped.
"""

import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress

from slurm_colloc.core.errors import CollocError, InputError, StoreError
from slurm_colloc.core.process import given_environment
from slurm_colloc.gpu.failure import Outcome
from slurm_colloc.pack.attempt import TaskFiles
from slurm_colloc.pack.ledger import LedgerWriter, is_restart, ledger_path, read_ledger
from slurm_colloc.pack.loop import Loop, Signals
from slurm_colloc.pack.mps_daemon import short_folder
from slurm_colloc.pack.resume import beginning, forget_resumed, keep_script
from slurm_colloc.pack.run import Run
from slurm_colloc.pack.shared_gpu import SharedGpu
from slurm_colloc.pack.spec import Spec, from_json, split_script
from slurm_colloc.pack.srun import Job, read_job
from slurm_colloc.slurm.job_files import job_name

STOPPED_STATUS = 128 + signal.SIGTERM


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run the pack in the batch script ``argv[0]`` and return the exit status of its job."""
    try:
        return _run(argv, environ)
    except CollocError as error:
        _say(f"error: {error}")
        return error.exit_status


def _run(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    if len(argv) != 1:
        raise InputError("the program of a pack is called with its batch script alone; submit packs with csub")
    content, spec, script = read_pack(argv[0])
    if spec.jobs == 1:  # its variables of an array are those of the job that submitted it
        environ = {name: environ[name] for name in environ if not name.startswith("SLURM_ARRAY_")}
    signals = Signals()
    tasks = spec.tasks(int(environ.get("SLURM_ARRAY_TASK_ID") or 0))
    goes_on, done = _before(spec, environ)
    undone = [task for task in tasks if task.number not in done]
    if undone and spec.together:
        undone = [*tasks]
    job = read_job(environ, os.sched_getaffinity(0), spec.room.tasks, os.getcwd())
    with ExitStack() as held:
        if spec.resumes and not goes_on:
            _look_for_another(spec, job, held)
        ledger = _open_ledger(spec, job, environ, goes_on=goes_on)
    try:  # Slurm removes it with the job
        keep_script(job.cluster, job.array_job_id, content)
    except (StoreError, InputError) as error:
        _say(f"the script cannot be kept, and --resume will not be possible: {error}")
    folder, gpu = short_folder(job.job_id, environ), None
    try:
        gpu = SharedGpu(job.job_id, spec.room.tasks, environ, ledger.note)
        loop = Loop(Run(spec, job, gpu, ledger, environ, TaskFiles(spec, job, folder, script)), undone)
        loop.run(signals)
    finally:
        if gpu is not None:
            gpu.quit()
        ledger.close()
        shutil.rmtree(folder, ignore_errors=True)
    # Its reader may have gone.
    with suppress(OSError):
        sys.stdout.write(loop.summary(len(tasks) - len(undone)))
        if not (loop.all_done or spec.together):
            sys.stdout.write(f"  to run what is missing: csub pack --resume={job.array_job_id}\n")
        sys.stdout.flush()
    if loop.stopped:
        return STOPPED_STATUS
    return 0 if loop.all_done else 1


def read_pack(path: str) -> tuple[bytes, Spec, bytes]:
    """Return a pack's batch script, what it says of the pack, and the user's own script, empty where it has none.

    Raises:
        InputError: it is no pack's.
        StoreError: it cannot be read.
    """
    try:
        with open(path, "rb") as stream:
            content = stream.read()
    except OSError as error:
        raise StoreError(f"batch script '{path}' cannot be read: {error.strerror}") from error
    try:
        _, line, script = split_script(content)
        spec = from_json(line)
    except InputError as error:
        raise InputError(f"batch script '{path}': {error}") from error
    if not spec.commands and not script:
        raise InputError(f"batch script '{path}' has neither commands nor a script to run")
    return content, spec, script


def _before(spec: Spec, environ: Mapping[str, str]) -> tuple[bool, set[int]]:
    """Return whether Slurm requeued this job, and the tasks that succeeded before that."""
    if not is_restart(environ):
        return False, set()
    try:
        before = read_ledger(ledger_path(environ.get("SLURM_CLUSTER_NAME", ""), job_name(environ)))
        is_own = before.spec == spec  # not an earlier job of the same id; the first run of this one wrote nothing
        return is_own, {task.number for task in before.tasks if is_own and task.outcome is Outcome.DONE}
    except (StoreError, InputError) as error:
        _say(f"{error}: this job was requeued, and every task is run anew")
        return True, set()


def _look_for_another(spec: Spec, job: Job, held: ExitStack) -> None:
    """Hold off other jobs that resume the same pack.

    Raises:
        InputError: one of them has begun.
    """
    before = ""
    try:
        before = held.enter_context(beginning(job.cluster, job.array_job_id, spec.resumes))
    except (StoreError, InputError) as error:
        _say(f"{error}: whether another job resumes job {spec.resumes} as well is not known")
    if before:
        raise InputError(f"job {before} runs what is missing of job {spec.resumes} already, so this one runs nothing")


def _open_ledger(spec: Spec, job: Job, environ: Mapping[str, str], *, goes_on: bool) -> LedgerWriter:
    """Return the ledger with its header written; none, and a word about it, where there can be none."""
    names = ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT", "SLURM_CLUSTER_NAME")
    facts = {name: environ[name] for name in names if name in environ} | {"node": job.node, "folder": job.folder}
    try:
        ledger = LedgerWriter(ledger_path(job.cluster, job_name(environ)), _say, anew=not goes_on)
        if not goes_on:
            forget_resumed(job.cluster, job.array_job_id)
        ledger.header(spec, facts)
        return ledger
    except (StoreError, InputError) as error:
        _say(f"{error}: what happens to the tasks is not written down, and --resume will not be possible")
        return LedgerWriter("", _say)


def _say(text: str) -> None:
    with suppress(OSError):
        os.write(2, f"csub pack: {text}\n".encode(errors="replace"))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], given_environment()))

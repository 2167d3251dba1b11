# SPDX-License-Identifier: Apache-2.0
"""Makes the facts of many days as Slurm jobs (submitit), with the queries of facts.py."""

import logging
import os
import shlex
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from time import sleep

from slurm_colloc.core.clock import ticking
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.errors import InputError, ProcessError, StoreError
from slurm_colloc.core.process import ask
from slurm_colloc.facts.compact import Task, make_one
from slurm_colloc.facts.day_facts import facts_path
from slurm_colloc.slurm.clean_environment import unfiltered
from slurm_colloc.store.parquet import hours_in, told_by
from slurm_colloc.store.store import Store
from slurm_colloc.store.window import Step

LOCAL, SLURM = "local", "slurm"
ENGINES = (LOCAL, SLURM)
_NAME = "colloc-facts"
# MaxArraySize is 1001 where a site does not say otherwise.
_ARRAY_SIZE = 1000
# A day takes minutes on two CPUs; rows that do not fit into the memory are spilled beside the store.
_CPUS, _MEM_MIB, _LIMIT_MIN, _JOBS_AT_ONCE = 2, 4096, 60, 32
_WAIT_S = 4 * 3600.0
_LONGEST_PAUSE_S = 10.0
_ASK_S = 60.0


def make_by_slurm(
    store: Store, tasks: Sequence[Task], now_s: float, step: Step, config: SiteConfig | None
) -> list[str]:
    """Make the facts of these days, each by a job of Slurm's; return what failed, which the next run makes.

    Raises:
        InputError: submitit is not installed.
        StoreError: the store belongs to somebody else.
        ProcessError: sbatch refuses the jobs, or the days are not made in time.
    """
    if find_spec("submitit") is None:
        raise InputError("--engine slurm submits by submitit, which is not here: pip install submitit")
    owner = os.stat(store.samples.folder).st_uid
    if owner != os.geteuid():
        # Results are pickles: a user who can write there could run anything as the user who reads them.
        raise StoreError(f"store '{store.samples.folder}' belongs to uid {owner}: run this as that user")
    with store.samples.work("facts") as folder:
        if folder is None:
            return [f"another run makes facts in '{store.samples.folder}'"]
        try:
            _submit(store, tasks[:_ARRAY_SIZE], now_s, config, os.path.join(folder, "logs"))
            _wait(store, tasks[:_ARRAY_SIZE], step)
        finally:
            # Jobs are cancelled by name, since an interrupt may come between the submission and the answer to it.
            ask(["scancel", *_mine()], _ASK_S, unfiltered(os.environ))
        missing = [task.day for task in tasks if not _is_made(store, task)]
        return [f"the facts of {day} were not made; logs: '{folder}/logs'" for day in missing]


def make_day(folder: str, config: SiteConfig | None, task: Task, now_s: float) -> None:
    """Make the facts of one day, as a job does."""
    store = Store(folder, config)
    with store.samples.work("facts", task.cluster, task.day) as work:
        if work is not None:
            make_one(store, task, now_s, work)


def _is_made(store: Store, task: Task) -> bool:
    path = facts_path(store.samples.folder, task.cluster, task.day)
    # A client of NFS asks its server for a folder's names when it has itself changed the folder.
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.utime(os.path.dirname(path))
    return os.path.exists(path) and (hours_in([path])[path], told_by([path], "runs").get(path)) == (
        task.hours,
        task.digest,
    )


def _wait(store: Store, tasks: Sequence[Task], step: Step) -> None:
    """Wait until all days are made, or none of the jobs is left."""
    deadline_s, pause_s = ticking() + _WAIT_S, 0.5
    while True:
        # Asked first: a job that has left the queue has left its facts, too.
        queued = _queued()
        done = sum(_is_made(store, task) for task in tasks)
        step(done, len(tasks))
        if done == len(tasks) or queued == 0:
            return
        if ticking() > deadline_s:
            raise ProcessError(
                f"{len(tasks) - done} of {len(tasks)} days were not made within {_WAIT_S / 3600:g} h; their jobs are "
                "cancelled, and the next run makes what is missing"
            )
        sleep(pause_s)
        pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)


def _queued() -> int | None:
    """Return how many jobs may still make a day (completing ones have ended), None where slurmctld does not say."""
    question = ["squeue", "-h", "-r", "-t", "PENDING,CONFIGURING,RUNNING,SUSPENDED", "-o", "%i", *_mine()]
    try:
        return len(ask(question, _ASK_S, unfiltered(os.environ)).split())
    except ProcessError:  # it may be restarted meanwhile
        return None


def _mine() -> tuple[str, str]:
    return f"--user={os.geteuid()}", f"--name={_NAME}"


def _submit(store: Store, tasks: Sequence[Task], now_s: float, config: SiteConfig | None, logs: str) -> None:
    """Submit an array with a job for each day, where SBATCH_PARTITION, SBATCH_ACCOUNT and SBATCH_QOS say.

    Raises:
        ProcessError: sbatch does not take it.
    """
    import submitit  # a tenth of a second, and most runs are made without

    # It sets up handlers of its own, one of them to standard output.
    logging.getLogger("submitit").handlers.clear()
    try:
        # -P: files in the folder in which somebody calls this are not imported.
        executor = submitit.SlurmExecutor(logs, python=f"{shlex.quote(sys.executable)} -P")
        executor.update_parameters(
            job_name=_NAME,
            cpus_per_task=_CPUS,
            mem=f"{_MEM_MIB}M",
            time=_LIMIT_MIN,
            array_parallelism=_JOBS_AT_ONCE,
            wckey=None,
            # A step would not be given the job's CPUs (22.05 and later), and one process needs none.
            use_srun=False,
            additional_parameters={"no-requeue": True},
        )
        folder, many = os.path.abspath(store.samples.folder), len(tasks)
        executor.map_array(make_day, [folder] * many, [config] * many, tasks, [now_s] * many)
    except RuntimeError as error:
        last_line = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise ProcessError(f"{len(tasks)} jobs were not taken: {last_line}; $SBATCH_PARTITION says where to") from error

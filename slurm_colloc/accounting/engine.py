# SPDX-License-Identifier: Apache-2.0
"""The days of a sweep as jobs of one's own Slurm: the queries are sweep.py's, and only where they run differs.

    work/sweep/<key>/runs.parquet            what the submitter found, seen from its ``now``; workers decide nothing
    work/sweep/<key>/days/<day>/             the parts of one day, there whole or not at all
    work/sweep/<key>/logs/                   what submitit and the workers wrote

The key names window, input files and code, so that whoever asks for the same again finds the days that are done.
"""

import hashlib
import logging
import os
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from inspect import getmodule, getsource
from tempfile import TemporaryDirectory
from time import sleep
from typing import NamedTuple

from duckdb import DuckDBPyConnection

from slurm_colloc.accounting import day_queries, over_time, sample_tables, samples, sweep
from slurm_colloc.accounting.day_queries import make_parts, parts_of
from slurm_colloc.accounting.over_time import Bins, make_bins
from slurm_colloc.accounting.parquet import broken, connection, entries, parquet_files, read, write
from slurm_colloc.accounting.sample_tables import TABLES
from slurm_colloc.accounting.store import Store
from slurm_colloc.accounting.sweep import Window, day_parts, find_near, find_runs, merge
from slurm_colloc.clock import now, ticking
from slurm_colloc.config import Engine
from slurm_colloc.errors import InputError, ProcessError, StoreError
from slurm_colloc.files import PRIVATE_FILE, locked, private_folder, sync_folder
from slurm_colloc.process import ask
from slurm_colloc.slurm.unfiltered import unfiltered
from slurm_colloc.units import mib_of_gib

# Local is ``sweep`` itself, with DuckDB's threads: 12 days (10 million rows) on two cores took them 2.9 s and 2.1 s of
# CPU, and two processes with one thread each 4.0 s and 2.9 s, because each starts, and reads the runs, anew.
LOCAL, SLURM = "local", "slurm"
ENGINES = (LOCAL, SLURM)
Tell = Callable[[str], None]

_TRIES = 3
# MaxArraySize is 1001 where a site does not say otherwise.
_ARRAY_SIZE = 1000
_KEPT_S = 7 * 86_400
_LONGEST_PAUSE_S = 10.0
_ASK_S = 60.0
# What DuckDB allocates besides its buffers is not in its limit, and Slurm kills for it.
_FOR_BUFFERS = 0.7


class Task(NamedTuple):
    """What all days have in common: the submitter fixes it, and ``now`` with it."""

    store: str
    window: Window
    folder: str
    threads: int
    memory_mib: int
    bins: Bins | None = None

    @property
    def days(self) -> str:
        """Return the folder of the days that are done."""
        return os.path.join(self.folder, "days")

    @property
    def logs(self) -> str:
        """Return the folder of the workers' logs."""
        return os.path.join(self.folder, "logs")

    @property
    def name(self) -> str:
        """Return what its jobs are called."""
        return f"colloc-{os.path.basename(self.folder)}"

    def of_day(self, day: str) -> str:
        """Return the folder of one day's parts."""
        return os.path.join(self.days, day)


def part_of_day(task: Task, day: str) -> str:
    """Make the parts of what was sampled on ``day``, in a folder that appears whole, and return it.

    Raises:
        StoreError: the store cannot be read, or the parts not be written.
    """
    made = task.of_day(day)
    with TemporaryDirectory(".new", dir=task.days, ignore_cleanup_errors=True) as work:
        parts = os.path.join(work, "parts")
        try:
            with connection(work, task.threads, f"{task.memory_mib}MiB") as database:
                database.execute(f"CREATE TEMP TABLE runs AS FROM {read([_runs_file(task)])}")
                if task.bins:
                    make_bins(database, task.bins)
                day_parts(database, Store(task.store), task.window, day, task.bins)
                for name in parts_of(task.bins):
                    write(database, f"FROM day_{name}", _part_file(parts, name), {}, work, PRIVATE_FILE, level=1)
        except StoreError as error:
            raise StoreError(broken(_inputs(Store(task.store), task.window, day)) or str(error)) from error
        try:
            os.rename(parts, made)
            sync_folder(task.days)
        except OSError as error:
            # A worker that was taken for lost may have come first.
            if not os.path.isdir(made):
                raise StoreError(f"folder '{made}' cannot be made: {error.strerror}") from error
    return made


def sweep_by_slurm(
    database: DuckDBPyConnection,
    store: Store,
    window: Window,
    engine: Engine,
    tell: Tell,
    bins: Bins | None = None,
) -> None:
    """Make what ``sweep`` makes, each day by a job of Slurm's, but for those that an earlier call has made.

    Raises:
        InputError: submitit is not installed.
        StoreError: the store belongs to somebody else, or cannot be read or written.
        ProcessError: sbatch refuses the jobs, days fail again and again, or they are not made in time.
    """
    if find_spec("submitit") is None:
        raise InputError("--engine slurm submits by submitit, which is not here: pip install submitit")
    owner = os.stat(store.samples.folder).st_uid
    if owner != os.geteuid():
        # Results are pickles: whoever can write there could run anything as whoever reads them.
        raise StoreError(
            f"store '{store.samples.folder}' belongs to uid {owner}; jobs of an engine work in it as whoever submits "
            "them: run this as that user, or with --engine local"
        )
    with store.samples.work("sweep") as above:
        _forget(above or "")
    key = _key(database, store, window, bins)
    with store.samples.work("sweep", key) as folder:
        if folder is None:
            raise StoreError("another run has this report made by jobs; wait for its end, or use --engine local")
        os.utime(folder)
        memory_mib = int(mib_of_gib(engine.mem_gib) * _FOR_BUFFERS)
        task = Task(os.path.abspath(store.samples.folder), window, folder, engine.cpus_per_job, memory_mib, bins)
        _fix_runs(database, task)
        make_parts(database, bins)
        days = store.samples.days(window.since_s, window.until_s)
        _make_days(task, days, engine, tell)
        for name in parts_of(bins) if days else ():
            files = [_part_file(task.of_day(day), name) for day in days]
            database.execute(f"INSERT INTO {name} FROM {read(files)}")
    merge(database, bins)


def _fix_runs(database: DuckDBPyConnection, task: Task) -> None:
    path = _runs_file(task)
    if os.path.exists(path):
        find_near(database, task.window)
    else:
        find_runs(database, task.window)
        write(database, "FROM runs", path, {}, task.folder, PRIVATE_FILE)
        database.execute("DROP TABLE runs")
    database.execute(f"CREATE TEMP TABLE runs AS FROM {read([path])}")


def _runs_file(task: Task) -> str:
    return os.path.join(task.folder, "runs.parquet")


def _part_file(folder: str, name: str) -> str:
    return os.path.join(folder, f"{name}.parquet")


def _key(database: DuckDBPyConnection, store: Store, window: Window, bins: Bins | None) -> str:
    """Return what tells this work from other work: ``now`` is not in it, since whoever asked first has fixed that."""
    paths = [*_inputs(store, window), *parquet_files(os.path.join(store.samples.folder, "allocations"))]
    found = [(path, os.stat(path).st_size, os.stat(path).st_mtime_ns) for path in sorted(paths)]
    worths = database.execute("FROM worths ORDER BY ALL").fetchall()
    told = hashlib.sha256(repr((window[:2], bins, found, worths)).encode(errors="surrogateescape"))
    # Those that a day's part is made by: which rows there are of it is the store's to say.
    for module in (samples, sample_tables, sweep, day_queries, over_time, getmodule(Store)):
        assert module is not None
        told.update(getsource(module).encode())
    return told.hexdigest()[:16]


def _inputs(store: Store, window: Window, day: str | None = None) -> list[str]:
    """Return the files of samples that are read, those of one ``day`` where it is given."""
    counting = [store.samples.files(table, window.since_s, window.until_s, day) for table in TABLES]
    return [path for by_grain in counting for paths in by_grain.values() for path in paths]


def _forget(folder: str) -> None:
    """Remove the work that nobody has asked for in a week."""
    for entry in entries(folder) if folder else ():
        if entry.is_dir(follow_symlinks=False) and entry.stat().st_mtime < now() - _KEPT_S:
            with locked(os.path.join(entry.path, "lock")) as held:
                if held:
                    shutil.rmtree(entry.path)


def _make_days(task: Task, days: Sequence[str], engine: Engine, tell: Tell) -> None:
    """Submit what is missing until nothing is."""
    private_folder(task.days)
    deadline_s = ticking() + engine.wait_min * 60
    tries: Counter[str] = Counter()
    # Of a submitter that was killed.
    _cancel(task)
    for left in entries(task.days):
        if left.name.endswith(".new"):
            shutil.rmtree(left.path, ignore_errors=True)
    missing = _missing(task, days)
    if len(missing) < len(days):
        tell(f"{len(days) - len(missing)} of {len(days)} days are there already")
    try:
        while missing:
            if worn := [day for day in missing if tries[day] >= _TRIES]:
                raise ProcessError(
                    f"{_TRIES} jobs each did not make the parts of {', '.join(worn)}; their logs lie in '{task.logs}'"
                )
            asked = missing[:_ARRAY_SIZE]
            tries.update(asked)
            _submit(task, asked, engine)
            _wait(task, days, deadline_s, tell)
            missing = _missing(task, days)
            if lost := sorted(set(asked) & set(missing)):
                tell(f"no job is left for {', '.join(lost)}; logs: '{task.logs}'")
    finally:
        if missing:
            _cancel(task)


def _missing(task: Task, days: Sequence[str]) -> list[str]:
    # A client of NFS asks its server for a folder's names when it has itself changed the folder.
    os.utime(task.days)
    there = {entry.path for entry in entries(task.days)}
    return [day for day in days if task.of_day(day) not in there]


def _wait(task: Task, days: Sequence[str], deadline_s: float, tell: Tell) -> None:
    """Wait until all days are made, or none of the jobs is left."""
    pause_s, told = 0.5, ""
    while True:
        # Asked first: what has left the queue has left its parts, too.
        queued = _queued(task)
        missing = _missing(task, days)
        if not missing or queued == 0:
            return
        left = "slurmctld does not answer" if queued is None else f"{queued} jobs left"
        if (progress := f"{len(days) - len(missing)} of {len(days)} days made, {left}") != told:
            tell(told := progress)
        if ticking() > deadline_s:
            raise ProcessError(
                f"{len(missing)} of {len(days)} days were not made within engine.wait_min of site.toml; their jobs are "
                "cancelled, and the same call goes on with what is there"
            )
        sleep(pause_s)
        pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)


def _queued(task: Task) -> int | None:
    """Return how many jobs may still make a day (completing ones have ended), None where slurmctld does not say."""
    states = "PENDING,CONFIGURING,RUNNING,SUSPENDED"
    try:
        return len(
            ask(["squeue", "-h", "-r", "-t", states, "-o", "%i", *_mine(task)], _ASK_S, unfiltered(os.environ)).split()
        )
    except ProcessError:  # it may be restarted meanwhile
        return None


def _cancel(task: Task) -> None:
    # By name, since an interrupt may come between the submission and the answer to it.
    ask(["scancel", *_mine(task)], _ASK_S, unfiltered(os.environ))


def _mine(task: Task) -> tuple[str, str]:
    return f"--user={os.geteuid()}", f"--name={task.name}"


def _submit(task: Task, days: Sequence[str], engine: Engine) -> None:
    """Submit an array with a job for each day.

    Raises:
        ProcessError: sbatch does not take it.
    """
    import submitit  # a tenth of a second, and most reports are made without

    # It sets up handlers of its own, one of them to standard output.
    logging.getLogger("submitit").handlers.clear()
    try:
        # -P: what lies in the folder in which somebody asks for a report is not imported.
        executor = submitit.SlurmExecutor(task.logs, python=f"{shlex.quote(sys.executable)} -P")
        executor.update_parameters(
            job_name=task.name,
            partition=engine.partition or None,
            account=engine.account or None,
            qos=engine.qos or None,
            cpus_per_task=engine.cpus_per_job,
            mem=f"{mib_of_gib(engine.mem_gib)}M",
            time=engine.time_min,
            array_parallelism=engine.jobs_at_once,
            wckey=None,
            # A step would not be given the job's CPUs (22.05 and later), and one process needs none.
            use_srun=False,
            additional_parameters={"no-requeue": True},
        )
        executor.map_array(part_of_day, [task] * len(days), days)
    except RuntimeError as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[-1]
        raise ProcessError(f"{len(days)} jobs were not taken: {said}; see [engine] in site.toml") from error

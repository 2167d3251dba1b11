# SPDX-License-Identifier: Apache-2.0
"""Facts made by jobs: they are those of one machine, whatever becomes of the jobs."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pytest

from slurm_colloc.core.config import Observe
from slurm_colloc.core.errors import InputError, ProcessError, StoreError
from slurm_colloc.core.model import Gres
from slurm_colloc.facts import engine as engine_module
from slurm_colloc.facts.compact import Compacted, Task, compact
from slurm_colloc.facts.engine import make_by_slurm
from slurm_colloc.store.store import Store
from slurm_colloc.store.window import ignore
from tests.unit.golden import Printed
from tests.unit.made import HOUR, host, run
from tests.unit.programs import colloc, program
from tests.unit.stored import busy, job_usage, sampled

CHECKOUT = Path(__file__).resolve().parents[2]
DAY_S = 24 * HOUR
DAYS = ["1970-01-01", "1970-01-02", "1970-01-04"]

# Each task is a process in the background; those in "lose", as <array id>_<task>, are gone at once, "stay" never run.
SBATCH = """
[ ! -e "$QUEUE/refuse" ] || { echo "sbatch: error: invalid partition specified: nope" >&2; exit 1; }
job=$(($(cat "$QUEUE/last") + 1)); echo $job >"$QUEUE/last"
script=$QUEUE/script.$job; cp "$1" "$script"  # as sbatch does: submitit renames its file once it has the answer
last=$(sed -n 's/^#SBATCH --array=0-\\([0-9]*\\).*/\\1/p' "$1")
for task in $(seq 0 "${last:-0}"); do
    name=$job${last:+_$task}
    grep -qx "$name\\|all" "$QUEUE/lose" && continue
    : >"$QUEUE/jobs/$name"
    [ ! -e "$QUEUE/stay" ] || continue
    [ -z "$last" ] || export SLURM_ARRAY_JOB_ID=$job SLURM_ARRAY_TASK_ID=$task
    (SLURM_JOB_ID=$job bash "$script" >"$QUEUE/log.$name" 2>&1; rm -f "$QUEUE/jobs/$name") >/dev/null 2>&1 </dev/null &
done
echo "Submitted batch job $job"
"""


class Queue:
    """What the made-up Slurm knows."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "jobs").mkdir(parents=True)
        (folder / "last").write_text("100\n")
        (folder / "lose").write_text("")

    @property
    def submitted(self) -> int:
        return int((self.folder / "last").read_text()) - 100

    def jobs(self) -> list[str]:
        return sorted(os.listdir(self.folder / "jobs"))


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    made = Queue(tmp_path / "queue")
    monkeypatch.setenv("QUEUE", str(made.folder))
    monkeypatch.setenv("PYTHONPATH", str(CHECKOUT))
    program(tmp_path, "sbatch", SBATCH, monkeypatch)
    program(tmp_path, "srun", "exit 1\n", monkeypatch)  # submitit only looks whether there is one
    # What the user set for what he types himself hides these jobs.
    monkeypatch.setenv("SQUEUE_PARTITION", "another")
    monkeypatch.setenv("SCANCEL_NAME", "another")
    program(tmp_path, "squeue", '[ -n "$SQUEUE_PARTITION" ] || ls "$QUEUE/jobs"\n', monkeypatch)
    cancel = '[ -n "$SCANCEL_NAME" ] || { echo "$@" >>"$QUEUE/cancelled"; rm -f "$QUEUE"/jobs/*; }\n'
    program(tmp_path, "scancel", cancel, monkeypatch)
    yield made
    deadline = time.monotonic() + 60
    while made.jobs() and not (made.folder / "stay").exists() and time.monotonic() < deadline:
        time.sleep(0.05)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Three days, a run of two GPUs over all of them, one that still runs, and one without samples."""
    found = Store(str(tmp_path / "store"))
    rows = [
        run(start_s=0, end_s=int(3.2 * DAY_S), gres=(Gres("gpu", "h100", 2),)),
        run("2", start_s=DAY_S, end_s=None, state="RUNNING", user="bob"),
        run("3", start_s=2 * DAY_S, end_s=3 * DAY_S, user="eve"),
    ]
    found.write_allocations("a", rows, 4e5)
    found.write_log("a", {"rows_in": 1, "used": 1, "steps": 0, "rejected": {}})
    hours = [float(day * DAY_S + hour * HOUR) for day in (0, 1, 3) for hour in (1, 2, 5)]
    rounds = [*busy(*hours, util=33.3, sm=7.77), *busy(*hours, uuid="GPU-1", util=90.1, mib=500)]
    rounds += [one._replace(hosts=(host(),)) for one in busy(*hours[3:], job="2", uuid="GPU-2", sm=None)]
    sampled(found, rounds)
    return found


NOW_S = 6.0 * DAY_S


def by_jobs(store: Store) -> Compacted:
    make = partial(make_by_slurm, config=None)
    done = compact(store, Observe(), NOW_S, True, make=make)
    assert done is not None
    return done


def facts(store: Store) -> dict[str, list[tuple[Any, ...]]]:
    paths = sorted(Path(store.samples.folder).glob("facts/c/*.parquet"))
    with duckdb.connect() as database:
        return {path.stem: database.execute(f"SELECT * FROM '{path}' ORDER BY ALL").fetchall() for path in paths}


def damage(store: Store) -> None:
    """Spoil pages of the second day, of which a look at the file's footer tells nothing."""
    path = Path(store.samples.folder, "samples/c/1970-01-02/g1/raw.parquet")
    content = path.read_bytes()
    path.write_bytes(content[:4] + b"x" * 300 + content[304:])


def test_facts_are_those_that_are_made_here(store: Store, queue: Queue, tmp_path: Path) -> None:
    shutil.copytree(store.samples.folder, tmp_path / "here")
    here = Store(str(tmp_path / "here"))
    assert compact(here, Observe(), NOW_S, True)
    before = job_usage(store, 0, 4 * DAY_S, NOW_S)
    assert by_jobs(store).errors == ()
    assert list(facts(store)) == DAYS
    assert facts(store) == facts(here)
    assert job_usage(store, 0, 4 * DAY_S, NOW_S) == before
    assert queue.submitted == 1, "one array"
    assert by_jobs(store).written == 0
    script = next(Path(store.samples.folder).glob("work/facts/logs/*_submission.sh")).read_text()
    assert "#SBATCH --array=0-2%3\n" in script
    assert "#SBATCH --mem=4096M\n" in script
    given = {line.split("=")[0].removeprefix("#SBATCH --") for line in script.splitlines()}
    assert not given & {"partition", "account", "qos", "wckey"}


def test_days_that_are_lost_are_named_and_made_by_the_next_run(store: Store, queue: Queue, printed: Printed) -> None:
    (queue.folder / "lose").write_text("101_0\n")
    (error,) = by_jobs(store).errors
    printed("compact", error)
    assert list(facts(store)) == DAYS[1:]
    (queue.folder / "lose").write_text("")
    assert by_jobs(store).errors == ()
    assert (queue.submitted, list(facts(store))) == (2, DAYS)


def test_a_worker_says_why_in_its_log(store: Store, queue: Queue) -> None:
    compact(store, Observe(), NOW_S, True)
    shutil.rmtree(Path(store.samples.folder, "facts"))
    damage(store)
    (error,) = by_jobs(store).errors
    assert DAYS[1] in error
    said = "".join(path.read_text() for path in queue.folder.glob("log.*"))
    assert f"samples/c/{DAYS[1]}/g1/raw.parquet'" in said


def test_an_interrupted_run_leaves_no_jobs(store: Store, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    (queue.folder / "stay").touch()
    with monkeypatch.context() as patched:
        patched.setattr(engine_module, "sleep", interrupt)
        with pytest.raises(KeyboardInterrupt):
            by_jobs(store)
    assert (queue.submitted, queue.jobs()) == (1, [])
    (queue.folder / "stay").unlink()
    assert by_jobs(store).errors == ()
    assert list(facts(store)) == DAYS


def test_the_wait_has_an_end(store: Store, queue: Queue, monkeypatch: pytest.MonkeyPatch, printed: Printed) -> None:
    times = iter((0.0, 14_401.0))
    monkeypatch.setattr(engine_module, "ticking", lambda: next(times))
    (queue.folder / "stay").touch()
    with printed.raises("compact", ProcessError, "3 of 3 days"):
        by_jobs(store)
    assert queue.jobs() == []


def test_a_slurmctld_that_is_restarted_does_not_end_the_wait(
    store: Store, queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = '[ -e "$QUEUE/asked" ] || { : >"$QUEUE/asked"; exit 1; }\nls "$QUEUE/jobs"\n'
    program(tmp_path, "squeue", answer, monkeypatch)
    assert by_jobs(store).errors == ()
    assert (queue.submitted, list(facts(store))) == (1, DAYS)


def test_what_sbatch_refuses(store: Store, queue: Queue, printed: Printed) -> None:
    (queue.folder / "refuse").touch()
    with printed.raises("compact", ProcessError, "nope"):
        by_jobs(store)


def test_an_engine_that_is_none(store: Store, printed: Printed) -> None:
    assert colloc("compact", "--store", store.samples.folder, "--engine", "spark") == 2
    printed("compact", colloc.err)


def test_without_the_library(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(InputError, match="pip install submitit"):
        by_jobs(store)


def test_only_the_stores_owner_has_jobs_work_in_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    uid = os.geteuid()
    task = Task("c", DAYS[0], ((), ()), {}, "")
    monkeypatch.setattr(os, "geteuid", lambda: uid + 1)
    with pytest.raises(StoreError, match=f"belongs to uid {uid}"):
        make_by_slurm(store, [task], NOW_S, ignore, None)

# SPDX-License-Identifier: Apache-2.0
"""Days made by jobs: the numbers are those of one machine, whatever becomes of the jobs."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from slurm_colloc.accounting import engine as engine_module
from slurm_colloc.accounting.day_queries import PARTS
from slurm_colloc.accounting.engine import Task, part_of_day, sweep_by_slurm
from slurm_colloc.accounting.store import Store
from slurm_colloc.accounting.sweep import Window, job_usage, sweep, usages_of
from slurm_colloc.config import Engine
from slurm_colloc.errors import ProcessError, StoreError
from slurm_colloc.measured import JobUsage
from slurm_colloc.model import Gres
from tests.unit.made import HOUR, host, run
from tests.unit.programs import colloc, program
from tests.unit.stored import busy, sampled

CHECKOUT = Path(__file__).resolve().parents[2]
DAY_S = 24 * HOUR
DAYS = ["1970-01-01", "1970-01-02", "1970-01-04"]
WINDOW = ("--since", "1970-01-01T00:10:00+00:00", "--until", "1970-01-05T00:00:00+00:00")
EDGES_S = (600.0, 4.0 * DAY_S)

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


def reported(store: Store, *more: str, capsys: pytest.CaptureFixture[str], form: str = "json") -> tuple[int, str, str]:
    argv = ["--store", store.samples.folder, "--format", form, *WINDOW, *more]
    capsys.readouterr()
    status = colloc("report", *argv)
    said = capsys.readouterr()
    return status, said.out, said.err


def by_jobs(store: Store, now_s: float = 1e6, wait_min: float = 5.0) -> list[JobUsage]:
    with store.connect(*EDGES_S) as database:
        sweep_by_slurm(database, store, Window(*EDGES_S, now_s), Engine(wait_min=wait_min), print)
        return usages_of(database)


def test_what_runs_did_alone_is_the_same(store: Store, queue: Queue) -> None:
    found = []
    store.write_allocations("b", [run("4", start_s=2 * HOUR, end_s=30 * HOUR, node_list="g1")], 4e5)
    sampled(store, busy(3.0 * HOUR, 26.0 * HOUR, job="4", uuid="GPU-4", sm=30.0))
    window = Window(*EDGES_S, 1e6)
    for by_engine in (False, True):
        with store.connect(*EDGES_S) as database:
            if by_engine:
                sweep_by_slurm(database, store, window, Engine(wait_min=5.0), lambda _: None)
            else:
                sweep(database, store, window)
            query = "SELECT alone_us, alone_fix / alone_us / 65536 FROM unit_parts JOIN runs USING (run)"
            found.append(database.execute(f"{query} WHERE job_id_raw = '4' ORDER BY ALL").fetchall())
    assert found[0] == found[1] == [(900_000_000, 30.0)] * 2


def test_charts_are_the_same_to_the_last_byte(store: Store, queue: Queue, capsys: pytest.CaptureFixture[str]) -> None:
    local = reported(store, "--charts", capsys=capsys)
    assert local[0] == 0, local[2]
    assert reported(store, "--engine", "slurm", capsys=capsys)[:2] == reported(store, capsys=capsys)[:2]
    status, out, _ = reported(store, "--charts", "--engine", "slurm", capsys=capsys)
    assert (status, out) == (0, local[1])
    assert queue.submitted == 2, "days that were made without charts have none"
    shown = json.loads(out)
    used = [piece["util_used_gpu_hours"] or 0.0 for piece in shown["charts"]["over_time"]]
    assert sum(used) == pytest.approx(shown["total"]["util_used_gpu_hours"])


def damage(store: Store) -> None:
    """Spoil pages of the second day, of which a look at the file's footer tells nothing."""
    path = Path(store.samples.folder, "samples/c/1970-01-02/g1/01.parquet")
    content = path.read_bytes()
    path.write_bytes(content[:4] + b"x" * 300 + content[304:])


def folders(store: Store) -> list[Path]:
    return sorted(path for path in Path(store.samples.folder, "work/sweep").iterdir() if path.is_dir())


def test_the_report_is_the_same_to_the_last_byte(
    store: Store, queue: Queue, capsys: pytest.CaptureFixture[str]
) -> None:
    for by in ("user", "gpu"):
        local = reported(store, "--by", by, capsys=capsys)
        assert local[0] == 0, local[2]
        status, out, told = reported(store, "--by", by, "--engine", "slurm", capsys=capsys)
        assert (status, out) == (0, local[1])
    assert json.loads(out)["total"]["util_used_gpu_hours"] > 1
    assert queue.submitted == 1, "one array, and by another column nothing anew"
    assert "name this window: --since 1970-01-01T00:10:00+00:00 --until 1970-01-05T00:00:00+00:00" in told
    assert "3 of 3 days are there already" in told
    (folder,) = folders(store)
    assert sorted(os.listdir(folder / "days")) == DAYS
    assert {path.stat().st_mode & 0o077 for path in [folder, *folder.glob("days/*/*"), folder / "runs.parquet"]} == {0}
    script = next(folder.glob("logs/*_submission.sh")).read_text()
    assert "#SBATCH --array=0-2%3\n" in script
    assert "#SBATCH --mem=4096M\n" in script
    given = {line.split("=")[0].removeprefix("#SBATCH --") for line in script.splitlines()}
    assert not given & {"partition", "account", "qos", "wckey"}


def test_what_a_site_says_of_its_jobs(store: Store, queue: Queue) -> None:
    (queue.folder / "lose").write_text("all\n")
    asked = Engine("cpu", "staff", "low", cpus_per_job=3, mem_gib=0.7, time_min=7, jobs_at_once=2)
    with store.connect(*EDGES_S) as database, pytest.raises(ProcessError):
        sweep_by_slurm(database, store, Window(*EDGES_S, 1e6), asked, lambda _: None)
    (folder,) = folders(store)
    script = next(folder.glob("logs/*_submission.sh")).read_text()
    given = {"partition=cpu", "account=staff", "qos=low", "cpus-per-task=3", "mem=717M", "time=7", "array=0-2%2"}
    assert given <= {line.removeprefix("#SBATCH --") for line in script.splitlines()}


def test_days_that_are_lost_are_submitted_again(store: Store, queue: Queue, capsys: pytest.CaptureFixture[str]) -> None:
    (queue.folder / "lose").write_text("101_1\n102\n")
    status, out, told = reported(store, "--engine", "slurm", capsys=capsys)
    assert (status, out) == (0, reported(store, capsys=capsys)[1])
    assert queue.submitted == 3
    assert told.count("no job is left for 1970-01-02; logs: ") == 2


def test_days_that_are_always_lost_are_named(store: Store, queue: Queue, capsys: pytest.CaptureFixture[str]) -> None:
    (queue.folder / "lose").write_text("101_0\n102\n103\n")
    status, out, told = reported(store, "--engine", "slurm", capsys=capsys)
    assert (status, out, queue.submitted) == (2, "", 3)
    last = told.splitlines()[-1]
    assert "3 jobs each did not make the parts of 1970-01-01; their logs lie in '" in last
    assert Path(last.split("'")[1]).is_dir()
    (queue.folder / "lose").write_text("")
    assert reported(store, "--engine", "slurm", capsys=capsys)[0] == 0, "two days are there"
    assert queue.submitted == 4


def test_a_worker_says_why_in_its_log(store: Store, queue: Queue) -> None:
    damage(store)
    with pytest.raises(ProcessError, match="the parts of 1970-01-02; their logs lie in"):
        by_jobs(store)
    logs = list(queue.folder.glob("log.*"))
    said = "".join(path.read_text() for path in logs)
    assert "samples/c/1970-01-02/g1/01.parquet' cannot be read: " in said


def test_whoever_asks_again_sees_what_the_first_saw(store: Store, queue: Queue) -> None:
    """What still runs has run until the first one's now, in all days alike."""
    early_s = 1.5 * DAY_S
    first = job_usage(store, *EDGES_S, early_s)
    assert by_jobs(store, early_s) == first
    assert by_jobs(store, 1e6) == first != job_usage(store, *EDGES_S, 1e6)
    assert queue.submitted == 1


def test_what_was_interrupted_goes_on_where_it_stopped(
    store: Store, queue: Queue, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    (queue.folder / "stay").touch()
    with monkeypatch.context() as patched:
        patched.setattr(engine_module, "sleep", interrupt)
        assert reported(store, "--engine", "slurm", capsys=capsys)[0] == 130
    assert (queue.submitted, queue.jobs()) == (1, [])
    (folder,) = folders(store)
    asked = (queue.folder / "cancelled").read_text().splitlines()
    assert asked == [f"--user={os.geteuid()} --name=colloc-{folder.name}"] * 2, "what a killed one left, and its own"
    (queue.folder / "stay").unlink()
    window = Window(*EDGES_S, 1e6)
    part_of_day(Task(store.samples.folder, window, str(folder), 1, 500), DAYS[1])
    (folder / "days/x.new").mkdir()
    status, out, told = reported(store, "--engine", "slurm", capsys=capsys)
    assert (status, out) == (0, reported(store, capsys=capsys)[1])
    assert "1 of 3 days are there already" in told
    assert "#SBATCH --array=0-1%2\n" in (folder / "logs/102_submission.sh").read_text()
    assert sorted(os.listdir(folder / "days")) == DAYS


def test_a_store_that_has_changed_is_other_work(store: Store, queue: Queue) -> None:
    by_jobs(store)
    sampled(store, busy(DAY_S + 7.5 * HOUR))
    assert by_jobs(store) == job_usage(store, *EDGES_S, 1e6)
    assert (queue.submitted, len(folders(store))) == (2, 2)
    store.write_allocations("b", [run("9", DAY_S, 2 * DAY_S)], 4e5)
    assert by_jobs(store) == job_usage(store, *EDGES_S, 1e6)
    assert (queue.submitted, len(folders(store))) == (3, 3)


def test_old_work_is_removed(store: Store, queue: Queue) -> None:
    above = Path(store.samples.folder, "work/sweep")
    for name, age_days in (("old", 8), ("young", 6)):
        (above / name / "days").mkdir(parents=True)
        at_s = time.time() - age_days * DAY_S
        os.utime(above / name, (at_s, at_s))
    by_jobs(store)
    assert {path.name for path in folders(store)} & {"old", "young"} == {"young"}


def test_a_report_that_is_being_made_is_not_made_twice(
    store: Store, queue: Queue, capsys: pytest.CaptureFixture[str]
) -> None:
    by_jobs(store)
    (folder,) = folders(store)
    with store.samples.work("sweep", folder.name):
        status, _, told = reported(store, "--engine", "slurm", capsys=capsys)
    assert status == 2
    assert "wait for its end, or use --engine local" in told


def test_the_wait_has_an_end(store: Store, queue: Queue) -> None:
    (queue.folder / "stay").touch()
    with pytest.raises(ProcessError, match=r"3 of 3 days were not made within engine\.wait_min of site\.toml"):
        by_jobs(store, wait_min=0.0)
    assert queue.jobs() == []


def test_a_slurmctld_that_is_restarted_does_not_end_the_wait(
    store: Store, queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = '[ -e "$QUEUE/asked" ] || { : >"$QUEUE/asked"; exit 1; }\nls "$QUEUE/jobs"\n'
    program(tmp_path, "squeue", answer, monkeypatch)
    assert by_jobs(store) == job_usage(store, *EDGES_S, 1e6)
    assert queue.submitted == 1


def test_what_sbatch_refuses(store: Store, queue: Queue) -> None:
    (queue.folder / "refuse").touch()
    with pytest.raises(ProcessError, match=r"3 jobs were not taken: .*invalid partition specified: nope; see \[eng"):
        by_jobs(store)


def test_a_day_is_made_whole_or_not_at_all(store: Store, tmp_path: Path) -> None:
    task = _task(store, tmp_path)
    made = part_of_day(task, DAYS[0])
    assert sorted(os.listdir(made)) == sorted(f"{name}.parquet" for name in PARTS)
    before = {path.name: path.stat().st_ino for path in Path(made).iterdir()}
    assert part_of_day(task, DAYS[0]) == made, "by a worker that was taken for lost"
    assert {path.name: path.stat().st_ino for path in Path(made).iterdir()} == before
    damage(store)
    with pytest.raises(StoreError, match=r"1970-01-02/g1/01\.parquet' cannot be read: "):
        part_of_day(task, DAYS[1])
    assert os.listdir(task.days) == [DAYS[0]]


def _task(store: Store, tmp_path: Path) -> Task:
    task = Task(store.samples.folder, Window(*EDGES_S, 1e6), str(tmp_path / "made"), 1, 500)
    Path(task.days).mkdir(parents=True)
    with store.connect(*EDGES_S) as database:
        engine_module._fix_runs(database, task)
    return task


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (["--engine", "spark"], "--engine 'spark' is not one of local, slurm"),
        (["--engine", "slurm", "--sacct-file", "x"], "a sacct text has none"),
    ],
)
def test_what_cannot_be_asked(argv: Sequence[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert colloc("report", *argv) == 2
    assert reason in capsys.readouterr().err


def test_without_the_library(store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    status, _, told = reported(store, "--engine", "slurm", capsys=capsys)
    assert status == 2
    assert "pip install submitit" in told


def test_only_the_stores_owner_has_jobs_work_in_it(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    uid = os.geteuid()
    with monkeypatch.context() as patched:
        patched.setattr(os, "geteuid", lambda: uid + 1)
        status, _, told = reported(store, "--engine", "slurm", capsys=capsys)
    assert status == 2
    assert f"belongs to uid {uid}; jobs of an engine work in it as whoever submits them" in told

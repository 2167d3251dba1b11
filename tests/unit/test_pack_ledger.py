# SPDX-License-Identifier: Apache-2.0
import errno
import fcntl
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_colloc.core import clock
from slurm_colloc.core.errors import InputError, StoreError
from slurm_colloc.gpu.failure import Outcome
from slurm_colloc.pack.ledger import (
    LedgerWriter,
    TaskRecord,
    ledger_folder,
    ledger_path,
    missing,
    parse_entry,
    read_ledger,
    read_ledgers,
)
from slurm_colloc.pack.spec import Spec, Task
from slurm_colloc.pack.starts_and_retries import Start
from tests.cluster.packs import a_spec
from tests.unit.golden import Printed
from tests.unit.programs import umask

SPEC = a_spec(4, array="1-4", argv=("csub", "--pack", "job.sh"))
JOB = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "g1"}


@pytest.fixture(autouse=True)
def _a_clock_of_whole_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = iter(range(100, 100_000))
    monkeypatch.setattr(clock, "now", lambda: float(next(ticks)))


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "packs" / "c" / "7.jsonl")


def begun(number: int, attempt: int = 1) -> Start:
    return Start(Task(number), attempt, SPEC.load)


def begin(path: str, spec: Spec = SPEC, restart: int = 0) -> LedgerWriter:
    opened = LedgerWriter(path, print)
    opened.header(spec, JOB | ({"SLURM_RESTART_COUNT": str(restart)} if restart else {}))
    return opened


def written(path: str, *done: int, spec: Spec = SPEC) -> str:
    """Write a ledger in which the tasks ``done`` are done, and return its path."""
    work = begin(path, spec)
    do(work, *done)
    work.close()
    return path


def do(work: LedgerWriter, *numbers: int) -> None:
    for number in numbers:
        work.start(begun(number))
        work.end(begun(number), Outcome.DONE, 0)


# --- what is written is told ---


def test_what_happened_is_told(path: str) -> None:
    work = begin(path)
    work.start(begun(1))
    work.start(begun(2))
    work.end(begun(2), Outcome.GPU_OOM, 1, "CUDA out of memory")
    work.note("started again")
    work.start(begun(2, 2))
    work.end(begun(2, 2), Outcome.DONE, 0, step="7.2")
    work.start(begun(3))
    work.end(begun(3), Outcome.FAILED, -9, "killed", "7.3")
    work.start(begun(4))
    work.end(begun(4), Outcome.LOST, -9, "the GPU is lost", "7.4")
    work.start(begun(4, 2))
    work.note("the job was cancelled", "stop")
    work.close()
    told = read_ledger(path)
    assert (told.spec, told.job, told.restarts, told.torn_lines) == (SPEC, JOB, 0, 0)
    assert told.tasks == (
        TaskRecord(1, 1, 101.0, None, None, None, "", ""),
        TaskRecord(2, 2, 105.0, Outcome.DONE, 0, 106.0, "7.2", ""),
        TaskRecord(3, 1, 107.0, Outcome.FAILED, -9, 108.0, "7.3", "killed"),
        TaskRecord(4, 2, 111.0, None, None, None, "", ""),
    )
    assert (told.notes, told.stopped) == (("started again",), "the job was cancelled")
    assert (told.began_s, told.last_s) == (100.0, 112.0)
    assert missing([told]) == (1, 3, 4)


def test_a_line_says_only_what_it_means(path: str) -> None:
    begin(path).start(begun(0))
    lines = [json.loads(line) for line in Path(path).read_text().splitlines()]
    assert lines[1] == {"at_s": 101.0, "event": "start", "attempt": 1}
    assert read_ledger(path).tasks[0].number == 0


def test_long_and_odd_words_are_kept_within_a_line(path: str) -> None:
    work = begin(path)
    work.end(begun(1), Outcome.FAILED, 1, "a\nb\x00\udcff" + "x" * 100_000)
    work.note("")
    work.close()
    assert len(Path(path).read_bytes().splitlines()) == 3
    told = read_ledger(path)
    assert told.tasks[0].message.startswith("a\nb\x00\udcffxx")
    assert len(told.tasks[0].message) == 2000
    assert told.notes == ("",)


def test_each_line_reaches_the_disk_before_the_pack_goes_on(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    real_write, real_sync = os.write, os.fsync

    def write(descriptor: int, line: bytes) -> int:
        calls.append("write")
        return real_write(descriptor, line)

    def fsync(descriptor: int) -> None:
        calls.append("fsync")
        real_sync(descriptor)

    monkeypatch.setattr(os, "write", write)
    monkeypatch.setattr(os, "fsync", fsync)
    work = begin(path)
    work.start(begun(1))
    work.close()
    # The first one is of the folder, in which the file is new.
    assert calls == ["fsync", "write", "fsync", "write", "fsync"]


# --- several jobs, and jobs that begin anew ---


def test_a_requeued_job_goes_on_in_its_own_ledger(path: str) -> None:
    work = begin(path)
    do(work, 1)
    work.start(begun(2))
    work.note("the job was preempted", "stop")
    work.close()
    left = missing([read_ledger(path)])
    assert left == (2, 3, 4)
    again = LedgerWriter(path, print)
    again.header(SPEC, {**JOB, "SLURM_RESTART_COUNT": "1"})
    assert read_ledger(path).stopped == ""
    do(again, *left)
    again.close()
    told = read_ledger(path)
    assert missing([told]) == ()
    assert (told.restarts, told.job["SLURM_RESTART_COUNT"], told.stopped) == (1, "1", "")
    assert [task.attempts for task in told.tasks] == [1, 2, 1, 1]


def test_an_earlier_job_of_the_same_id_does_not_count(path: str) -> None:
    written(path, 1)
    ledger = LedgerWriter(path, print, anew=True)
    ledger.header(SPEC, JOB)
    ledger.close()
    told = read_ledger(path)
    assert (missing([told]), told.restarts) == ((1, 2, 3, 4), 0)


def test_ledgers_of_an_earlier_array_of_the_same_id_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "a_b"
    written(str(folder / "7_1.jsonl"), 1, 2)
    new = SPEC._replace(name="new")
    paths = [str(folder / name) for name in ("7_1.jsonl", "7.jsonl")]
    written(paths[1], 3, spec=new)
    told, unreadable = read_ledgers(paths)
    assert ([one.spec for one in told], unreadable) == ([new], [])


def test_what_is_missing_is_counted_over_all_jobs_of_a_pack(tmp_path: Path) -> None:
    spec = SPEC._replace(array="0-9", jobs=3)
    told = [
        read_ledger(written(str(tmp_path / f"{job}.jsonl"), *done, spec=spec)) for job, done in ((0, (0, 3)), (1, (1,)))
    ]
    # The third job, which never began, has its tasks among them.
    assert missing(told) == (2, 4, 5, 6, 7, 8, 9)
    resumed = read_ledger(written(str(tmp_path / "9.jsonl"), 2, 4, 5, 6, 7, 8, 9, spec=spec._replace(only=(2, 4))))
    assert missing([*told, resumed]) == ()
    assert missing([resumed]) == ()
    assert missing([]) == ()


# --- what a crash leaves ---


def test_a_last_line_that_was_cut_anywhere_costs_that_line_alone(path: str) -> None:
    work = begin(path)
    do(work, 1)
    work.start(begun(2))
    work.close()
    whole = Path(path).read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    for cut in range(last, len(whole) + 1):
        Path(path).write_bytes(whole[:cut])
        told = read_ledger(path)
        # Without its newline alone, a line says all that it has to say.
        kept = cut >= len(whole) - 1
        assert told.torn_lines == (0 if kept or cut == last else 1)
        assert [task.number for task in told.tasks] == ([1, 2] if kept else [1])
        assert missing([told]) == (2, 3, 4)
        # Who goes on in this file loses nothing of its own.
        again = begin(path, restart=1)
        do(again, 3)
        again.close()
        told = read_ledger(path)
        assert (missing([told]), told.restarts) == ((2, 4), 1)
        assert told.torn_lines == (0 if kept or cut == last else 1)


def test_a_header_that_was_cut_anywhere_is_no_ledger_until_the_next_one(path: str) -> None:
    begin(path).close()
    whole = Path(path).read_bytes()
    for cut in range(0, len(whole) - 1, 7):
        Path(path).write_bytes(whole[:cut])
        with pytest.raises(InputError, match=path):
            read_ledger(path)
        begin(path).close()
        assert (read_ledger(path).restarts, read_ledger(path).torn_lines) == (0, int(cut > 0))


def test_an_end_whose_start_is_torn_still_counts(path: str) -> None:
    work = begin(path)
    work.end(begun(1), Outcome.DONE, 0, "", "7.0")
    work.close()
    assert read_ledger(path).tasks == (TaskRecord(1, 1, 101.0, Outcome.DONE, 0, 101.0, "7.0", ""),)


def test_a_pack_goes_on_without_a_ledger_that_cannot_be_written(
    path: str, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    said: list[str] = []
    work = LedgerWriter(path, said.append)
    work.header(SPEC, JOB)
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, line: real(descriptor, line[:10]))
    work.start(begun(1))
    monkeypatch.setattr(os, "write", real)
    work.start(begun(2))
    work.note("the MPS daemon died")
    printed("pack", *said)
    # Who goes on in this file loses nothing of its own.
    again = begin(path, restart=1)
    again.start(begun(3))
    again.close()
    told = read_ledger(path)
    assert ([task.number for task in told.tasks], told.torn_lines) == ([3], 1)


def test_a_ledger_that_cannot_even_be_begun_is_an_error(
    path: str, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    work = LedgerWriter(path, pytest.fail)
    os.close(work._descriptor)
    with printed.raises("pack", StoreError):
        work.header(SPEC, JOB)


def test_without_a_ledger_things_are_said_all_the_same() -> None:
    said: list[str] = []
    work = LedgerWriter("", said.append)
    work.start(begun(1))
    work.note("one")
    work.note("two", "stop")
    work.close()
    assert (said, work.path) == (["one", "two"], "")


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b"null",
        b'{"at_s":1.0,"event":"what"}',
        b'{"at_s":"1","event":"note"}',
        b'{"at_s":1.0,"event":"note","more":1}',
        b'{"at_s":1.0,"event":"end","outcome":"bored"}',
        b'{"at_s":1.0,"event":"end","outcome":"done","status":true}',
        b'{"at_s":1.0,"event":"start","number":1.5}',
        b'{"at_s":1.0,"event":"pack","job":{"a":1}}',
        b'{"at_s":NaN,"event":"note"}',
        b"[" * 100_000,
    ],
)
def test_a_line_of_another_form_is_counted_and_not_used(path: str, line: bytes, printed: Printed) -> None:
    with pytest.raises(InputError):
        parse_entry(line)
    with printed.raises("pack", InputError):
        parse_entry(b"{}")
    written(path, 1)
    with open(path, "ab") as stream:
        stream.write(line + b"\n")
    told = read_ledger(path)
    assert (told.torn_lines, missing([told])) == (int(line != b""), (2, 3, 4))


# --- whose it is ---


def test_files_and_folders_are_the_users_alone(path: str) -> None:
    with umask(0):
        begin(path).close()
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600
    assert stat.S_IMODE(os.stat(os.path.dirname(path)).st_mode) == 0o700


def test_a_ledger_lies_in_the_users_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert ledger_folder() == "/data/slurm_colloc/packs"
    assert ledger_path("my-cluster.1", "77") == "/data/slurm_colloc/packs/my-cluster.1/77.jsonl"


@pytest.mark.parametrize(
    ("cluster", "job_id"), [("", "7"), ("c", ""), ("../c", "7"), ("c", "7/8"), ("..", "7"), ("c", "7\n")]
)
def test_no_name_leads_out_of_the_folder(cluster: str, job_id: str, printed: Printed) -> None:
    with pytest.raises(InputError):
        ledger_path(cluster, job_id)
    with printed.raises("pack", InputError):
        ledger_path("../c", "7")


def test_a_second_process_of_the_job_is_refused(path: str, printed: Printed) -> None:
    code = (
        "import sys; from slurm_colloc.core.errors import StoreError\n"
        "from slurm_colloc.pack.ledger import LedgerWriter\n"
        "try:\n    LedgerWriter(sys.argv[1], print)\n"
        "except StoreError as error:\n    print(error)\nelse:\n    print('opened')"
    )

    def other() -> str:
        return subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True).stdout

    work = begin(path)
    assert other() != "opened\n"
    with printed.raises("pack", StoreError, path):
        LedgerWriter(path, print)
    work.close()
    assert other() == "opened\n"


def test_a_file_system_without_locks_is_said(path: str, monkeypatch: pytest.MonkeyPatch, printed: Printed) -> None:
    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with printed.raises("pack", StoreError):
        LedgerWriter(path, print)


def test_programs_that_the_pack_starts_do_not_hold_its_ledger(path: str) -> None:
    work = begin(path)
    left = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        work.close()
        LedgerWriter(path, print).close()
    finally:
        left.kill()
        left.wait()


def test_a_pack_of_another_release_is_named(path: str, printed: Printed) -> None:
    written(path, spec=SPEC._replace(version=99))
    with printed.raises("pack", InputError, path):
        read_ledger(path)


def test_a_hundred_thousand_commands_are_one_header(path: str) -> None:
    spec = SPEC._replace(array="", commands=tuple(f"python train.py --seed {n} --rate 0.1" for n in range(100_000)))
    written(path, 1, spec=spec)
    told = read_ledger(path)
    assert told.spec == spec
    assert len(missing([told])) == 99_999


def test_an_attempt_that_slurm_refused_to_start_counts_once(path: str) -> None:
    ledger = begin(path)
    for outcome in (Outcome.LOST, Outcome.LOST, Outcome.GPU_OOM):
        ledger.start(begun(1))
        ledger.end(begun(1), outcome, 1)
    ledger.start(begun(1, 2))
    ledger.close()
    assert [task.attempts for task in read_ledger(path).tasks] == [2]
    requeued = begin(path, restart=1)
    requeued.start(begun(1))
    requeued.close()
    assert [task.attempts for task in read_ledger(path).tasks] == [3]

# SPDX-License-Identifier: Apache-2.0
"""Which of a task's processes use the GPU past the daemon, and which only look so."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.model import Load
from slurm_colloc.pack import run as runs
from slurm_colloc.pack.attempt import Attempt
from slurm_colloc.pack.mps_clients import Watch, strays, with_gpu_open
from slurm_colloc.pack.processes import Process, families_of, line_of, process, process_of
from slurm_colloc.pack.queue import Start
from slurm_colloc.pack.spec import Task
from slurm_colloc.pack.srun import Files, read_job
from tests.cluster.packs import a_spec
from tests.unit.programs import executable
from tests.waiting import wait_for

# Another test may run beside this one.
RUN = f"7-{os.getpid()}"
# 10 is the step's shell, 11 its program, 12 and 13 what that forked.
ALL = range(100)


def family(**parents: int) -> dict[int, Process]:
    return {int(pid[1:]): Process(int(pid[1:]), parent, 5) for pid, parent in parents.items()}


FAMILY = family(p10=1, p11=10, p12=11, p13=12)


def test_a_client_and_what_it_forked_are_no_strays() -> None:
    assert strays(FAMILY, {11, 12, 13}, {11}) == set()
    assert strays(FAMILY, {11, 12, 13}, {12}) == {11}
    assert strays(FAMILY, {11, 12}, set()) == {11, 12}
    assert strays(FAMILY, set(), set()) == set()
    assert strays(FAMILY, {13}, {99}) == {13}


def test_a_line_of_ancestors_ends_where_pids_come_round() -> None:
    assert line_of(13, FAMILY) == [13, 12, 11, 10]
    assert line_of(1, family(p1=2, p2=1)) == [1, 2]


def test_it_takes_two_looks_running() -> None:
    watch = Watch()
    assert watch.look(FAMILY, {11}, set(), lambda: ALL) == set()
    assert watch.look(FAMILY, set(), set(), lambda: ALL) == set()
    assert watch.look(FAMILY, {11}, set(), lambda: ALL) == set()
    assert watch.look(FAMILY, {11}, set(), lambda: ALL) == {11}


def test_whoever_only_asked_what_there_is_has_no_context() -> None:
    """A launcher opens the GPU as CUDA does; its child, which computes, is a client or is found."""
    watch = Watch()
    for _ in range(3):
        assert watch.look(FAMILY, {11, 12}, {12}, lambda: {12}) == set()
    watch = Watch()
    watch.look(FAMILY, {11, 12}, set(), lambda: {12})
    assert watch.look(FAMILY, {11, 12}, set(), lambda: {12}) == {12}


def test_a_daemon_that_does_not_answer_proves_nothing() -> None:
    watch = Watch()
    watch.look(FAMILY, {11}, set(), lambda: ALL)
    assert watch.look(FAMILY, {11}, None, lambda: ALL) == set()
    assert watch.look(FAMILY, {11}, set(), lambda: ALL) == set()
    assert watch.look(FAMILY, {11}, set(), lambda: ALL) == {11}


def test_a_client_that_has_just_begun_is_none_yet() -> None:
    watch = Watch()
    assert watch.look(FAMILY, {11}, set(), lambda: ALL) == set()
    assert watch.look(FAMILY, {11}, {11}, lambda: ALL) == set()


def test_what_a_client_forked_may_outlive_it() -> None:
    watch = Watch()
    watch.look(FAMILY, {11, 12}, {11}, lambda: ALL)
    orphaned = family(p10=1, p12=1)
    for _ in range(3):
        assert watch.look(orphaned, {12}, set(), lambda: ALL) == set()


def test_a_later_child_past_the_daemon_is_found() -> None:
    watch = Watch()
    watch.look(FAMILY, {11}, {11}, lambda: ALL)
    later = {**FAMILY, **family(p20=10)}
    assert watch.look(later, {11, 20}, {11}, lambda: ALL) == set()
    assert watch.look(later, {11, 20}, {11}, lambda: ALL) == {20}


def test_processes_without_marks_are_their_parents(tmp_path: Path) -> None:
    def begun(task: int, command: str) -> subprocess.Popen[bytes]:
        marks = {"SLURM_JOB_ID": "7", "SLURM_CSUB_RUN": RUN, "SLURM_CSUB_TASK": str(task)}
        (tmp_path / "dev").mkdir(exist_ok=True)
        for name in ("nvidia0", "nvidiactl"):
            (tmp_path / "dev" / name).touch()
        said = f"echo $$; {command}"
        started = subprocess.Popen(
            ["sh", "-c", said], env={"PATH": os.environ["PATH"], **marks}, cwd=tmp_path, stdout=subprocess.PIPE
        )
        assert started.stdout
        started.stdout.readline()
        started.stdout.readline()
        return started

    cuda = "exec 7<dev/nvidia0; echo $$; sleep 60"
    stripped = begun(1, f"env -i sh -c '{cuda} & wait'")
    monitor = begun(2, "exec 8<dev/nvidiactl; echo $$; sleep 60 & wait")
    try:
        # The shell that was waited for may not have its sleep yet.
        wait_for(lambda: len(families_of(RUN, (1,))[1]) == 3, "the family is not complete")
        families = families_of(RUN, (1, 2, 3))
        assert stripped.pid in families[1]
        assert families[3] == {}
        assert with_gpu_open(families[2]) == set()
        assert with_gpu_open(families[1]) == families[1].keys() - {stripped.pid}
    finally:
        for one in (stripped, monitor):
            for pid in families_of(RUN, (1, 2))[1 if one is stripped else 2]:
                os.kill(pid, 9)
            one.wait()


# Writes zeros over its environment, as programs do that set their own title.
FORGETS = """
import ctypes, sys, time
fields = open("/proc/self/stat").read().rpartition(")")[2].split()
begin, end = int(fields[47]), int(fields[48])
ctypes.memset(begin, 0, end - begin)
print("forgot", flush=True)
"""


def test_a_program_that_forgets_its_environment_is_known_by_its_process(tmp_path: Path) -> None:
    marks = {"SLURM_JOB_ID": "7", "SLURM_CSUB_RUN": RUN, "SLURM_CSUB_TASK": "1"}
    argv = [sys.executable, "-I", "-c", f"{FORGETS}time.sleep(60)"]
    with subprocess.Popen(argv, env=marks, stdout=subprocess.PIPE) as one:
        assert one.stdout
        one.stdout.readline()
        root = process(one.pid)
        assert root is not None
        try:
            assert families_of(RUN, [1])[1] == {}
            assert families_of(RUN, [1], {1: root})[1].keys() == {one.pid}
            assert families_of(RUN, [2], {1: root})[2] == {}
            assert families_of(RUN, [1], {1: root._replace(began_ticks=root.began_ticks - 1)})[1] == {}
        finally:
            one.kill()


def test_several_tasks_are_told_by_one_look_at_all_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[object] = []

    def counted(*given: Any) -> dict[int, dict[int, Process]]:
        looks.append(given)
        return families_of(*given)

    monkeypatch.setattr(runs, "families_of", counted)
    no: Any = None
    executable(tmp_path / "srun", "")
    job = read_job({"SLURM_JOB_ID": "7", "SLURM_CPUS_ON_NODE": "1"}, (), 1, "/")
    run = runs.Run(a_spec(), job, no, no, {"PATH": str(tmp_path)}, no)
    files = Files("/nowhere/step", "", "", "")
    steps = [
        Attempt(
            start=Start(Task(number), 1, Load(0, 0.0)),
            slot=0,
            files=files,
            pid=0,
            srun_output=0,
            output_at=0,
            error_at=0,
            began_s=0.0,
        )
        for number in (1, 2, 3)
    ]
    marks = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "7", "SLURM_CSUB_RUN": run.name}
    tasks = [subprocess.Popen(["sleep", "60"], env=marks | {"SLURM_CSUB_TASK": str(task)}) for task in (1, 3, 4)]
    try:
        assert run.signal(steps, signal.SIGTERM) == {1, 3}
        assert [one.wait(10) for one in tasks[:2]] == [-signal.SIGTERM] * 2
        assert (tasks[2].poll(), len(looks)) == (None, 1)
        assert (run.signal([], signal.SIGTERM), len(looks)) == (set(), 1)
    finally:
        for one in tasks:
            one.kill()
            one.wait()


def test_a_line_of_stat_is_a_process_unless_it_has_ended() -> None:
    line = Path("/proc/self/stat").read_bytes()
    found = process_of(line)
    assert found is not None
    assert (found.pid, found.parent) == (os.getpid(), os.getppid())
    head, _, rest = line.partition(b" (")
    rest = rest.partition(b") ")[2]
    assert process_of(head + b" (a) b (c) " + rest) == found
    assert process_of(head + b" (sh) Z" + rest[1:]) is None
    assert process_of(b"") is None
    assert process_of(b"no line") is None

# SPDX-License-Identifier: Apache-2.0
"""Which of a task's processes use the GPU past the daemon, and which only look so."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest

from slurm_colloc.pack.mps_clients import Watch, with_gpu_open
from slurm_colloc.pack.processes import Process, families_of, line_of, process, process_of
from tests.waiting import wait_for

# Another test may run beside this one.
RUN = f"7-{os.getpid()}"
# 10 is the step's shell, 11 its program, 12 and 13 what that forked.


def family(**parents: int) -> dict[int, Process]:
    return {int(pid[1:]): Process(int(pid[1:]), parent, 5) for pid, parent in parents.items()}


FAMILY = family(p10=1, p11=10, p12=11, p13=12)


def found(*looks: tuple[set[int], set[int] | None], on_gpu: Collection[int] = range(100)) -> set[int]:
    """Return who is past the daemon at the last of these looks: who has the GPU open, and who is a client."""
    watch = Watch()
    return [watch.look(FAMILY, has_open, clients, lambda: on_gpu) for has_open, clients in looks][-1]


@pytest.mark.parametrize(
    ("looks", "past"),
    [
        # What a client forked, and what forked a client.
        ([({11, 12, 13}, {11})] * 2, set()),
        ([({11, 12, 13}, {12})] * 2, {11}),
        ([({11, 12}, set())] * 2, {11, 12}),
        # The client is another task's.
        ([({13}, {99})] * 2, {13}),
        # It takes two looks running.
        ([({11}, set()), (set(), set()), ({11}, set())], set()),
        # A daemon that does not answer proves nothing.
        ([({11}, set()), ({11}, None)], set()),
        ([({11}, set()), ({11}, None), ({11}, set())], set()),
        # A client that has just begun is none yet.
        ([({11}, set()), ({11}, {11})], set()),
    ],
)
def test_who_is_past_the_daemon(looks: list[tuple[set[int], set[int] | None]], past: set[int]) -> None:
    assert found(*looks) == past


def test_whoever_only_asked_what_there_is_has_no_context() -> None:
    """A launcher opens the GPU as CUDA does; its child, which computes, is a client or is found."""
    assert found(*[({11, 12}, {12})] * 2, on_gpu={12}) == set()
    assert found(*[({11, 12}, set[int]())] * 2, on_gpu={12}) == {12}


def test_what_a_client_forked_may_outlive_it() -> None:
    watch = Watch()
    watch.look(FAMILY, {11, 12}, {11}, FAMILY.keys)
    for _ in range(2):
        assert watch.look(family(p10=1, p12=1), {12}, set(), FAMILY.keys) == set()


def test_a_later_child_past_the_daemon_is_found() -> None:
    watch = Watch()
    watch.look(FAMILY, {11}, {11}, FAMILY.keys)
    later = {**FAMILY, **family(p20=10)}
    assert watch.look(later, {11, 20}, {11}, later.keys) == set()
    assert watch.look(later, {11, 20}, {11}, later.keys) == {20}


def test_a_line_of_ancestors_ends_where_pids_come_round() -> None:
    assert line_of(1, family(p1=2, p2=1)) == [1, 2]


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
        wait_for(lambda: len(families_of(RUN, (1,), {})[1]) == 3, "the family is not complete")
        families = families_of(RUN, (1, 2, 3), {})
        assert stripped.pid in families[1]
        assert families[3] == {}
        assert with_gpu_open(families[2]) == set()
        assert with_gpu_open(families[1]) == families[1].keys() - {stripped.pid}
    finally:
        for one in (stripped, monitor):
            for pid in families_of(RUN, (1, 2), {})[1 if one is stripped else 2]:
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
            assert families_of(RUN, [1], {})[1] == {}
            assert families_of(RUN, [1], {1: root})[1].keys() == {one.pid}
            assert families_of(RUN, [2], {1: root})[2] == {}
            assert families_of(RUN, [1], {1: root._replace(began_ticks=root.began_ticks - 1)})[1] == {}
        finally:
            one.kill()


def test_a_process_that_has_ended_is_none() -> None:
    line = Path("/proc/self/stat").read_bytes()
    running = process_of(line)
    assert running
    assert (running.pid, running.parent) == (os.getpid(), os.getppid())
    head, name, rest = line.partition(b") ")
    assert process_of(head + name + b"Z" + rest[1:]) is None

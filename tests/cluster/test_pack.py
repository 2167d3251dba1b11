# SPDX-License-Identifier: Apache-2.0
"""A pack's job on real Slurm: what its tasks find, what they leave, and that an end in the middle loses nothing."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_colloc.gpu.failure import Outcome
from slurm_colloc.slurm.job_files import file_name
from tests.cluster.fixtures import RELEASE
from tests.cluster.lab import Lab
from tests.cluster.packs import Packs, a_spec

pytestmark = pytest.mark.cluster


@pytest.fixture
def alice(lab: Lab) -> Iterator[Packs]:
    yield Packs(lab, "alice")
    lab.run(["scancel", "-u", "alice"])


SWEEP = """#!/bin/sh
#SBATCH --array=0-10:2
range="$SLURM_ARRAY_TASK_MIN-$SLURM_ARRAY_TASK_MAX:$SLURM_ARRAY_TASK_STEP"
echo "id $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT, $range"
echo "array $SLURM_ARRAY_JOB_ID cpus $SLURM_CPUS_PER_TASK $(nproc) mem $SLURM_MEM_PER_NODE gpu $CUDA_VISIBLE_DEVICES"
echo "args $* name $SLURM_JOB_NAME omp $OMP_NUM_THREADS"
echo "to the end" >&2
date +%s.%N >>"began.$SLURM_ARRAY_TASK_ID"
sleep 1
date +%s.%N >>"ended.$SLURM_ARRAY_TASK_ID"
case $SLURM_ARRAY_TASK_ID in
4) exit 3 ;;
6) [ -e seen.6 ] || { touch seen.6; echo "RuntimeError: CUDA out of memory. Tried to allocate" >&2; exit 1; } ;;
esac
"""


def test_each_task_is_as_a_task_of_an_array(alice: Packs) -> None:
    spec = a_spec(3, array="0-10:2", script_args=("a", "b"), error="err.%A_%2a")
    job = alice.submit(spec, SWEEP, "-J", "sweep")
    code, said = alice.ended(job)
    assert (code, "6 tasks: 5 succeeded" in said) == ("1:0", True), said
    assert "\n  failed: 4\n" in said
    assert "1 attempt repeated\n" in said
    share_mib = 8 * 100 // 3
    for number in range(0, 12, 2):
        *lines, last = (alice.home / f"out.{number}").read_text().splitlines()
        assert lines == [f"id {number} of 6, 0-10:2", f"array {job} cpus 1 1 mem {share_mib} gpu 0"]
        assert last == "args a b name sweep omp 1"
        errors = (alice.home / f"err.{job}_{number:02}").read_text().splitlines()
        assert errors[0] == "to the end"
        assert len(errors) == (2 if number == 4 else 1), errors
    told = {task.number: task for task in alice.told(job).tasks}
    assert [told[number].outcome for number in (2, 4, 6)] == [Outcome.DONE, Outcome.FAILED, Outcome.DONE]
    assert [told[number].attempts for number in (2, 4, 6)] == [1, 1, 2]
    assert told[4].status == 3
    steps = alice.steps(job)
    assert set(steps) == {f"task-{number}" for number in range(0, 12, 2)}
    assert steps["task-4"] == ["FAILED 3:0"]
    assert sorted(steps["task-6"]) == ["COMPLETED 0:0", "FAILED 1:0"]
    assert told[6].step.startswith(f"{job}.")
    assert most_at_once(alice.home) == 3
    assert alice.leftovers() == []


def most_at_once(home: Path) -> int:
    """Return how many tasks ran at one time."""
    marks = [
        (float(line), change)
        for name, change in (("began", 1), ("ended", -1))
        for path in home.glob(f"{name}.*")
        for line in path.read_text().split()
    ]
    now = most = 0
    for _, change in sorted(marks):
        now += change
        most = max(most, now)
    return most


def test_a_requeued_pack_goes_on_where_it_was(alice: Packs) -> None:
    slow = "echo $SLURM_RESTART_COUNT here; [ -e go ] || sleep 100"
    job = alice.submit(a_spec(2, commands=("date >>one", slow, "date >>three", slow)), "", "--requeue")
    assert alice.wait_for("out.2") == alice.wait_for("out.4") == "here\n"
    (alice.home / "go").touch()
    alice.lab.run(["scontrol", "requeue", job], check=True)
    code, said = alice.ended(job, timeout=240)
    assert code == "0:0", said
    assert re.search(r"\b2 tasks: 2 succeeded \(2 ", said), said
    assert len((alice.home / "one").read_text().splitlines()) == 1
    assert (alice.home / "out.4").read_text() == "1 here\n"
    told = alice.told(job)
    assert (told.restarts, [task.outcome for task in told.tasks]) == (1, [Outcome.DONE] * 4)


def test_a_daemon_that_dies_costs_no_result(alice: Packs) -> None:
    kill = "[ -e killed ] || { sleep 0.5; touch killed; kill -9 $(cat $CUDA_MPS_PIPE_DIRECTORY/*.pid); sleep 100; }"
    job = alice.submit(a_spec(3, commands=(kill, "sleep 1.5", "[ -e killed ] && exit 5; sleep 100", "true")))
    code, said = alice.ended(job, timeout=60)
    assert "the MPS daemon died" in said
    assert code == "1:0"
    assert "4 tasks: 3 succeeded" in said
    assert "\n  failed: 3\n" in said
    assert {task.number: task.attempts for task in alice.told(job).tasks} == {1: 2, 2: 1, 3: 2, 4: 1}
    assert alice.leftovers() == []


def test_what_a_task_leaves_behind_ends_with_it(alice: Packs) -> None:
    job = alice.submit(a_spec(1, commands=("sleep 345.678 & echo $! >left", "sleep 1; ps -o args= -p $(cat left)")))
    alice.ended(job)
    assert "345.678" not in (alice.home / "out.2").read_text()


PATTERNS = [
    "a_%A_%a",
    "c_%x_%u_%N_%n_%s_%t",
    "d%%d",
    "e%4a_%3x_%4A",
    "f%%%a",
    r"g\%j",
    "h%q_",
    "i%0a_%00003a",
    "k%4N_%4u_%20a",
]
PATTERNS += [r"m\n\%a", "n%4s_%4t_%4n", "sub dir/%a"]


def test_names_of_files_are_those_of_sbatch(alice: Packs) -> None:
    folder = alice.home / "names"
    alice.run("mkdir", "-p", f"{folder}/sub dir")
    (alice.home / "true.sh").write_text("#!/bin/sh\n")
    # Where several nodes are one machine, releases differ in which name they take.
    host = "c1" if RELEASE == "26.05" else os.uname().nodename.partition(".")[0]
    expected = set()
    jobs = []
    for pattern in PATTERNS:
        options = ["--parsable", "-p", "cpu", "-J", "na me", "-D", str(folder), "-o", pattern, "--array=7"]
        job = alice.run("sbatch", *options, "true.sh").stdout.strip()
        facts = {"name": "na me", "user": "alice", "node": host, "folder": str(folder)}
        expected.add(file_name(pattern, job_id=f"{job}_7", array_job_id=job, task=7, **facts))
        jobs.append(job)
    alice.lab.wait_jobs(jobs)
    assert {str(path) for path in folder.rglob("*") if path.is_file()} == expected

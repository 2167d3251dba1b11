# SPDX-License-Identifier: Apache-2.0
"""Which GPUs slurmctld says a job has on a node, and how the agent asks for that."""

from __future__ import annotations

import pytest

from slurm_colloc.core.errors import ProcessError
from slurm_colloc.observe.sampler import Told
from slurm_colloc.slurm.jobs import HeldHere, parse_held
from tests.unit.made import RECORDED, RELEASES

# Of Slurm 22.05.8 in the lab, what stands between cut short.
JOB = (
    "JobId=3 JobName={name} UserId=alice(86910) JobState=RUNNING TRES=cpu=1,mem=100M,node=1,billing=1 JOB_GRES=mps:30 "
    "  {given} MinCPUsNode=1 MinMemoryCPU=100M Features=(null) Command=(null) WorkDir=/home/alice Power= \n"
)
SHARE = "Nodes=g1 CPU_IDs=1 Mem=100 GRES=mps:30(IDX:1)"


def held(given: str = SHARE, name: str = "wrap", node: str = "g1") -> HeldHere | None:
    return parse_held(JOB.format(given=given, name=name), "3", node)


@pytest.mark.parametrize("release", RELEASES)
def test_what_each_release_says_of_a_running_job(release: str) -> None:
    text = (RECORDED / f"slurm-{release}" / "scontrol" / "job.txt").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("JobId=14 ")]
    assert parse_held(line + "\n", "14", "g1") == HeldHere((0, 1), None)
    assert parse_held(line + "\n", "14", "g2") is None


@pytest.mark.parametrize("release", RELEASES)
def test_the_last_task_of_an_array_among_the_others(release: str) -> None:
    """By its number Slurm shows the whole array; by a name of theirs none of them can speak for it."""
    text = (RECORDED / f"slurm-{release}" / "scontrol" / "job.txt").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("JobId=14 ")]
    other = line.replace("JobId=14 ", "JobId=15 ").replace("IDX:0-1", "IDX:3")
    assert parse_held(f"{other}\n{line}\n", "14", "g1") == HeldHere((0, 1), None)
    named = other.replace(" UserId=", f"\n{other.replace('JobId=15 ', 'JobId=14 ')}\n UserId=")
    assert parse_held(f"{named}\n{line}\n", "14", "g1") is None


def test_shares_slices_and_several_nodes() -> None:
    assert held() == HeldHere((1,), 30.0)
    assert held("Nodes=g2 CPU_IDs=0 Mem=100 GRES=shard:1(IDX:0)", node="g2") == HeldHere((0,), 1.0)
    of_slices = "Nodes=m1 CPU_IDs=0 Mem=100 GRES=gpu:nvidia_h100_80gb_hbm3_1g.10gb:2(IDX:0-1)"
    assert held(of_slices, node="m1") == HeldHere((0, 1), None)
    two = "Nodes=g[1-2] CPU_IDs=0 Mem=9 GRES=gpu:2(IDX:0,3) Nodes=g3 CPU_IDs=0-1 Mem=9 GRES=gpu:1(IDX:2),license:1"
    assert [held(two, node=node) for node in ("g2", "g3")] == [HeldHere((0, 3), None), HeldHere((2,), None)]
    assert held("Nodes=g1 CPU_IDs=0 Mem=100 GRES=") == HeldHere((), None)


@pytest.mark.parametrize(
    "name",
    [
        "x Nodes=g1 CPU_IDs=0 Mem=1 GRES=gpu:2(IDX:0-1) MinCPUsNode=1",
        f"x\n{JOB.format(name='y', given='Nodes=g1 CPU_IDs=0 Mem=1 GRES=gpu:2(IDX:0-1)')}",
        "x WorkDir=/",
    ],
)
def test_a_name_that_imitates_a_line_makes_it_unknown(name: str) -> None:
    assert held(name=name) is None


def test_another_job_and_no_answer_say_nothing() -> None:
    assert parse_held(JOB.format(name="a", given=SHARE), "4", "g1") is None
    assert parse_held("", "3", "g1") is None


def test_each_job_is_asked_for_once_and_a_few_at_a_time() -> None:
    asked: list[str] = []

    def ask(job: str) -> HeldHere | None:
        asked.append(job)
        return None if job == "2" else HeldHere((int(job),), None)

    told = Told(ask)
    for _ in range(3):
        told.ask_of({"1", "2", "3", "4", "5"})
    assert asked == ["1", "2", "3", "4", "5"]
    assert (told.of("5"), told.of("2")) == (HeldHere((5,), None), None)
    told.ask_of({"2"})
    assert told.of("5") is None


def test_one_job_without_an_answer_does_not_keep_others_from_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1000.0

    def ask(job: str) -> HeldHere | None:
        if job == "1":
            raise ProcessError("no answer")
        return HeldHere((0,), None)

    monkeypatch.setattr("slurm_colloc.observe.sampler.time.monotonic", lambda: now_s)
    told = Told(ask)
    told.ask_of({"1", "2"})
    assert (told.of("2"), told.unknown) == (None, {"1"})
    now_s += 60.0
    told.ask_of({"1", "2"})
    assert (told.of("2"), told.unknown) == (HeldHere((0,), None), {"1"})
    told.ask_of({"2"})
    assert told.unknown == set()


def test_a_slurmctld_that_does_not_answer_is_left_alone_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s, asked = 1000.0, 0

    def ask(_: str) -> HeldHere | None:
        nonlocal asked
        asked += 1
        raise ProcessError("no answer")

    monkeypatch.setattr("slurm_colloc.observe.sampler.time.monotonic", lambda: now_s)
    told = Told(ask)
    for passed_s in (0.0, 10.0, 49.0, 1.0):
        now_s += passed_s
        told.ask_of({"1", "2"})
    assert asked == 2

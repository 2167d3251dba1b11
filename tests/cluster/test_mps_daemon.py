# SPDX-License-Identifier: Apache-2.0
"""The shared MPS daemon of real prologs and epilogs: one for each GPU and user, while one of his jobs runs."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.mps_nodes import MpsLab, mps_lab, the_daemon
from tests.fakes.mps_control import NAME
from tests.waiting import wait_for

ROOT = (0, 0)


@pytest.fixture(scope="module")
def running() -> Iterator[MpsLab]:
    with mps_lab() as made:
        yield made


@pytest.fixture
def mps(running: MpsLab) -> Iterator[MpsLab]:
    yield running
    running.end_all()
    assert running.node.daemons() == set()
    assert list(running.node.state.glob("[0-9]*")) == []
    assert "drain" not in running.node_state()
    assert "down" not in running.node_state()


def test_seven_jobs_share_one_daemon_that_ends_with_the_last(mps: MpsLab) -> None:
    jobs = [mps.submit("alice") for _ in range(7)]
    (pipe,) = {mps.pipe("alice", job) for job in jobs}
    assert Path(pipe) == mps.node.folder(mps.user("alice")) / "pipe"
    told = mps.told("alice", jobs[0])
    assert told["CUDA_VISIBLE_DEVICES"] == "0"
    assert told["CUDA_MPS_LOG_DIRECTORY"] == pipe.removesuffix("pipe") + "log"
    pid = the_daemon(pipe)
    assert mps.node.daemons() == {pid}
    assert mps.node.jobs(mps.user("alice")) == set(jobs)
    mps.let_go("alice", *jobs[:6])
    wait_for(lambda: mps.node.jobs(mps.user("alice")) == {jobs[6]}, "the references stay")
    assert mps.node.daemons() == {pid}
    assert Path(pipe).stat().st_uid == mps.lab.users["alice"].uid
    mps.let_go("alice", jobs[6])
    wait_for(lambda: not mps.node.daemons(), "the daemon outlives its last job")
    wait_for(lambda: not Path(pipe).exists(), "its folder outlives its last job")


def test_each_user_has_a_daemon_beside_the_others(mps: MpsLab) -> None:
    """Let jobs of two users be on one GPU, in a partition where each has a daemon of their own."""
    jobs = {user: [mps.submit(user, "-p", "of-each") for _ in range(2)] for user in ("alice", "bob")}
    pipes = {user: {mps.pipe(user, job) for job in of_user} for user, of_user in jobs.items()}
    assert pipes == {user: {str(mps.node.folder(mps.user(user)) / "pipe")} for user in jobs}
    assert len(mps.node.daemons()) == 2
    assert mps.lab.run_as("bob", ["ls", *pipes["alice"]]).returncode != 0
    mps.let_go("alice", *jobs["alice"])
    wait_for(lambda: mps.node.daemons() == {the_daemon(*pipes["bob"])}, "alice's outlives her jobs, or bob's does not")
    mps.let_go("bob", *jobs["bob"])
    wait_for(lambda: not mps.node.daemons(), "a daemon outlives its last job")


def test_all_users_share_a_daemon_of_roots(mps: MpsLab) -> None:
    """Let jobs of two users be on one GPU, in a partition where all have one daemon; it ends with the last of them."""
    jobs = [(user, mps.submit(user, "-p", "of-all")) for user in ("alice", "bob", "alice")]
    (pipe,) = {mps.pipe(user, job) for user, job in jobs}
    assert pipe == str(mps.node.folder(ROOT) / "pipe")
    pid = the_daemon(pipe)
    assert (mps.node.daemons(), Path(f"/proc/{pid}").stat().st_uid) == ({pid}, 0)
    assert mps.node.jobs(ROOT) == {job for _, job in jobs}
    for tried in (f"ls {pipe}/../log", f"touch {pipe}/x", f"echo 1 >{pipe}/{NAME}.pid", f"kill {pid}"):
        assert mps.lab.run_as("bob", ["sh", "-c", tried]).returncode != 0, tried
    ask = f"echo quit | {mps.node.root}/fake/{NAME}"
    assert "privilege" in mps.lab.run_as("bob", ["sh", "-c", ask], env={"CUDA_MPS_PIPE_DIRECTORY": pipe}).stdout
    mps.let_go("alice", jobs[0][1])
    mps.let_go("bob", jobs[1][1])
    wait_for(lambda: mps.node.jobs(ROOT) == {jobs[2][1]}, "the references stay")
    assert mps.node.daemons() == {pid}
    mps.let_go("alice", jobs[2][1])
    wait_for(lambda: not mps.node.daemons(), "the daemon outlives its last job")
    wait_for(lambda: not Path(pipe).exists(), "its folder outlives its last job")


def test_the_second_gpu_has_its_own(mps: MpsLab) -> None:
    whole = mps.submit("alice", gres="gpu:1")
    assert mps.told("alice", whole)["CUDA_VISIBLE_DEVICES"] == "0"
    job = mps.submit("alice")
    pipe = mps.pipe("alice", job)
    assert Path(pipe) == mps.node.folder(mps.user("alice"), 1) / "pipe"
    assert mps.told("alice", job)["CUDA_VISIBLE_DEVICES"] == "0", "to the daemon's clients its one GPU is number 0"
    assert "CUDA_MPS_PIPE_DIRECTORY" not in mps.told("alice", whole)


def test_steps_are_clients_too(mps: MpsLab) -> None:
    out = mps.lab.root / "out/steps"
    argv = ["sbatch", "-W", "-p", "gpu", "-w", "g1", "--gres=mps:14", "-o", str(out), "--wrap"]
    done = mps.lab.run_as("alice", [*argv, "srun printenv CUDA_MPS_PIPE_DIRECTORY"])
    assert done.returncode == 0, out.read_text()
    assert out.read_text() == f"{mps.node.folder(mps.user('alice'))}/pipe\n"


def test_a_component_of_a_het_job_is_a_client_that_does_not_lead_it(mps: MpsLab) -> None:
    """Let a component that does not lead its job say what it was told."""
    out = mps.lab.root / "out/het"
    ask = "srun --het-group=1 printenv CUDA_MPS_PIPE_DIRECTORY SLURM_JOB_ID; sleep 1"
    argv = ["sbatch", "-W", "-o", str(out), "-p", "cpu", "--wrap", ask, ":", "-p", "gpu", "-w", "g1", "--gres=mps:14"]
    done = mps.lab.run_as("alice", argv, timeout=90)
    assert done.returncode == 0, (done.stderr, out.read_text())
    assert out.read_text().splitlines()[0] == f"{mps.node.folder(mps.user('alice'))}/pipe", out.read_text()


def test_another_user_waits_where_a_node_serves_one_at_a_time(mps: MpsLab) -> None:
    alices = mps.submit("alice", "-p", "one")
    pipe = mps.pipe("alice", alices)
    bobs = mps.submit("bob", "-p", "one")
    time.sleep(3)
    assert mps.state(bobs) == "PENDING"
    mps.let_go("alice", alices)
    assert mps.pipe("bob", bobs) == str(mps.node.folder(mps.user("bob")) / "pipe")
    assert not Path(pipe).exists()
    assert len(mps.node.daemons()) == 1


def test_jobs_that_had_no_epilog_hold_nothing_against_the_next_user(mps: MpsLab) -> None:
    """Slurm is asked from within the prolog, on the node's own slurmd."""
    first = mps.submit("alice")
    pipe = mps.pipe("alice", first)
    (mps.node.folder(mps.user("alice")) / "jobs/999999").mkdir()
    mps.let_go("alice", first)
    assert mps.node.daemons() == {the_daemon(pipe)}, "somebody seems to have it"
    bobs = mps.submit("bob")
    assert mps.pipe("bob", bobs) == str(mps.node.folder(mps.user("bob")) / "pipe")
    assert not Path(pipe).exists()


def test_a_requeued_job_has_it_again(mps: MpsLab) -> None:
    job = mps.submit("alice", "--requeue")
    pipe = mps.pipe("alice", job)
    (Path(mps.lab.environment("alice")["HOME"]) / f"{job}.env").unlink()
    assert mps.lab.run(["scontrol", "requeue", str(job)]).returncode == 0
    assert mps.pipe("alice", job) == pipe
    assert mps.node.daemons() == {the_daemon(pipe)}
    assert mps.node.jobs(mps.user("alice")) == {job}
    assert mps.told("alice", job)["SLURM_RESTART_COUNT"] == "1"


def test_slurmd_is_killed_and_comes_back(mps: MpsLab) -> None:
    first = mps.submit("alice")
    pipe = mps.pipe("alice", first)
    pid = the_daemon(pipe)
    lab = mps.lab
    (record,) = [one for one in lab.book.records() if one.name == "slurmd-g1"][-1:]
    lab.book.stop([record], 0)
    assert mps.node.daemons() == {pid}
    lab.start_daemon("slurmd-g1", ["slurmd", "-N", "g1", "-D"], None)
    second = mps.submit("alice")
    assert mps.pipe("alice", second) == pipe
    assert the_daemon(pipe) == pid
    mps.let_go("alice", first, second)


def test_another_user_runs_without_where_it_does_not(mps: MpsLab) -> None:
    alices = mps.submit("alice")
    pipe = mps.pipe("alice", alices)
    bobs = mps.submit("bob")
    assert mps.pipe("bob", bobs) == ""
    assert re.fullmatch(rf"colloc: job {bobs} .*\n", mps.output(bobs))
    assert mps.node.daemons() == {the_daemon(pipe)}
    mps.let_go("bob", bobs)
    assert mps.node.daemons() == {the_daemon(pipe)}
    assert mps.lab.run_as("bob", ["ls", pipe]).returncode != 0
    ask = f"echo get_server_list | {mps.node.bin}/{NAME}"
    assert mps.lab.run_as("bob", ["sh", "-c", ask], env={"CUDA_MPS_PIPE_DIRECTORY": pipe}).returncode != 0


@pytest.mark.parametrize("how", ["suspended", "hidden"])
def test_what_squeue_may_leave_out_keeps_its_daemon(mps: MpsLab, how: str) -> None:
    """A job that is suspended, or in a partition that is not shown to all, is asked about and runs."""
    job = mps.submit("alice", *(["-p", "hidden"] if how == "hidden" else []))
    pipe = mps.pipe("alice", job)
    pid = the_daemon(pipe)
    if how == "suspended":
        assert mps.lab.run(["scontrol", "suspend", str(job)]).returncode == 0
        assert mps.state(job) == "SUSPENDED"
    bobs = mps.submit("bob")
    assert mps.pipe("bob", bobs) == ""
    assert mps.node.daemons() == {pid}
    assert mps.node.jobs(mps.user("alice")) == {job}
    if how == "suspended":
        assert mps.lab.run(["scontrol", "resume", str(job)]).returncode == 0


def test_a_daemon_that_is_left_goes_before_somebody_has_the_whole_gpu(mps: MpsLab) -> None:
    job = mps.submit("alice")
    daemon = mps.pipe("alice", job)
    mps.let_go("alice", job)
    wait_for(lambda: not mps.node.daemons(), "the daemon is left")
    mps.node.run("start", 999_999, mps.user("alice"))  # a job whose epilog never came
    assert Path(daemon).is_dir()
    whole = mps.submit("bob", gres="gpu:2")
    assert "CUDA_MPS_PIPE_DIRECTORY" not in mps.told("bob", whole)
    assert mps.node.daemons() == set()
    mps.let_go("bob", whole)

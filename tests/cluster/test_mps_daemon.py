# SPDX-License-Identifier: Apache-2.0
"""The shared MPS daemon of real prologs and epilogs: one for each GPU and user, while one of his jobs runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.mps_nodes import MpsLab
from tests.cluster.mps_scenes import (
    a_component_of_a_het_job_is_a_client,
    a_requeued_job_has_it_again,
    all_users_share_a_daemon_of_roots,
    each_user_has_a_daemon_beside_the_others,
    mps_lab,
    seven_jobs_share_one_daemon,
    the_daemon,
)
from tests.fakes.mps_control import NAME


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
    seven_jobs_share_one_daemon(mps)


def test_each_user_has_a_daemon_beside_the_others(mps: MpsLab) -> None:
    each_user_has_a_daemon_beside_the_others(mps)


def test_all_users_share_a_daemon_of_roots(mps: MpsLab) -> None:
    all_users_share_a_daemon_of_roots(mps)


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
    a_component_of_a_het_job_is_a_client(mps)


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
    job = a_requeued_job_has_it_again(mps)
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
    assert mps.output(bobs) == f"colloc: job {bobs} runs without MPS: it has no daemon on its GPU\n"
    assert mps.node.daemons() == {the_daemon(pipe)}
    mps.let_go("bob", bobs)
    assert mps.node.daemons() == {the_daemon(pipe)}
    assert mps.lab.run_as("bob", ["ls", pipe]).returncode != 0
    ask = f"echo get_server_list | {mps.node.bin}/{NAME}"
    assert mps.lab.run_as("bob", ["sh", "-c", ask], env={"CUDA_MPS_PIPE_DIRECTORY": pipe}).returncode != 0

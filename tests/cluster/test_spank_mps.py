# SPDX-License-Identifier: Apache-2.0
"""The SPANK plugin and colloc-mps together in real Slurm: one daemon for each GPU and user, as by prologs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.mps_nodes import MpsLab
from tests.cluster.mps_scenes import (
    a_component_of_a_het_job_is_a_client,
    all_users_share_a_daemon_of_roots,
    each_user_has_a_daemon_beside_the_others,
    mps_lab,
    seven_jobs_share_one_daemon,
    the_daemon,
)
from tests.waiting import wait_for


@pytest.fixture(scope="module")
def running() -> Iterator[MpsLab]:
    with mps_lab(by_spank=True) as made:
        yield made


@pytest.fixture
def mps(running: MpsLab) -> Iterator[MpsLab]:
    yield running
    running.end_all()
    wait_for(lambda: not running.node.daemons(), "a daemon outlives all jobs")
    wait_for(lambda: not list(running.node.state.glob("[0-9]*")), "its folder stays")
    assert "drain" not in running.node_state()
    assert "down" not in running.node_state()


def test_seven_jobs_share_one_daemon_that_ends_with_the_last(mps: MpsLab) -> None:
    seven_jobs_share_one_daemon(mps)


def test_each_user_has_a_daemon_beside_the_others(mps: MpsLab) -> None:
    each_user_has_a_daemon_beside_the_others(mps)


def test_all_users_share_a_daemon_of_roots(mps: MpsLab) -> None:
    all_users_share_a_daemon_of_roots(mps)


def test_a_component_of_a_het_job_is_told_that_does_not_lead_it(mps: MpsLab) -> None:
    """Its reference has its own id, whatever SLURM_JOB_ID its step has."""
    a_component_of_a_het_job_is_a_client(mps)


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

# SPDX-License-Identifier: Apache-2.0
"""What holds of the shared MPS daemon whoever calls colloc-mps: prologs and epilogs, or the SPANK plugin."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.fixtures import new_lab, running
from tests.cluster.lab import Lab
from tests.cluster.mps_nodes import SLURM_CONF, MpsLab
from tests.fakes.mps_control import NAME
from tests.waiting import wait_for


@contextmanager
def mps_lab(lab: Lab | None = None, *, by_spank: bool = False) -> Iterator[MpsLab]:
    """Let a lab with colloc-mps run, one that is not up yet or a new one."""
    made = MpsLab(lab or new_lab(SLURM_CONF), by_spank=by_spank)
    try:
        with running(made.lab, bare=True):
            yield made
    finally:
        made.remove()


def the_daemon(pipe: str) -> int:
    return int((Path(pipe) / f"{NAME}.pid").read_text())


def seven_jobs_share_one_daemon(mps: MpsLab) -> None:
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


def a_component_of_a_het_job_is_a_client(mps: MpsLab) -> None:
    """Let a component that does not lead its job say what it was told."""
    out = mps.lab.root / "out/het"
    ask = "srun --het-group=1 printenv CUDA_MPS_PIPE_DIRECTORY SLURM_JOB_ID; sleep 1"
    argv = ["sbatch", "-W", "-o", str(out), "-p", "cpu", "--wrap", ask, ":", "-p", "gpu", "-w", "g1", "--gres=mps:14"]
    done = mps.lab.run_as("alice", argv, timeout=90)
    assert done.returncode == 0, (done.stderr, out.read_text())
    assert out.read_text().splitlines()[0] == f"{mps.node.folder(mps.user('alice'))}/pipe", out.read_text()


def a_requeued_job_has_it_again(mps: MpsLab) -> int:
    """Return the job, which runs."""
    job = mps.submit("alice", "--requeue")
    pipe = mps.pipe("alice", job)
    (Path(mps.lab.environment("alice")["HOME"]) / f"{job}.env").unlink()
    assert mps.lab.run(["scontrol", "requeue", str(job)]).returncode == 0
    assert mps.pipe("alice", job) == pipe
    assert mps.node.daemons() == {the_daemon(pipe)}
    assert mps.node.jobs(mps.user("alice")) == {job}
    return job


ROOT = (0, 0)


def each_user_has_a_daemon_beside_the_others(mps: MpsLab) -> None:
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


def all_users_share_a_daemon_of_roots(mps: MpsLab) -> None:
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

# SPDX-License-Identifier: Apache-2.0
"""The shared MPS daemon where jobs end with their cgroups: it belongs to none of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import cgroups
from tests.cluster.fixtures import RELEASE, in_cgroups
from tests.cluster.mps_nodes import SLURM_CONF, MpsLab, mps_lab, the_daemon
from tests.cluster.releases import HOST
from tests.cluster.test_mps_daemon import mps as mps
from tests.waiting import wait_for

pytestmark = pytest.mark.alone

# From 24.05 on a prolog may run in its job's own cgroup.
FLAGS = "Alloc,Contain" if HOST.name == RELEASE else "Alloc,Contain,RunInJob"


@pytest.fixture(scope="module")
def running() -> Iterator[MpsLab]:
    with in_cgroups() as lab:
        conf = lab.slurm_conf
        conf.write_text(conf.read_text().replace("PrologFlags=Alloc,Contain", f"PrologFlags={FLAGS}") + SLURM_CONF)
        containers = lab.root / "containers"
        containers.mkdir()
        if HOST.name == RELEASE:
            conf.write_text(conf.read_text() + "JobContainerType=job_container/tmpfs\n")
            (lab.root / "etc/job_container.conf").write_text(f"AutoBasePath=true\nBasePath={containers}/%n\n")
        with mps_lab(lab) as made:
            yield made


def test_it_is_in_no_jobs_cgroup_though_its_prolog_may_be(mps: MpsLab) -> None:
    jobs = [mps.submit("alice") for _ in range(2)]
    (pipe,) = {mps.pipe("alice", job) for job in jobs}
    pid = the_daemon(pipe)
    folders = Path(f"/proc/{pid}/cgroup").read_text()
    assert "/job_" not in folders
    assert "/colloc.slice/colloc-mps-" in folders
    mps.let_go("alice", jobs[0])
    assert mps.node.daemons() == {pid}
    mps.let_go("alice", jobs[1])
    wait_for(lambda: not mps.node.daemons(), "it outlives its last job")
    leaf = f"colloc.slice/colloc-mps-{mps.node.folder(mps.user('alice')).name}-*"
    found = [Path(mount) for mount in cgroups.mounts().values()]
    wait_for(lambda: not [path for mount in found for path in mount.glob(leaf)], "its cgroups are left")


def test_it_does_not_end_with_the_job_that_began_it(mps: MpsLab) -> None:
    """Let a job of root's do what a prolog would that runs inside its job; the daemon must outlive that job."""
    uid, gid = mps.user("alice")
    inner = f"SLURM_JOB_ID=999999 SLURM_JOB_UID={uid} SLURM_JOB_GID={gid} SLURM_JOB_GPUS=0 "
    inner += f"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=14 {' '.join(mps.node.argv('start'))}; echo $$ >>{mps.lab.root}/out/in"
    argv = ["sbatch", "--parsable", "-p", "gpu", "-w", "g1", "-o", f"{mps.lab.root}/out/root", "--wrap"]
    done = mps.lab.run([*argv, f"{inner}; cat /proc/self/cgroup; sleep 600"])
    assert done.returncode == 0, done.stderr
    folder = mps.node.folder((uid, gid))
    wait_for(lambda: (folder / "jobs/999999").exists(), f"nothing was started: {mps.queue()}")
    pid = the_daemon(str(folder / "pipe"))
    folders = Path(f"/proc/{pid}/cgroup").read_text()
    mps.lab.run(["scancel", done.stdout.strip()])
    mps.lab.wait_jobs([int(done.stdout)])
    wait_for(lambda: not mps.lab.run(["squeue", "-h", "--all"]).stdout, "root's job does not end")
    time.sleep(1)
    assert mps.node.daemons() == {pid}
    assert "/job_" not in folders
    job = mps.submit("alice")
    assert the_daemon(mps.pipe("alice", job)) == pid
    (folder / "jobs/999999").rmdir()
    mps.let_go("alice", job)
    wait_for(lambda: not mps.node.daemons(), "it does not end")


@pytest.mark.skipif(HOST.name != RELEASE, reason="the lab has job_container/tmpfs on its own release only")
def test_a_job_with_a_tmp_of_its_own_finds_it(mps: MpsLab) -> None:
    marker = Path("/tmp") / f"colloc-{mps.lab.root.name}"
    marker.touch()
    try:
        job = mps.submit("alice")
        pipe = mps.pipe("alice", job)
        out = mps.lab.root / "out/looked"
        look = f"ls {marker}; ls {pipe}"
        argv = ["sbatch", "-W", "-p", "gpu", "-w", "g1", "--gres=mps:14", "-o", str(out), "--wrap", look]
        mps.lab.run_as("alice", argv)
    finally:
        marker.unlink()
    said = out.read_text()
    assert "No such file" in said, "its /tmp is the node's"
    assert "nvidia-cuda-mps-control.pid" in said

# SPDX-License-Identifier: Apache-2.0
"""From process to job, and what jobs do on the host, in the cgroups that real Slurm makes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_colloc.core.usage_model import HostSample, NodeSample
from slurm_colloc.gpu.proc import ProcessTable, parse_cgroup_folders
from slurm_colloc.gpu.simulated import SimulatedReader
from slurm_colloc.observe.sampler import Sampler, Told
from slurm_colloc.slurm.jobs import HeldHere, held_question, parse_held
from tests.cluster import cgroups
from tests.cluster.fixtures import CGROUPS, CHECKOUT, in_cgroups, running
from tests.cluster.lab import Lab
from tests.waiting import wait_for

pytestmark = pytest.mark.alone

# Holds 200 MiB and burns a core; at "go" it writes 50 MiB and reads them again.
WORKER = """\
import os, pathlib
held = bytearray(os.urandom(1 << 20) * 200)
pathlib.Path("worker.pid").write_text(f"{os.getpid()}\\n")
while True:
    sum(range(100000))
    if os.path.exists("go") and not os.path.exists("done"):
        pathlib.Path("data").write_bytes(bytes(50 << 20))
        pathlib.Path("data").read_bytes()
        pathlib.Path("done").touch()
"""

# A daemon: its parent ends, its session is its own, and nothing but the cgroup says whose it is.
DAEMON = """\
import os, pathlib, time
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
pathlib.Path("daemon.pid").write_text(f"{os.getpid()}\\n")
time.sleep(600)
"""

ALICE = """\
#!/bin/bash
COLLOC_SIMULATED_GPU_LOAD=mem=500M,sm=5 python3 daemon.py
COLLOC_SIMULATED_GPU_LOAD=mem=3000M,util=41,sm=17,dram=3 python3 worker.py &
srun --overlap sleep 600
"""

BOB = """\
#!/bin/bash
COLLOC_SIMULATED_GPU_LOAD=mem=700M,util=9,sm=2 sh -c 'echo $$ >bob.pid; exec sleep 600'
"""


class Jobs:
    """Jobs of three users that run in real cgroups."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.alice = self._submit("alice", ALICE, "--gres=gpu:1", "--mem=600M")
        # Of a GPU that is not there, and of alice's: no word of a task's environment counts.
        self.bob = self._submit("bob", BOB, "--gres=gpu:1", SLURM_STEP_GPUS="0,7", SLURM_JOB_GPUS="0")
        argv = ["salloc", "--no-shell", "-J", "held", "-w", "g2", "--gres=gpu:1"]
        lab.run_as("carol", argv, check=True)
        self.carol = lab.run(["squeue", "-h", "-n", "held", "-o", "%A"]).stdout.strip()
        self.worker, self.daemon = self.pid("alice", "worker"), self.pid("alice", "daemon")

    def held(self, job: str) -> HeldHere | None:
        return parse_held(self.lab.run(held_question(job), check=True).stdout, job, "g1")

    def home(self, user: str) -> Path:
        return Path(self.lab.environment(user)["HOME"])

    def _submit(self, user: str, script: str, *options: str, **environ: str) -> str:
        for name, text in (("worker.py", WORKER), ("daemon.py", DAEMON), ("job.sh", script)):
            (self.home(user) / name).write_text(text)
        argv = ["env", *(f"{name}={value}" for name, value in environ.items())]
        argv += ["sbatch", "--parsable", "-w", "g1", *options, "job.sh"]
        return self.lab.run_as(user, argv, check=True).stdout.strip()

    def pid(self, user: str, name: str) -> int:
        path = self.home(user) / f"{name}.pid"
        wait_for(lambda: path.exists() and path.read_text().endswith("\n"))
        return int(path.read_text())


@pytest.fixture(scope="module")
def jobs() -> Iterator[Jobs]:
    with in_cgroups() as lab, running(lab, bare=True):
        yield Jobs(lab)


def cgroup_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text()


def test_slurm_made_the_cgroups(jobs: Jobs) -> None:
    """Else the other tests would say nothing: several slurmds of one host each have their own."""
    folders = parse_cgroup_folders(cgroup_of(jobs.worker))
    assert folders
    assert all("g1" in folder for folder in folders.values())
    assert parse_cgroup_folders(cgroup_of(jobs.daemon)) == folders
    assert set(folders) >= ({"freezer", "memory", "cpuacct", "devices"} if CGROUPS == "v1" else {""})


def test_process_to_job(jobs: Jobs) -> None:
    table = ProcessTable()
    daemon = table.status(jobs.daemon)
    assert daemon is not None
    assert table.members().keys() >= {jobs.alice, jobs.bob}
    assert daemon.parent not in table.members()[jobs.alice]
    assert {jobs.worker, jobs.daemon} <= set(table.members()[jobs.alice])
    assert [table.job_of_pid(pid) for pid in (jobs.worker, jobs.daemon, jobs.pid("bob", "bob"), os.getpid())] == [
        jobs.alice,
        jobs.alice,
        jobs.bob,
        "",
    ]


def test_a_container_of_a_service_is_outside_any_job(jobs: Jobs) -> None:
    """A process that claims bob's job in its environment, with a user's folder named like Slurm's around it."""
    hierarchy = "freezer" if CGROUPS == "v1" else ""
    inner = Path(cgroups.mounts()[hierarchy]) / f"user.slice/x\r0::/slurm/uid_0/job_{jobs.bob}"
    made = [folder for folder in (*reversed(inner.parents), inner) if not folder.exists()]
    inner.mkdir(parents=True)
    environment = {"SLURM_JOB_ID": jobs.bob, "SLURMD_NODENAME": "g1"}
    process = subprocess.Popen(["sleep", "60"], env=environment)
    try:
        (inner / "cgroup.procs").write_text(str(process.pid))
        assert f"job_{jobs.bob}" in cgroup_of(process.pid)
        assert ProcessTable().job_of_pid(process.pid) == ""
    finally:
        process.kill()
        process.wait()
        for folder in reversed(made):
            folder.rmdir()


def test_round(jobs: Jobs) -> None:
    rounds = two_rounds(jobs)
    first, second = rounds
    assert {(process.pid, process.job_id, process.gpu_mem_used_mib) for process in second.processes} == {
        (jobs.worker, jobs.alice, 3000),
        (jobs.daemon, jobs.alice, 500),
        (jobs.pid("bob", "bob"), jobs.bob, 700),
    }
    assert sorted(holder.job_id for holder in second.holders) == sorted((jobs.alice, jobs.bob))
    uuids = {process.job_id: process.uuid for process in second.processes}
    assert uuids == {holder.job_id: holder.uuid for holder in second.holders}
    before, alice, bob = host(first, jobs.alice), host(second, jobs.alice), host(second, jobs.bob)
    assert before[1] is None
    assert before[3:] == (None, None)
    assert alice.cpu_s is not None
    assert 0.25 * second.interval_s < alice.cpu_s < 1.5 * second.interval_s
    assert alice.host_mem_mib is not None
    assert 200 <= alice.host_mem_mib <= 320
    assert alice.written_mib == pytest.approx(50, abs=1)
    assert alice.read_mib == pytest.approx(50, abs=2)
    assert bob.cpu_s is not None
    assert bob.cpu_s < 0.3 * second.interval_s
    assert bob.host_mem_mib is not None
    assert bob.host_mem_mib < 50


def two_rounds(jobs: Jobs) -> tuple[NodeSample, NodeSample]:
    """Return what a sampler saw before and after alice's job wrote."""
    table = ProcessTable()
    reader = SimulatedReader(str(jobs.lab.gpus_dir / "g1.json"), "g1", table)
    held = {job: jobs.held(job) for job in (jobs.alice, jobs.bob)}
    sampler = Sampler(reader, "g1", 10.0, table=table, told=Told(held.get))
    began = time.monotonic()
    first = sampler.sample(began)
    (jobs.home("alice") / "go").touch()
    wait_for((jobs.home("alice") / "done").exists)
    wait_for(lambda: time.monotonic() > began + 1.5)
    return first, sampler.sample(time.monotonic())


def host(seen: NodeSample, job_id: str) -> HostSample:
    (found,) = (sample for sample in seen.hosts if sample.job_id == job_id)
    return found


PROBE = """\
import json
from slurm_colloc.cli.sampling import _ask_held
from slurm_colloc.gpu.hostuse import HostUse
from slurm_colloc.gpu.proc import ProcessTable
from slurm_colloc.gpu.simulated import SimulatedReader
from slurm_colloc.observe.sampler import Sampler, Told
table, use = ProcessTable(), HostUse()
use.read(table, [{job!r}])
(sample,) = use.read(table, [{job!r}])
told = Told(lambda job: _ask_held(job, "g1"))
sampler = Sampler(SimulatedReader({gpus!r}, "g1", table), "g1", 10.0, table=table, told=told)
holders = [holder.uuid for holder in sampler.sample(1.0).holders if holder.job_id == {job!r}]
print(json.dumps([sample, table.job_of_pid({pid}), holders, sorted(sampler.unknown_jobs)]))
"""
BOTH = "+sys_ptrace,+dac_read_search"


@pytest.mark.parametrize(("rights", "sees_all"), [("", False), ("+sys_ptrace", False), (BOTH, True)])
def test_rights(jobs: Jobs, rights: str, sees_all: bool) -> None:
    """Job, CPU time, memory and, by Slurm, GPUs held are open to all; bytes moved need two rights."""
    only = f"-all,{rights}".rstrip(",")
    argv = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", f"--inh-caps={only}"]
    argv += [f"--ambient-caps={only}", f"--bounding-set={only}", sys.executable, "-c"]
    gpus = str(jobs.lab.gpus_dir / "g1.json")
    program = PROBE.format(job=jobs.bob, pid=jobs.pid("bob", "bob"), gpus=gpus)
    environment = jobs.lab.environment() | {"PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run([*argv, program], cwd="/", env=environment, capture_output=True, text=True, check=False)
    if "No module named 'slurm_colloc'" in done.stderr or "Permission denied" in done.stderr:
        pytest.skip(f"nobody may not read this checkout: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    (_, cpu_s, memory_mib, *moved), job, holders, unknown = json.loads(done.stdout)
    assert (cpu_s is not None, memory_mib is not None, job) == (True, True, jobs.bob)
    assert [one is not None for one in moved] == [sees_all, sees_all]
    # Jobs of other clusters run here, too.
    assert (len(holders), jobs.bob in unknown) == (1, False)

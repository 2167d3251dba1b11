# SPDX-License-Identifier: Apache-2.0
"""Real jobs of a real Slurm on a real GPU, seen by the agent: `python -m tests.gpu.slurm FOLDER`.

FOLDER holds Debian 12's packages of Slurm 22.05 and their libraries, or slurm.txz, a release that brings its own
(tests/gpu/relocate.py). Run as root on a machine with one NVIDIA GPU that
nobody else uses and nothing of value: the packages are unpacked into the system. A private slurmctld and slurmd offer
the GPU as gres/gpu and gres/mps; jobs share it through an MPS daemon, one holds it idle, one runs on it alone. Prints
what each job had by attribution and what it got done, and leaves the journal in FOLDER/journal.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from slurm_colloc.core.usage_model import NodeSample
from slurm_colloc.observe.attribute import attribute_sample
from slurm_colloc.observe.journal import hours
from tests.gpu.cost import SITE
from tests.gpu.loads import PROGRAMS
from tests.gpu.read_loads import mps

SHARED_S, ALONE_S = 40.0, 20.0
CORES_PER_GPU = 16
CONF = """ClusterName=gpulab
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=7000
SlurmdParameters=config_overrides
SchedulerParameters=sched_min_interval=0,bf_interval=1,bf_resolution=1
MpiDefault=none
ReturnToService=2
GresTypes=gpu,mps
NodeName=n1 NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cpus} RealMemory={mem_mib} Gres=gpu:{gpu}:{gpus},mps:{gpus}00
PartitionName=all Nodes=n1 Default=YES MaxTime=30
"""
CGROUP_CONF = "CgroupPlugin=cgroup/v1\n"
# Where a release is that brings its libraries, and what of it belongs into /usr/sbin.
PREFIX, DAEMONS = Path("/opt/slurm"), ("slurmd", "slurmctld", "slurmstepd")


def unpack(packages: Path) -> None:
    """Put the packages' files where they belong; nothing that is there is overwritten."""
    if Path("/usr/sbin/slurmctld").exists():
        return
    if (one := packages / "slurm.txz").exists():
        PREFIX.mkdir(parents=True)
        subprocess.run(["tar", "-xJf", one, "-C", PREFIX], check=True)
        for program in (PREFIX / "bin").iterdir():
            (Path("/usr/sbin" if program.name in DAEMONS else "/usr/bin") / program.name).symlink_to(program)
        return
    own = Path("/tmp/slurm-packages")
    for package in sorted(packages.glob("*.deb")):
        subprocess.run(["dpkg", "-x", package, own], check=True)
    if (own / "lib").is_dir():
        shutil.copytree(own / "lib", own / "usr/lib", dirs_exist_ok=True, symlinks=True)
        shutil.rmtree(own / "lib")
    subprocess.run(["cp", "-rn", f"{own}/.", "/"], check=False)
    subprocess.run(["ldconfig"], check=True)
    for name in DAEMONS:
        if not Path(f"/usr/sbin/{name}").exists():
            Path(f"/usr/sbin/{name}").symlink_to(f"/usr/sbin/{name}-wlm")


def start(
    root: Path,
    gpu: str = "h100",
    etc: Path = Path("/etc/slurm"),
    devices: Sequence[str] = ("/dev/nvidia0",),
    ports: Sequence[int] = (7817, 7818),
) -> None:
    """Start slurmctld and slurmd; return when the node is idle. ``gpu`` is the type of each of its GPUs."""
    for folder in (root / "state", root / "spool", etc):
        folder.mkdir(parents=True, exist_ok=True)
    os.environ["SLURM_CONF"] = str(etc / "slurm.conf")
    relocated = Path(str(shutil.which("slurmctld"))).resolve().is_relative_to(PREFIX)
    plugins = f"PluginDir={PREFIX}/lib/slurm\n" if relocated else ""
    (etc / "slurm.conf").write_text(
        plugins + CONF.format(root=root, gpu=gpu, ports=ports, gpus=len(devices), **node(len(devices)))
    )
    lines = [f"Name=gpu Type={gpu} File={device}\n" for device in devices]
    shared = " Flags=all_sharing" if len(devices) > 1 else ""
    (etc / "gres.conf").write_text(f"AutoDetect=off\n{''.join(lines)}Name=mps Count={len(devices)}00{shared}\n")
    (etc / "cgroup.conf").write_text("CgroupPlugin=disabled\n" if relocated else CGROUP_CONF)
    subprocess.run(["slurmctld"], check=True)
    subprocess.run(["slurmd", "-N", "n1"], check=True)
    deadline = time.monotonic() + 30
    while "idle" not in ask("sinfo", "-h", "-o", "%T"):
        if time.monotonic() > deadline:
            raise SystemExit(f"{ask('sinfo')}\n{(root / 'slurmd.log').read_text()[-3000:]}")
        time.sleep(0.3)


def node(gpus: int) -> dict[str, int]:
    """Return what a node of so many GPUs has: 16 cores and 114,000 MiB for each."""
    return {"cpus": CORES_PER_GPU * gpus, "mem_mib": 114000 * gpus}


def stop(root: Path) -> None:
    """Stop both, and wait for their end."""
    for name in ("slurmd", "slurmctld"):
        path = root / f"{name}.pid"
        with contextlib.suppress(OSError, ValueError):
            pid = int(path.read_text())
            os.kill(pid, signal.SIGTERM)
            for _ in range(100):
                os.kill(pid, 0)
                time.sleep(0.1)


def ask(*argv: str) -> str:
    """Return what a command prints."""
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout


def submit(root: Path, program: str, gres: str, environment: Mapping[str, str]) -> str:
    """Submit a load as a job; return its id."""
    steps = root / f"{program}-{time.monotonic_ns()}.steps"
    steps.write_bytes(bytes(8))
    script = root / f"{steps.stem}.sh"
    load = root / f"{steps.stem}.py"
    load.write_text(PROGRAMS.get(program, "import time; time.sleep(3600)"))
    script.write_text(f"#!/bin/sh\nexec {sys.executable} {load}\n")
    argv = ["sbatch", "--parsable", f"--gres={gres}", "-c", "2", "-o", f"{root}/%j.out", str(script)]
    own = {**environment, "STEPS": str(steps)}
    job = subprocess.run(argv, capture_output=True, text=True, check=True, env=own).stdout.strip()
    (root / f"{job}.where").write_text(str(steps))
    return job


def done(root: Path, job: str) -> int:
    """Return how many steps a job has done."""
    return int.from_bytes(Path((root / f"{job}.where").read_text()).read_bytes(), "little")


def main(folder: Path) -> None:
    """Run the whole story."""
    root = Path("/tmp/gpulab")
    root.mkdir()
    unpack(folder)
    start(root)
    (root / "site.toml").write_text(SITE.format(folder=root).replace("test", "gpulab"))
    argv = [sys.executable, "-m", "slurm_colloc.cli.colloc", "agent", "--node", "n1", "--period", "1"]
    agent = subprocess.Popen(argv, env={**os.environ, "COLLOC_CONF": str(root / "site.toml")})
    try:
        with mps() as environment:
            jobs = {submit(root, name, "mps:25", environment): name for name in ("train", "train", "half")}
            jobs[submit(root, "holds", "mps:10", environment)] = "holds"
            phase(root, f"MPS under Slurm, {SHARED_S:g} s", jobs, SHARED_S)
        job = submit(root, "train", "gpu:1", os.environ)
        phase(root, "alone under Slurm", {job: "train"}, ALONE_S)
    finally:
        agent.terminate()
        agent.wait()
    shutil.copytree(root / "journal", folder / "journal", dirs_exist_ok=True)
    (folder / "jobs.txt").write_text(ask("scontrol", "show", "job", "-d", "-o"))


def phase(root: Path, label: str, jobs: Mapping[str, str], watched_s: float) -> None:
    """Let the jobs run for a while, print what was seen of them, and end them."""
    working = [job for job, name in jobs.items() if name in PROGRAMS]
    while not all(done(root, job) > 5 for job in working):
        time.sleep(0.2)
    time.sleep(3)
    began_s, before = time.time(), {job: done(root, job) for job in working}
    time.sleep(watched_s)
    ended_s = time.time()
    rates = {job: (done(root, job) - before[job]) / (ended_s - began_s) for job in working}
    rounds = [seen for hour in hours(f"{root}/journal") for seen in hour if began_s < seen.at_s <= ended_s]
    print(json.dumps({"phase": label, "jobs": rows(rounds, jobs, rates)}), flush=True)
    subprocess.run(["scancel", *jobs], check=True)
    while ask("squeue", "-h").strip():
        time.sleep(0.3)


def rows(rounds: list[NodeSample], jobs: Mapping[str, str], rates: Mapping[str, float]) -> list[dict[str, object]]:
    """Return what the NodeSamples say of each job and of the rest."""
    found: list[dict[str, object]] = []
    for job in [*jobs, ""]:
        own = [share for seen in rounds for share in attribute_sample(seen) if share.job_id == job]
        hosts = [host for seen in rounds for host in seen.hosts if host.job_id == job]
        holders = [holder for seen in rounds for holder in seen.holders if holder.job_id == job]
        cpu = [host.cpu_s for host in hosts if host.cpu_s is not None]
        found.append(
            {
                "job": job,
                "program": jobs.get(job, "the rest"),
                "steps_per_s": rates.get(job),
                "rounds": len(own),
                "sm_active_pct": statistics.fmean(share.sm_active_pct or 0.0 for share in own) if own else None,
                "gpu_mem_mib": max((share.gpu_mem_used_mib or 0 for share in own), default=None),
                "process_count": sorted({str(share.process_count) for share in own}),
                "methods": sorted({share.method for share in own}),
                "weights": sorted({str(holder.weight) for holder in holders}),
                "cpu_s_a_round": statistics.fmean(cpu) if cpu else None,
            }
        )
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))

# SPDX-License-Identifier: Apache-2.0
"""What pyslurm would save over Slurm's commands: `python -m tests.bench_pyslurm` (part of `make bench`).

A lab of Slurm 26.05 with so many jobs that wait. The same is asked by a command, started anew for each question, and by
pyslurm in a process that goes on. It needs the release's file tree (`python -m tests.cluster root 26.05`), and pyslurm
for that tree's Python in the folder COLLOC_PYSLURM, which is made in a copy of the tree with Debian's python3-dev,
python3-pip, python3-setuptools, python3-wheel, python3-packaging, cython3, gcc and libc6-dev, in pyslurm 25.11.2's
sources:

    sed -i 's/if Version(self.version) != Version(SLURM_VERSION):/if False:/' setup.py
    rm pyslurm/deprecated.pyx && sed -i '/deprecated/d' pyslurm/__init__.py
    SLURM_LIB_DIR=/usr/lib/x86_64-linux-gnu SLURM_INCLUDE_DIR=/usr/include \
    CFLAGS="-O2 -DSLURM_BACKWARD_COMPAT -Dslurm_free_ctl_conf=slurm_free_conf" \
    python3 -m pip install --no-build-isolation --no-deps --target FOLDER .
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from typing import Any

from tests.cluster.lab import Lab
from tests.cluster.releases import find

RELEASE, JOBS, LOOKS = "26.05", 2000, 20
MAKE = f"for i in $(seq {JOBS}); do sbatch -Q -H --gres=shard:1 --wrap true >/dev/null || exit; done; squeue -hO JobID"
# What squeue is asked for.
FIELDS = (
    *("id", "array_id", "array_task_id", "array_tasks_waiting", "heterogeneous_id", "heterogeneous_offset"),
    *("user_name", "state", "partition", "allocated_nodes", "allocated_tres", "gres_per_node", "run_time"),
    *("time_limit", "run_time_remaining", "dependencies", "state_reason"),
)


def cpu_s(whose: int) -> float:
    """Return the CPU time of this process, or of its children that ended."""
    used = getrusage(whose)
    return used.ru_utime + used.ru_stime


def row(what: str, ask: Callable[[], object], whose: int = RUSAGE_SELF, looks: int = LOOKS) -> None:
    """Print how often it can be asked, at the median, and its CPU time."""
    before_s, walls_s = cpu_s(whose), []
    for _ in range(looks):
        began_s = time.perf_counter()
        ask()
        walls_s.append(time.perf_counter() - began_s)
    each_ms = (cpu_s(whose) - before_s) / looks * 1e3
    print(f"  {what}: {1 / sorted(walls_s)[looks // 2]:.1f} questions a second, {each_ms:.2f} ms CPU each")


def inside(job_id: str, *queue: str) -> None:
    """Ask in the lab, by the release's own Python, which has none of our dependencies; ``queue`` asks for all jobs."""
    began_s = cpu_s(RUSAGE_SELF)
    pyslurm: Any = importlib.import_module("pyslurm")
    peak_mib = getrusage(RUSAGE_SELF).ru_maxrss / 1024
    print(f"  pyslurm: {(cpu_s(RUSAGE_SELF) - began_s) * 1e3:.0f} ms CPU to import, {peak_mib:.0f} MiB with Python")
    asked: dict[str, tuple[tuple[str, ...], Callable[[], object]]] = {
        "all jobs": (queue, lambda: [[getattr(job, at) for at in FIELDS] for job in pyslurm.Jobs.load().values()]),
        "one job": (("scontrol", "show", "job", "-d", "-o", job_id), lambda: pyslurm.Job.load(int(job_id)).state),
        "nodes": (("scontrol", "-a", "show", "node", "-o"), pyslurm.Nodes.load),
        "partitions": (("scontrol", "-a", "show", "partition", "-o"), pyslurm.Partitions.load),
        "slurm.conf": (("scontrol", "show", "config"), pyslurm.slurmctld.Config.load),
    }
    for what, (argv, by_pyslurm) in asked.items():
        row(f"{what}, {argv[0]}", partial(subprocess.run, argv, capture_output=True, check=True), RUSAGE_CHILDREN)
        row(f"{what}, pyslurm", by_pyslurm)
    print(f"  pyslurm in the end: {getrusage(RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB at most")


def main() -> int:
    """Fill a lab and ask in it; say why where that is not to be had."""
    if sys.argv[1:]:
        inside(*sys.argv[1:])
        return 0
    from slurm_colloc.slurm.jobs import QUEUE

    folder = os.environ.get("COLLOC_PYSLURM", "")
    if os.geteuid() or not find(RELEASE).is_there() or not Path(folder, "pyslurm").is_dir():
        print(f"pyslurm: not measured, for want of root, of Slurm {RELEASE} or of a folder in COLLOC_PYSLURM")
        return 0
    checkout = Path(__file__).resolve().parents[1]
    with Lab.create(release=RELEASE) as lab:
        made = lab.run_as("alice", ["sh", "-c", MAKE], timeout=600, check=True).stdout.split()
        print(f"pyslurm beside commands, {len(made)} jobs:", flush=True)
        python = ["env", f"PYTHONPATH={folder}", "PYTHONDONTWRITEBYTECODE=1", "python3", "-m", "tests.bench_pyslurm"]
        done = lab.run([*python, made[0], *QUEUE], cwd=checkout, timeout=600)
    print(done.stdout + done.stderr, end="")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())

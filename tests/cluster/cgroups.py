# SPDX-License-Identifier: Apache-2.0
"""Labs whose jobs run in real cgroups, as far as the machine's kernel offers them.

v2 is to be had on a machine that has v1 beside it, too, though without v1's controllers: memory, above all.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from slurm_colloc.gpu.hostuse import parse_mounts
from tests.cluster.errors import LabError
from tests.cluster.lab import Lab
from tests.cluster.nodes import NODES
from tests.fakes import build_preload

ROOT = Path("/sys/fs/cgroup")
V1_CONTROLLERS = ("freezer", "cpuacct", "memory", "devices")

_SLURM_CONF = """\
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
JobAcctGatherType={gather}
PrologFlags=Alloc,Contain
"""
_V1_CONF = "CgroupPlugin=cgroup/v1\nConstrainDevices=yes\nConstrainRAMSpace=yes\n"
_V2_CONF = "CgroupPlugin=cgroup/v2\nIgnoreSystemd=yes\nConstrainDevices=yes\n"


def missing(version: str) -> str:
    """Say what the kernel lacks for a lab with cgroups of this version; empty when nothing."""
    there = mounts()
    if version == "v2":
        return "" if "" in there else f"no cgroup2 is mounted here (mounted: {', '.join(sorted(there)) or 'nothing'})"
    lacking = [name for name in V1_CONTROLLERS if name not in there]
    return f"no cgroup v1 here for {', '.join(lacking)}" if lacking else ""


def mounts() -> dict[str, str]:
    """Return where this machine has its cgroup hierarchies."""
    return parse_mounts(Path("/proc/self/mountinfo").read_text())


def new_lab(release: str, version: str) -> Lab:
    """Make a lab whose jobs run in cgroups of this version."""
    gather = "jobacct_gather/cgroup" if version == "v1" else "jobacct_gather/linux"
    texts = {"cgroup.conf": _V1_CONF if version == "v1" else _V2_CONF}
    lab = Lab.create(release=release, extra_slurm_conf=_SLURM_CONF.format(gather=gather), files=texts)
    if version == "v2" and len(mounts()) > 1:
        # Slurm uses v2 only where it lies at the usual place and nothing of v1 is to be seen.
        with lab.mounts.open("a") as table:
            table.write(f"{mounts()['']} {ROOT} none bind 0 0\n")
        lab.names["LD_PRELOAD"] = str(build_preload("unified", lab.root / "etc"))
    return lab


@contextlib.contextmanager
def swept() -> Iterator[None]:
    """Keep the cgroups to one lab at a time, since each calls its nodes alike, and leave none behind."""
    lock = os.open(ROOT, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # A test run that was killed leaves them without processes.
        for folder in sorted(left() - _slices(), reverse=True):
            with contextlib.suppress(OSError):
                folder.rmdir()
        before = left()
        if before - _slices():
            raise LabError(f"cgroups of a lab that was not taken down: {', '.join(map(str, sorted(before)))}")
        try:
            yield
        finally:
            for folder in sorted(left() - before, reverse=True):
                folder.rmdir()
    finally:
        os.close(lock)


def _slices() -> set[Path]:
    return {Path(where) / "system.slice" for where in mounts().values()}


def left() -> set[Path]:
    """Return the cgroups of the lab's nodes, and the slice that v2 puts them in."""
    tops = {Path(where) / f"slurm_{node.name}" for where in mounts().values() for node in NODES}
    tops |= {place / f"{node.name}_slurmstepd.scope" for place in _slices() for node in NODES}
    return {Path(folder) for top in tops for folder, _, _ in os.walk(top)} | set(filter(Path.exists, _slices()))

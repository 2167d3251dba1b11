# SPDX-License-Identifier: Apache-2.0
"""A /proc in a folder, with processes of a test's choosing."""

from collections.abc import Mapping
from pathlib import Path


def add(
    root: Path,
    pid: int,
    parent: int = 1,
    command: str = "python",
    cgroup: str = "0::/user.slice/user-1000.slice/session-1.scope",
    cmdline: str = "",
    environ: Mapping[str, str] | None = None,
    uid: int = 1000,
    start_ticks: int = 777,
) -> None:
    """Add a process as Linux would show it."""
    folder = root / str(pid)
    folder.mkdir(parents=True)
    after = [str(parent), *(["0"] * 17), str(start_ticks), *(["0"] * 30)]
    (folder / "stat").write_text(f"{pid} ({command}) S {' '.join(after)}\n")
    (folder / "cgroup").write_text(cgroup + "\n")
    (folder / "cmdline").write_bytes((cmdline or command).encode() + b"\0")
    (folder / "environ").write_bytes(b"".join(f"{key}={value}\0".encode() for key, value in (environ or {}).items()))
    (folder / "status").write_text(
        f"Name:\t{command}\nUmask:\t0022\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nGid:\t1\t1\t1\t1\n"
    )


def stepd(root: Path, pid: int, job: str, uid: int = 0, step: str = "batch") -> None:
    """Add a slurmstepd, root's unless told otherwise."""
    add(root, pid, 1, "slurmstepd", "0::/system.slice/slurmd.service", f"slurmstepd: [{job}.{step}]", uid=uid)

# SPDX-License-Identifier: Apache-2.0
"""A /proc in a folder, with processes of a test's choosing."""

import shutil
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
    cpu_ticks: int = 0,
    reaped_ticks: int = 0,
    resident_pages: int = 0,
    read_bytes: int | None = 0,
    written_bytes: int = 0,
) -> None:
    """Add a process as Linux would show it, or show it anew; without ``read_bytes`` its io may not be read."""
    folder = root / str(pid)
    if folder.exists() and f" {start_ticks} " not in (folder / "stat").read_text():
        # Another process: the kernel would give its folder another inode, so the old one stays until it has one.
        folder.rename(root / "ended")
        folder.mkdir()
        shutil.rmtree(root / "ended")
    folder.mkdir(parents=True, exist_ok=True)
    after = [parent, *([0] * 9), cpu_ticks, 0, reaped_ticks, 0, *([0] * 4), start_ticks, *([0] * 30)]
    (folder / "stat").write_text(f"{pid} ({command}) S {' '.join(map(str, after))}\n")
    (folder / "statm").write_text(f"9999 {resident_pages} 1 0 0 0 0\n")
    (folder / "io").unlink(missing_ok=True)
    if read_bytes is not None:
        (folder / "io").write_text(f"rchar: {read_bytes}\nwchar: {written_bytes}\nsyscr: 7\nread_bytes: 1\n")
    (folder / "cgroup").write_text(cgroup + "\n")
    (folder / "cmdline").write_bytes((cmdline or command).encode() + b"\0")
    (folder / "environ").write_bytes(b"".join(f"{key}={value}\0".encode() for key, value in (environ or {}).items()))
    (folder / "status").write_text(
        f"Name:\t{command}\nUmask:\t0022\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nGid:\t1\t1\t1\t1\n"
    )


def stepd(root: Path, pid: int, job: str, uid: int = 0, step: str = "batch") -> None:
    """Add a slurmstepd, root's unless told otherwise."""
    add(root, pid, 1, "slurmstepd", "0::/system.slice/slurmd.service", f"slurmstepd: [{job}.{step}]", uid=uid)


def remove(root: Path, pid: int) -> None:
    """Let a process end."""
    shutil.rmtree(root / str(pid))

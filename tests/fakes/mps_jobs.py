# SPDX-License-Identifier: Apache-2.0
"""A node of its own for colloc-mps: folders in the places of /run and /proc, and control programs in those of PATH."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.fakes import mps_control
from tests.fakes.mps_control import NAME, Ill
from tests.reaper import new_folder

PROGRAM = Path(__file__).parents[2] / "slurm_colloc/plugin/colloc-mps"
CGROUPS = Path("/sys/fs/cgroup")
UUIDS = ("GPU-aaaaaaaa-0000-4000-8000-000000000000", "GPU-bbbbbbbb-1111-4111-8111-111111111111")


class Node:
    """A node with two GPUs; ``squeue`` is what Slurm says of its jobs, None where it does not answer."""

    def __init__(self, root: Path) -> None:
        """Make its folders below ``root``, which is a short path that every user can reach."""
        self.root = root
        self.state = root / "c/mps"
        self.proc = root / "p"
        self.systemd = root / "s"  # there is none
        self.log = root / "log"
        self.bin = root / "b"
        self.bin.mkdir()
        (root / "fake").mkdir()
        # A job with a /tmp of its own does not see a checkout that lies there.
        self.colloc_mps = shutil.copy(PROGRAM, root / "colloc-mps")
        mps_control.install(root / "fake")
        self.well()
        self.squeue(None)
        self.program("logger", f'echo "$*" >>{root}/said; exit 1')  # so that what it says is seen
        for number, uuid in enumerate(UUIDS):
            self.card(f"0000:{number}b:00.0", uuid)
        for folder in (root, *root.rglob("*")):
            if folder.is_dir():
                folder.chmod(0o755)

    def card(self, bus: str, uuid: str, excluded: str = "No") -> None:
        """Put a card on the bus, as driver 580 describes it."""
        folder = self.proc / "driver/nvidia/gpus" / bus
        folder.mkdir(parents=True)
        text = f"Model: \t\t NVIDIA H100\nGPU UUID: \t {uuid}\nBus Location: \t {bus}\nGPU Excluded:\t {excluded}\n"
        (folder / "information").write_text(text)

    def well(self, *words: Ill) -> None:
        """Let the control program work, or misbehave by these words."""
        told = ",".join(words)
        self.program(NAME, f"FAKE_MPS='{told}' exec {self.root}/fake/{NAME} \"$@\"")

    def script(self, text: str) -> None:
        """Make the control program another one."""
        self.program(NAME, text)

    def squeue(self, jobs: Sequence[int] | None) -> None:
        """Let Slurm say that these jobs run on the node, or not answer."""
        said = "exit 1" if jobs is None else "\n".join(f"echo {job}" for job in jobs)
        self.program("squeue", f'echo "$*" >>{self.root}/asked\n{said}')

    def with_systemd(self, does: str) -> None:
        """Let systemd run the node; ``does`` is what systemd-run does."""
        self.systemd.mkdir()
        self.program("systemd-run", f'echo "$*" >>{self.root}/scopes\n{does}')

    def ask_slurm(self) -> None:
        """Let the real Slurm be asked."""
        (self.bin / "squeue").unlink()

    def program(self, name: str, text: str) -> None:
        """Put a program of this name and text before the machine's own."""
        path = self.bin / name
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def argv(self, command: str) -> list[str]:
        """Return the command line of colloc-mps on this node."""
        options = (f"--state={self.state}", f"--proc={self.proc}", f"--systemd={self.systemd}", f"--log={self.log}")
        modes = ("--each=each,of-each", "--all=of-all,all")
        return [str(self.colloc_mps), *options, *modes, f"--bin={self.bin}", command]

    def run(self, command: str, job: int, user: tuple[int, int], gpu: str = "0", **more: str) -> str:
        """Run it as slurmd's prolog or epilog would, or a user's task prolog, and return what it said."""
        environment = {
            "SLURM_JOB_ID": str(job),
            "SLURM_JOB_UID": str(user[0]),
            "SLURM_JOB_GID": str(user[1]),
            "SLURM_JOB_GPUS": gpu,
            "CUDA_VISIBLE_DEVICES": gpu,
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "14",
            "SLURMD_NODENAME": "g1",
            **more,
        }
        environment = {name: value for name, value in environment.items() if value}
        ids = {"user": user[0], "group": user[1], "extra_groups": []} if command == "task" else {}
        done = subprocess.run(
            self.argv(command), env=environment, capture_output=True, text=True, timeout=30, check=False, **ids
        )  # type: ignore
        assert done.returncode == 0, done
        return str(done.stdout) + str(done.stderr)

    def folder(self, user: tuple[int, int], gpu: int | str = 0) -> Path:
        """Return the folder of a daemon."""
        return self.state / f"{user[0]}-{UUIDS[gpu] if isinstance(gpu, int) else gpu}"

    def jobs(self, user: tuple[int, int], gpu: int | str = 0) -> set[int]:
        """Return the jobs that hold it."""
        folder = self.folder(user, gpu) / "jobs"
        return {int(path.name) for path in folder.iterdir()} if folder.exists() else set()

    def daemons(self) -> set[int]:
        """Return the pids of daemons and servers of this node."""
        return {pid for pid, _ in working(str(self.state))}

    def remove(self) -> None:
        """End what is left and remove all."""
        self.reboot()
        shutil.rmtree(self.root)

    def reboot(self) -> None:
        """Leave nothing of the daemons: no process, no cgroup, no folder."""
        for pid in self.daemons():
            with contextlib.suppress(ProcessLookupError):  # one may end as its job does
                os.kill(pid, 9)
        units = [f"colloc-mps-{unit.parent.name}-{unit.stat().st_ino}" for unit in self.state.glob("*-*/unit")]
        for top in (CGROUPS, *CGROUPS.glob("*")):
            for unit in units:
                _remove_cgroup(top / f"colloc.slice/{unit}.scope")
            with contextlib.suppress(OSError):
                (top / "colloc.slice").rmdir()
        if self.state.is_dir() and not self.state.is_symlink():
            shutil.rmtree(self.state)


def _remove_cgroup(folder: Path) -> None:
    """Remove a cgroup whose processes are ending."""
    until = time.monotonic() + 5
    while folder.exists() and time.monotonic() < until:
        with contextlib.suppress(OSError):
            folder.rmdir()


def begin(user: int, *argv: str | Path, **more: Any) -> subprocess.Popen[Any]:
    """Start a program as this user, in no other group."""
    return subprocess.Popen(argv, user=user, group=user, extra_groups=[], **more)


@contextlib.contextmanager
def ended(*programs: subprocess.Popen[Any]) -> Iterator[None]:
    """Leave none of them behind."""
    try:
        yield
    finally:
        for one in programs:
            one.kill()
            one.wait()


def sleeper(root: Path, name: str) -> Path:
    """Return a program of this name that sleeps."""
    program = root / name
    program.write_bytes(Path("/bin/sleep").read_bytes())
    program.chmod(0o755)
    return program


def working(below: str) -> list[tuple[int, str]]:
    """Return pid and pipe folder of the MPS daemons and servers whose pipes lie below this folder."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "comm").read_text().strip() != NAME[:15]:
                continue
            items = (process / "environ").read_bytes().split(b"\0")
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        pipes = [item.partition(b"=")[2].decode() for item in items if item.startswith(b"CUDA_MPS_PIPE_DIRECTORY=")]
        if pipes and pipes[0].startswith(below) and state not in "ZX":
            found.append((int(process.name), pipes[0]))
    return found


def new_root() -> Path:
    """Return a new folder whose path leaves room for a pipe folder of 80 bytes."""
    return new_folder("c-", "/run")

# SPDX-License-Identifier: Apache-2.0
"""Batch scripts of packs, as csub would submit them, and a control program of MPS for the jobs' PATH."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from slurm_colloc.core.model import Load, Room
from slurm_colloc.pack.ledger import Ledger, read_ledger
from slurm_colloc.pack.spec import MARK, VERSION, Spec, to_json
from tests.cluster.lab import Lab
from tests.fakes import mps_control
from tests.waiting import wait_for

# What a program does at its first call of CUDA.
JOIN = (
    "import os, socket, sys; s = socket.socket(socket.AF_UNIX);"
    " s.connect(os.environ['CUDA_MPS_PIPE_DIRECTORY'] + '/control'); s.sendall(f'join {sys.argv[1]}\\n'.encode());"
    " s.shutdown(socket.SHUT_WR); s.recv(100)"
)


def a_spec(at_once: int = 1, **fields: Any) -> Spec:
    """Return a pack of tasks of which so many fit on a GPU."""
    given: dict[str, Any] = {
        "version": VERSION,
        "name": "sweep",
        "array": "",
        "commands": (),
        "only": (),
        "jobs": 1,
        "interpreter": ("/bin/sh",),
        "script_args": (),
        "load": Load(1000, 10.0),
        "room": Room(1000 * at_once, 100.0, at_once),
        "cpus_per_task": 1,
        "time_limit_min": None,
        "output": "out.%a",
        "error": "",
        "input": "",
        "append": False,
        "retries": 2,
        "argv": (),
    }
    return Spec(**given | fields)


def pack_script(python: str, spec: Spec, script: str = "", before: str = "") -> bytes:
    """Return the batch script of a pack."""
    head = f'#!/bin/sh\n{before}exec {python} -I -m slurm_colloc.pack.job "$0"\n'
    return head.encode() + MARK + to_json(spec).encode() + b"\n" + script.encode()


class Packs:
    """One of the lab's users, who submits packs, in a home without files of before."""

    def __init__(self, lab: Lab, user: str) -> None:
        self.lab, self.user = lab, user
        self.home = Path(lab.environment(user)["HOME"])
        for path in self.home.iterdir():
            if path.is_file():
                path.unlink()
        self.python = str(lab.bin / "python")
        self.fake = lab.root / "opt/fake-mps"
        self.fake.mkdir(exist_ok=True)
        program = self.fake / mps_control.NAME
        program.write_text(f"#!{self.python} -I\n{Path(mps_control.__file__).read_text()}")
        program.chmod(0o755)
        mps_control.install_smi(self.fake)

    def submit(self, spec: Spec, script: str = "", *options: str) -> str:
        """Submit a pack on one GPU and return its job id.

        Args:
            spec: what it is.
            script: the user's own.
            options: of sbatch.
        """
        path = self.home / "pack.sh"
        path.write_bytes(pack_script(self.python, spec, script, f"export PATH={self.fake}:$PATH\n"))
        path.chmod(0o644)
        argv = ["sbatch", "--parsable", "-p", "gpu", "--gres=gpu:1", "-c", "8", "-o", "pack.%j", *options, "pack.sh"]
        return self.lab.run_as(self.user, argv, check=True).stdout.strip()

    def ended(self, job: str, timeout: float = 60) -> tuple[str, str]:
        """Wait for a pack's end and return its exit code, as scontrol shows it, and what it said."""
        self.lab.wait_jobs([job], timeout=timeout)
        shown = self.lab.run(["scontrol", "show", "job", "-o", job], check=True).stdout
        code = next(word.partition("=")[2] for word in shown.split() if word.startswith("ExitCode="))
        return code, (self.home / f"pack.{job}").read_text()

    def told(self, job: str) -> Ledger:
        """Return what the pack wrote down."""
        [path] = (self.home / ".local/share/slurm_colloc/packs").glob(f"*/{job}.jsonl")
        return read_ledger(str(path))

    def wait_for(self, name: str) -> str:
        """Wait until a task has written to this file, and return what."""
        path = self.home / name
        wait_for(lambda: path.exists() and path.stat().st_size, f"nothing was written to {path}")
        return path.read_text()

    def steps(self, job: str) -> dict[str, list[str]]:
        """Return the states of the steps that sacct has for a job, by the names of its tasks."""
        self.lab.wait_accounted([job])
        argv = ["sacct", "-n", "-P", "-j", job, "-o", "JobName,State,ExitCode"]
        rows = [line.split("|") for line in self.lab.run(argv, check=True).stdout.splitlines()]
        found: dict[str, list[str]] = {}
        for name, state, code in rows:
            if name.startswith("task-"):
                found.setdefault(name, []).append(f"{state.split()[0]} {code}")
        return found

    def leftovers(self) -> list[Path]:
        """Return what packs have left in the folders of their daemons and scripts."""
        uid = self.lab.users[self.user].uid
        folders = (Path("/tmp"), Path("/dev/shm"), self.lab.root / "tmp")
        found = [path for folder in folders for path in folder.glob("csub-mps-*")]
        return [path for path in found if path.exists() and path.stat().st_uid == uid]

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Run a command as this user."""
        return self.lab.run_as(self.user, argv)

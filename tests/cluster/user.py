# SPDX-License-Identifier: Apache-2.0
"""One of the lab's users at a shell, submitting with csub."""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path

from tests.cluster.fixtures import RELEASE
from tests.cluster.lab import Lab

SLICE = "nvidia_h100_80gb_hbm3"
SMALL = "--gpu-footprint=mem=4G,sm=12"


def tres(*gres: str) -> str:
    """Return gres as `scontrol show job` of the tested release spells them."""
    separator = ":" if RELEASE == "22.05" else "/"
    return ",".join(f"gres{separator}{one}" for one in gres)


def job_id(done: subprocess.CompletedProcess[str]) -> str:
    """Return the id in sbatch's answer."""
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Submitted batch job "), done.stdout
    return done.stdout.split()[3]


class User:
    """One of the lab's users at a shell."""

    def __init__(self, lab: Lab, name: str, site: Path) -> None:
        self.lab = lab
        self.name = name
        self.home = Path(lab.environment(name)["HOME"])
        self.folder = site
        self.environment = {"COLLOC_CONF": str(site / "site.toml")}

    def script(self, text: str, name: str = "train.sh") -> str:
        (self.home / name).write_text(text)
        (self.home / name).chmod(0o644)
        return name

    def run(self, *argv: str, input: str | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        return self.lab.run_as(self.name, argv, input=input, env={**self.environment, **env})

    def submit(self, *argv: str, input: str | None = None, **env: str) -> str:
        return job_id(self.run("csub", *argv, input=input, **env))

    def jobs(self) -> list[str]:
        """Return this user's jobs as the controller has them."""
        return self.lab.run(["squeue", "-h", "-t", "all", "-u", self.name, "-o", "%A"]).stdout.split()

    def shown(self, job: str) -> dict[str, str]:
        """Return what scontrol says of a job; asked for a leader it names all components."""
        lines = self.lab.run(["scontrol", "show", "job", "-o", job]).stdout.splitlines()
        text = next((line for line in lines if line.startswith(f"JobId={job} ")), lines[0] if lines else "")
        return dict(item.split("=", 1) for item in text.split() if "=" in item)

    def allocated(self, job: str) -> dict[str, str]:
        """Return AllocTRES as name -> amount, once the job has started."""
        self.lab.wait_jobs([job])
        shown = self.shown(job)
        return dict(item.split("=", 1) for item in (shown.get("AllocTRES") or shown["TRES"]).split(","))

    def known(self, name: str) -> list[str]:
        """Return the ids of this user's jobs of this name: the controller forgets none while a lab lives.

        What the controller refused it keeps as FAILED without a node; no such job can run, so it is left out.
        """
        argv = ["squeue", "-h", "-t", "all", "-u", self.name, "-o", "%A|%T|%N|%j"]
        rows = [line.split("|", 3) for line in self.lab.run(argv, check=True).stdout.splitlines()]
        return [row[0] for row in rows if row[3:] == [name] and row[1:3] != ["FAILED", ""]]

    def recorded(self) -> Counter[str]:
        """Return how many jobs of each name sacct has, without what was refused."""
        argv = ["sacct", "-X", "-n", "-P", "-u", self.name, "-o", "State,NodeList,JobName"]
        rows = [line.split("|", 2) for line in self.lab.run(argv, check=True).stdout.splitlines()]
        return Counter(row[2] for row in rows if len(row) == 3 and row[:2] != ["FAILED", "None assigned"])

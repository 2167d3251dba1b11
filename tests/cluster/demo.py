# SPDX-License-Identifier: Apache-2.0
"""The whole story on a real cluster of one's own: submit, sample, mine, report, audit; then leave nothing running."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from slurm_colloc.sources.sacct_client import FIELDS
from tests.cluster.config import cluster_name
from tests.cluster.lab import Lab, Say
from tests.cluster.site import write_site


class Job(NamedTuple):
    """A batch script and how it is submitted: `load` is what its one process would do to a GPU."""

    user: str
    name: str
    directives: Sequence[str]
    load: str
    seconds: int
    footprint: str = ""


# Loads as measured on an H100 (docs/explanation/metrics.md): a small ResNet keeps 41 % GPU_UTIL and 17 % of the SMs.
JOBS = (
    Job("alice", "cifar", ["--gres=gpu:1", "--array=1-4"], "mem=3752M,util=41,sm=11", 8, "mem=4G,sm=12"),
    Job("alice", "resnet50", ["--gpus=1"], "mem=17000M,util=88,sm=27", 8, "mem=18G,sm=28"),
    Job("alice", "prepare", ["-p", "cpu"], "", 3),
    Job("bob", "finetune", ["--gres=gpu:1", "-p", "gpu"], "mem=7200M,util=63,sm=9", 8),
    Job("bob", "notebook", ["--gres=gpu:h100:1", "-p", "gpu"], "", 12),
    Job("carol", "detector", ["--gpus-per-node=1", "-p", "gpu"], "mem=6100M,util=55,sm=22", 9, "mem=7G,sm=24"),
    Job("carol", "tracker", ["--gres=gpu:1", "-p", "gpu"], "mem=9000M,util=60,sm=30", 9, "mem=10G,sm=31"),
    Job("carol", "student", ["--gres=shard:1", "-p", "gpu"], "mem=2000M,util=20,sm=4", 8),
    Job("carol", "llm", ["--gres=gpu:1", "-p", "gpu"], "mem=71000M,util=99,sm=92", 10, "mem=72G,sm=92"),
)


def script(job: Job) -> str:
    """Return the batch script of a job."""
    run = f"COLLOC_SIMULATED_GPU_LOAD={job.load} " if job.load else ""
    lines = ["#!/bin/bash", *(f"#SBATCH {line}" for line in _lines(job.directives)), f"{run}sleep {job.seconds}"]
    return "\n".join(lines) + "\n"


def _lines(directives: Sequence[str]) -> list[str]:
    return re.sub(r" (?=-)", "\n", " ".join(directives)).split("\n")


class Story:
    """One run of the demo."""

    def __init__(self, lab: Lab, results: Path) -> None:
        self.lab = lab
        self.results = results
        self.started = time.monotonic()
        self.since = datetime.now(UTC)

    def say(self, text: str) -> None:
        """Show progress."""
        print(f"[{time.monotonic() - self.started:5.1f} s] {text}", flush=True)

    def shell(self, argv: Sequence[str], user: str | None = None, allowed: Sequence[int] = (0,)) -> str:
        """Run a command as a user, show what it prints, and stop the story when it fails."""
        environment = {"COLLOC_CONF": str(self.lab.root / "site/site.toml")}
        done = (
            self.lab.run_as(user, argv, env=environment) if user else self.lab.run(argv, env=environment, timeout=120)
        )
        if done.returncode not in allowed:
            raise RuntimeError(f"'{' '.join(argv)}' ended with {done.returncode}:\n{done.stdout}{done.stderr}")
        sys.stdout.write("".join(f"          {line}\n" for line in done.stderr.splitlines()))
        return done.stdout

    def submitter(self, job: Job) -> str:
        """Return who submits a job: in the form without root everything is one user's."""
        return job.user if job.user in self.lab.users else next(iter(self.lab.users))

    def submit(self, job: Job) -> str:
        """Write a job's script into its user's home, submit it, and return its id."""
        user = self.submitter(job)
        home = Path(self.lab.environment(user)["HOME"])
        path = home / f"{job.name}.sh"
        path.write_text(script(job))
        path.chmod(0o644)
        argv = ["csub", *([f"--gpu-footprint={job.footprint}"] if job.footprint else []), path.name]
        print(f"  {user}$ {' '.join(argv)}")
        said = self.shell(argv, user)
        print(f"          {said.strip()}")
        return said.split()[-1]

    def run(self) -> None:
        """Tell the story from an empty cluster to the page."""
        lab = self.lab
        self.say("'colloc site init' reads the cluster and writes site.toml")
        write_site(lab)
        print("          " + self.shell(["colloc", "site", "check"]).strip())
        agents = [
            lab.spawn(
                f"colloc-{node}",
                [lab.bin / "colloc", "agent", "--node", node],
                env={"COLLOC_CONF": str(lab.root / "site/site.toml")},
            )
            for node in ("g1", "g2", "m1")
        ]
        self.say(
            f"samplers run on g1, g2 and m1; submitting as {', '.join(sorted({self.submitter(job) for job in JOBS}))}"
        )
        jobs = [self.submit(job) for job in JOBS]
        self.say(f"waiting for {len(jobs)} jobs")
        self.finish(jobs)
        self.say("'colloc ingest' mines sacct and the samples; bob submits his job again")
        self.shell(["colloc", "ingest", "--since", "1h"])
        again = self.submit(JOBS[3]._replace(seconds=8, directives=["--gres=gpu:1", "-p", "gpu"]))
        print("          (the first time as asked, now by what it was seen to use)")
        self.finish([again])
        self.shell(["colloc", "ingest", "--since", "1h"])
        for agent in agents:
            lab.stop_spawned(agent)
        self.report(again)

    def finish(self, jobs: Sequence[str]) -> None:
        """Wait until jobs have ended and accounting knows."""
        self.lab.wait_jobs(jobs, timeout=120)
        if self.lab.form == "root":
            self.lab.wait_accounted(jobs, timeout=60)

    def report(self, job: str) -> None:
        """Print and keep the results."""
        window = ["--since", self.since.isoformat(), "--until", datetime.now(UTC).isoformat()]
        self.say("real against allocated GPU use\n")
        print(self.shell(["colloc", "report", *window]))
        print(self.shell(["colloc", "job", job]))
        print(self.shell(["colloc", "audit", "run", *window], allowed=(0, 1)))
        self.results.mkdir(parents=True, exist_ok=True)
        for form in ("html", "json", "csv"):
            text = self.shell(["colloc", "report", *window, "--format", form])
            (self.results / f"report.{form}").write_text(text)
        shutil.copytree(self.lab.root / "site/journal", self.results / "journal", dirs_exist_ok=True)
        shutil.copy(self.lab.root / "site/site.toml", self.results)
        self.record(window)

    def record(self, window: Sequence[str]) -> None:
        """Keep Slurm's own rows, so that the same story can be told where no Slurm is."""
        argv, name = ["scontrol", "show", "job", "-d", "-o"], "controller.txt"
        if self.lab.form == "root":
            argv = ["sacct", "-a", "-D", "-X", "-P", "-n", "--noconvert", "-o", ",".join(FIELDS)]
            name = "sacct.txt"
        done = self.lab.run(argv, env={"TZ": "UTC", "SLURM_TIME_FORMAT": "%s"}, check=True)
        (self.results / name).write_text(done.stdout)
        version = self.lab.run(["scontrol", "--version"], check=True).stdout.split()[-1]
        about = {
            "what": f"four nodes with H100s under Slurm {version}, three users, made-up GPUs",
            "since": window[1],
            "until": window[3],
        }
        (self.results / "recording.json").write_text(json.dumps(about, indent=2) + "\n")


def tell(checkout: Path, release: str, say: Say, *, keep_recording: bool = False) -> int:
    """Bring a cluster up, tell the story, take the cluster down; return an exit status."""
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    results = checkout / "demo-output" / f"{stamp}-{os.getpid()}"
    lab = Lab.create(release=release, say=say)
    story = Story(lab, results)
    if lab.form == "user":
        story.say("not root: Slurm's form without root, munge and database; one user, jobs from slurmctld's memory")
    try:
        story.say(f"a private Slurm cluster under {lab.root}")
        lab.up(story.say)
        story.say("installing this checkout there, as a center would")
        lab.install(checkout)
        story.run()
    finally:
        lab.down()
        story.say("every process of the cluster is stopped")
    lab.remove()
    print(f"\nthe page:    {results}/report.html\nthe figures: {results}/report.json, report.csv")
    print(f"the inputs:  {results}/journal, site.toml, {'sacct.txt' if lab.form == 'root' else 'controller.txt'}")
    if keep_recording:
        keep(results, checkout / "tests/recorded/demo", cluster_name(lab.ports.numbers))
    return 0


def keep(results: Path, recorded: Path, cluster: str) -> None:
    """Replace the recording that `colloc demo` tells the story from; the cluster is called "lab" in it.

    Paths of this machine and the cluster's name, which is made from a port, stay out of it.
    """
    for name in ("journal", "sacct.txt", "recording.json", "site.toml"):
        target = recorded / name
        if target.is_dir():
            shutil.rmtree(target)
        (shutil.copytree if name == "journal" else shutil.copy)(results / name, target)
    sections = (recorded / "site.toml").read_text().split("\n\n")
    kept = [section for section in sections if not section.startswith(("[observe]", "[paths]"))]
    (recorded / "site.toml").write_text("\n\n".join(kept))
    for name in ("site.toml", "sacct.txt"):
        path = recorded / name
        path.write_text(re.sub(rf"\b{cluster}\b", "lab", path.read_text()))

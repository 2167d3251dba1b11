# SPDX-License-Identifier: Apache-2.0
"""A lab whose node g1 has colloc-mps by its prologs, with a control program that needs no GPU."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.fixtures import new_lab, running
from tests.cluster.lab import Lab
from tests.fakes.mps_control import NAME
from tests.fakes.mps_jobs import Node, new_root
from tests.waiting import wait_for

SLURM_CONF = """\
PartitionName=one Nodes=g1 ExclusiveUser=YES OverSubscribe=FORCE:4 MaxTime=INFINITE DefaultTime=10
PartitionName=of-each Nodes=g1 OverSubscribe=FORCE:4 MaxTime=INFINITE DefaultTime=10
PartitionName=of-all Nodes=g1 OverSubscribe=FORCE:4 MaxTime=INFINITE DefaultTime=10
PartitionName=hidden Nodes=g1 Hidden=YES OverSubscribe=FORCE:4 MaxTime=INFINITE DefaultTime=10
"""
# Says what it was told, and lives until its file is made.
JOB = 'env >"$HOME/$SLURM_JOB_ID.env"; while [ ! -e "$HOME/go.$SLURM_JOB_ID" ]; do sleep 0.1; done'


class MpsLab:
    """The lab, its node's folders, and its jobs."""

    def __init__(self, lab: Lab) -> None:
        """Put colloc-mps into the scripts of a lab that is not up yet."""
        self.lab = lab
        self.node = Node(new_root())
        self.node.ask_slurm()
        conf = lab.slurm_conf
        conf.write_text(conf.read_text().replace("PartitionName=gpu ", "PartitionName=gpu OverSubscribe=FORCE:4 "))
        for script, command in (("prolog", "start"), ("epilog", "stop"), ("taskprolog", "task")):
            self._append(lab.root / f"etc/{script}.sh", command)

    def _append(self, path: Path, command: str) -> None:
        text = path.read_text().replace("|| exit 0\n", "|| true\n")
        call = f"timeout -k 2 15 {shlex.join(self.node.argv(command))}"
        path.write_text(f'{text}[ "$SLURMD_NODENAME" != g1 ] || {call}\nexit 0\n')

    def remove(self) -> None:
        """End what is left and remove the node's folders."""
        self.node.remove()

    def user(self, name: str) -> tuple[int, int]:
        """Return uid and gid."""
        return self.lab.users[name].uid, self.lab.users[name].gid

    def submit(self, user: str, *options: str, gres: str = "mps:14") -> int:
        """Submit a job that lives until it is let go."""
        argv = ["sbatch", "--parsable", "-p", "gpu", "-w", "g1", "-o", f"{self.lab.root}/out/%j", f"--gres={gres}"]
        done = self.lab.run_as(user, [*argv, *options, "--wrap", JOB])
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    def told(self, user: str, job: int) -> dict[str, str]:
        """Return the environment that a job says it has, once it runs."""
        path = Path(self.lab.environment(user)["HOME"]) / f"{job}.env"
        wait_for(lambda: path.exists() and path.stat().st_size, f"job {job} does not run: {self.queue()}", 90)
        return dict(line.split("=", 1) for line in path.read_text().splitlines() if "=" in line)

    def pipe(self, user: str, job: int) -> str:
        """Return the pipe folder that a job was given; empty for none."""
        return self.told(user, job).get("CUDA_MPS_PIPE_DIRECTORY", "")

    def let_go(self, user: str, *jobs: int) -> None:
        """Let jobs end, and wait for it."""
        for job in jobs:
            (Path(self.lab.environment(user)["HOME"]) / f"go.{job}").touch()
        self.lab.wait_jobs(jobs)

    def output(self, job: int) -> str:
        """Return what the job's task wrote."""
        return (self.lab.root / f"out/{job}").read_text()

    def state(self, job: int) -> str:
        """Return squeue's word for it."""
        return self.lab.run(["squeue", "-h", "-t", "all", "-j", str(job), "-o", "%T"]).stdout.strip()

    def queue(self) -> str:
        """Return what squeue says of all."""
        return self.lab.run(["squeue", "--all"]).stdout

    def node_state(self) -> str:
        """Return sinfo's word for g1 and its reason."""
        return self.lab.run(["sinfo", "-h", "-p", "one", "-o", "%T %E"]).stdout.strip()

    def end_all(self) -> None:
        """Cancel all jobs, and wait until no epilog runs; forget what the control program was."""
        self.lab.run(["scancel", "-u", "alice"])
        self.lab.run(["scancel", "-u", "bob"])
        wait_for(lambda: not self.lab.run(["squeue", "-h", "--all"]).stdout, "jobs do not end")
        self.node.well()


@contextmanager
def mps_lab(lab: Lab | None = None) -> Iterator[MpsLab]:
    """Let a lab with colloc-mps run, one that is not up yet or a new one."""
    made = MpsLab(lab or new_lab(SLURM_CONF))
    try:
        with running(made.lab, bare=True):
            yield made
    finally:
        made.remove()


def the_daemon(pipe: str) -> int:
    return int((Path(pipe) / f"{NAME}.pid").read_text())

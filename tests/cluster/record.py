# SPDX-License-Identifier: Apache-2.0
"""What a release's commands print, kept for the tests of the parsers: `python -m tests.cluster record RELEASE`."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from slurm_colloc.slurm.sinfo import QUESTION
from slurm_colloc.sources.sacct_client import FIELDS
from tests.cluster.config import cluster_name
from tests.cluster.lab import Lab
from tests.cluster.nodes import MIG_TYPE_PREFIX

END = "\x1f0123456789abcdef\x1f"
UTC = {"TZ": "UTC"}
EPOCH = {**UTC, "SLURM_TIME_FORMAT": "%s"}
WINDOW = ["-S", "now-1hour", "-E", "now", "-o", ",".join(FIELDS)]
# File -> what prints it, and its variables.
ASKED = {
    "sbatch/help.txt": (["sbatch", "--help"], UTC),
    "sbatch/usage.txt": (["sbatch", "--usage"], UTC),
    "scontrol/version.txt": (["scontrol", "--version"], UTC),
    "scontrol/node.txt": (["scontrol", "show", "node", "-o"], UTC),
    "scontrol/partition.txt": (["scontrol", "show", "partition", "-o"], UTC),
    "scontrol/config.txt": (["scontrol", "show", "config"], UTC),
    "scontrol/job.txt": (["scontrol", "show", "job", "-d", "-o"], UTC),
    "sacct/text.txt": (["sacct", "-a", "-D", "-P", "--noconvert", *WINDOW], EPOCH),
    "sacct/terminated.txt": (
        ["sacct", "-a", "-D", "-X", "-p", "-n", "--noconvert", f"--delimiter={END}", *WINDOW],
        EPOCH,
    ),
}
# How jobs are preempted, cluster-wide and by partition: lines of slurm.conf.
PREEMPTION = {
    "suspend": (
        "PreemptType=preempt/partition_prio\nPreemptMode=SUSPEND,GANG\n"
        "PartitionName=off Nodes=g1 PreemptMode=OFF\nPartitionName=again Nodes=g1 PreemptMode=REQUEUE\n"
        "PartitionName=suspend Nodes=g1 PreemptMode=SUSPEND\n"
        "PartitionName=turns Nodes=g1 PreemptMode=OFF OverSubscribe=FORCE:2"
    ),
    "gang": "PreemptMode=GANG\nPartitionName=turns Nodes=g1 OverSubscribe=FORCE:2",
    "qos": "PreemptType=preempt/qos\nPreemptMode=SUSPEND,GANG\nPartitionName=off Nodes=g1 PreemptMode=OFF",
}
SHORT = "sleep 1"
LONG = "sleep 600"


def record(release: str, recorded: Path, say: Callable[[str], None]) -> None:
    """Run a few odd jobs on a lab of this release and keep what its commands then print."""
    lab = Lab.create(release=release, say=say)
    try:
        lab.up(say)
        _run_jobs(lab)
        for name, (argv, environment) in ASKED.items():
            text = lab.run(argv, env=environment, check=True).stdout
            path = recorded / f"slurm-{release}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_anonymous(lab, text), newline="")
            say(f"{path}")
    finally:
        lab.down(say)
    lab.remove()


def record_free(release: str, recorded: Path, say: Callable[[str], None]) -> None:
    """Keep what says which GPUs are free: of an idle lab, with jobs of each kind and others waiting, and drained."""
    lab = Lab.create(release=release, say=say)
    try:
        lab.up(say)
        _keep_free(lab, recorded / f"slurm-{release}/sinfo/idle.txt", say)
        submit = partial(_submit, lab, script=LONG)
        of_slice = partial("--gres=gpu:{}{}:{}".format, MIG_TYPE_PREFIX)
        begun = [
            submit("slice", "-p", "mig", of_slice("1g.10gb", 1)),
            submit("larger slice", "-p", "mig", of_slice("3g.40gb", 1)),
            submit("mps", "-w", "g1", "--gres=mps:30"),
            submit("whole", "-w", "g1", "--gres=gpu:h100:1"),
            submit("shard", "-w", "g2", "--gres=shard:3"),
        ]
        for job in begun:
            lab.wait_state(job)
        _keep_free(lab, recorded / f"slurm-{release}/sinfo/busy.txt", say)
        submit("two whole", "-w", "g2", "--gres=gpu:2")
        submit("two slices", "-p", "mig", of_slice("1g.10gb", 2))
        time.sleep(5)  # until backfill has looked at those that wait
        _keep_free(lab, recorded / f"slurm-{release}/sinfo/waiting.txt", say)
        lab.run(["scontrol", "update", "NodeName=g2", "State=DRAIN", "Reason=test"], check=True)
        lab.run(["scontrol", "update", "NodeName=m1", "State=DOWN", "Reason=test"], check=True)
        _keep_free(lab, recorded / f"slurm-{release}/sinfo/drained.txt", say)
    finally:
        lab.down(say)
    lab.remove()


def record_preemption(release: str, recorded: Path, say: Callable[[str], None]) -> None:
    """Keep what scontrol shows of clusters and partitions that suspend jobs."""
    for kind, lines in PREEMPTION.items():
        lab = Lab.create(release=release, say=say, extra_slurm_conf=lines)
        try:
            lab.up(say)
            for name in ("scontrol/partition.txt", "scontrol/config.txt"):
                argv, environment = ASKED[name]
                path = recorded / f"slurm-{release}/preemption/{kind}-{Path(name).name}"
                path.parent.mkdir(exist_ok=True)
                path.write_text(_anonymous(lab, lab.run(argv, env=environment, check=True).stdout))
                say(f"{path}")
        finally:
            lab.down(say)
        lab.remove()


def _keep_free(lab: Lab, path: Path, say: Callable[[str], None]) -> None:
    text = lab.run(QUESTION, env=UTC, check=True).stdout
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(sorted(text.splitlines(keepends=True))))  # their order is the controller's
    say(f"{path}")


def _anonymous(lab: Lab, text: str) -> str:
    return text.replace(str(lab.root), "/lab").replace(cluster_name(lab.ports.numbers), "lab")


def _submit(lab: Lab, name: str, *options: str, script: str = SHORT) -> int:
    argv = ["sbatch", "--parsable", "-o", "/dev/null", "-J", name, *options, f"--wrap={script}"]
    return int(lab.run_as("alice", argv, check=True).stdout)


def _submit_het(lab: Lab) -> int:
    argv = ["sbatch", "--parsable", "-o", "/dev/null", "-J", "het", "-w", "g1", "--gres=gpu:1"]
    argv += [":", "-J", "het2", "-w", "c1"]
    return int(lab.run_as("alice", argv, input=f"#!/bin/sh\n{SHORT}\n", check=True).stdout)


def _run_jobs(lab: Lab) -> None:
    submit, begin = partial(_submit, lab), lab.wait_state
    # Job ids rise in this order; the tests know the jobs by their names.
    ended = [
        submit("pipe|in|name", "-w", "g1", "--gres=gpu:1"),
        submit("new\nline", "-w", "g1", "--gpus-per-node=1"),
        submit("array", "-w", "g2", "--gres=gpu:h100:1", "--array=0-1"),
        submit("mig", "-p", "mig", f"--gres=gpu:{MIG_TYPE_PREFIX}1g.10gb:2"),
    ]
    # One after the other: a device is not shared between a gpu and a shard or mps job.
    lab.wait_jobs(ended)
    ended += [submit("shard", "-p", "gpu", "--gres=shard:3"), submit("mps", "-p", "gpu", "--gres=mps:50")]
    ended.append(_submit_het(lab))
    requeued = submit("requeued", "-p", "cpu", "--requeue", script="sleep 2")
    suspended = submit("suspended", "-p", "mig", f"--gres=gpu:{MIG_TYPE_PREFIX}3g.40gb:1", script="sleep 4")
    begin(requeued)
    begin(suspended)
    lab.run(["scontrol", "suspend", str(suspended)], check=True)
    lab.run(["scontrol", "requeue", str(requeued)], check=True)
    time.sleep(3)
    lab.run(["scontrol", "resume", str(suspended)], check=True)
    # Slurm waits for two minutes before it starts a requeued job again.
    lab.wait_jobs([*ended, requeued, suspended], timeout=240)
    cancelled = submit("cancelled", "-w", "g1", "--gpus=1", script="sleep 60")
    begin(cancelled)
    lab.run(["scancel", str(cancelled)], check=True)
    failed = submit("failed", "-p", "cpu", script="exit 3")
    lab.wait_jobs([cancelled, failed])
    lab.wait_accounted([*ended, requeued, suspended, cancelled, failed])
    begin(submit("running", "-p", "gpu", "--gres=gpu:h100:2", script="sleep 600"))
    submit("pending", "-p", "gpu", "-H", "--gres=gpu:1")
    time.sleep(5)  # until accounting has the running one

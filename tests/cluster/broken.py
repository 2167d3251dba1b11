# SPDX-License-Identifier: Apache-2.0
"""Labs that are set up wrong on purpose, one fault or several of each kind that 'colloc site doctor' looks for."""

from __future__ import annotations

import re
from pathlib import Path

from slurm_colloc.slurm.setup import parse_queue
from tests.cluster import daemons
from tests.cluster.lab import Lab
from tests.cluster.nodes import MIG_TYPE_PREFIX, tracked_tres
from tests.fakes import build_preload
from tests.waiting import wait_for

# What no job may run into here: there is no GPU, and so neither program.
PROLOG = """
if command -v nvidia-cuda-mps-control >/dev/null; then
    nvidia-smi -c ${CUDA_VISIBLE_DEVICES}
    nvidia-smi -c EXCLUSIVE_PROCESS
    pgrep -f nvidia-cuda-mps-control && echo quit | nvidia-cuda-mps-control
    place=/run/mps
    export CUDA_MPS_PIPE_DIRECTORY=$place/$SLURM_JOB_ID
    nvidia-cuda-mps-control -d -multiuser-server
fi
"""
_PRICES = (("1g.10gb", 14), ("2g.20gb", 28), ("3g.40gb", 43))
_OF_SLICES = ",".join(f"gres/gpu:{MIG_TYPE_PREFIX}{size}={price}" for size, price in _PRICES)
SLURM_CONF = f"""\
AccountingStorageEnforce=associations,limits,qos
AccountingStorageTRES={",".join(tracked_tres())},gres/gpu:a100
SchedulerParameters=sched_min_interval=0,bf_interval=1,bf_max_job_test=3,default_queue_depth=3
JobAcctGatherType=jobacct_gather/none
PrologEpilogTimeout=16
PartitionName=dear Nodes=g2,m1 TRESBillingWeights=CPU=0.5,Mem=0.25G,GRES/gpu=100
PartitionName=free Nodes=g1 TRESBillingWeights=gres/gpu=100 MaxTime=3-0
PartitionName=fair Nodes=g2,m1 TRESBillingWeights=gres/shard=25,gres/gpu:h100=100,{_OF_SLICES}
"""


def shared_wrongly(release: str) -> Lab:
    """Make a lab in which everything about sharing is wrong, but for the types of slices: see ``lose_a_slice``."""
    lab = Lab.create(release=release, extra_slurm_conf=SLURM_CONF)
    replace(lab.slurm_conf, "mps:200", "mps:200,shard:8")
    with (lab.root / "etc/gres.conf").open("a") as text:
        text.write("NodeName=g1 Name=shard Count=8\n")
    prolog = lab.root / "etc/prolog.sh"
    prolog.write_text(prolog.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\n{PROLOG}", 1))
    return lab


# Partitions and settings that keep jobs on shares apart.
APART = """\
SelectTypeParameters=CR_Core_Memory,CR_LLN
PreemptMode=SUSPEND,GANG
PreemptType=preempt/partition_prio
PriorityWeightTRES=gres/gpu=1000
PrologFlags=NoHold
SchedulerType=sched/builtin
PartitionName=whole Nodes=g2 OverSubscribe=EXCLUSIVE
PartitionName=forced Nodes=g2 OverSubscribe=FORCE:4
PartitionName=single Nodes=m1 ExclusiveUser=YES
PartitionName=pair Nodes=g[1-2] MinNodes=2
PartitionName=cores Nodes=g2 DefCpuPerGPU=5
PartitionName=capped Nodes=g2 DefCpuPerGPU=4 MaxCPUsPerNode=3
PartitionName=memory Nodes=g2 DefMemPerGPU=5000
"""


def apart(release: str) -> Lab:
    """Make a lab in which jobs on shares never meet, and take all memory of their node."""
    lab = Lab.create(release=release, extra_slurm_conf=APART)
    replace(lab.slurm_conf, "DefMemPerCPU=100\n", "")
    return lab


def unruly(release: str) -> Lab:
    """Make a lab with programs that anybody may write and none that undoes, whole sockets, and jobs told of no GPU."""
    lab = Lab.create(release=release, extra_slurm_conf="SelectTypeParameters=CR_Socket\n")
    replace(lab.slurm_conf, f"Epilog={lab.root}/etc/epilog.sh\n", "")
    gres = lab.root / "etc/gres.conf"
    gres.write_text(re.sub(r"(NodeName=g2 Name=gpu .*)", r"\1 Flags=no_gpu_env", gres.read_text()))
    prolog = lab.root / "etc/prolog.sh"
    prolog.write_text(prolog.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\n{PROLOG}", 1))
    prolog.chmod(0o777)
    return lab


def forget_shares(lab: Lab) -> None:
    """Let slurmctld know of GPUs alone."""
    replace(lab.slurm_conf, "GresTypes=gpu,mps,shard", "GresTypes=gpu")
    _restart_slurmctld(lab)


def limit(lab: Lab) -> None:
    """Set limits that shares escape and slices use up."""
    for argv in (
        ["add", "qos", "one", "set", "MaxTRESPerUser=gres/gpu=1"],
        ["modify", "user", "alice", "set", "qos+=one"],
        ["modify", "account", "phys", "set", "GrpTRES=gres/gpu:h100=4"],
        ["add", "qos", "sound", "set", "MaxTRESPerUser=billing=100"],
        ["add", "qos", "must", "set", "MinTRES=gres/gpu=1"],
    ):
        lab.run(["sacctmgr", "-i", *argv], check=True)


def queue_up(lab: Lab, jobs: int = 8) -> None:
    """Let more jobs wait than backfill looks at."""
    for _ in range(jobs):
        lab.run_as("alice", ["sbatch", "-o", "/dev/null", "-w", "g2", "--gres=gpu:2", "--wrap=sleep 300"], check=True)


def lose_a_slice(lab: Lab) -> None:
    """Give a slice a type in gres.conf that is not the one in slurm.conf, and wait until its node is out of service."""
    replace(lab.root / "etc/gres.conf", f"Type={MIG_TYPE_PREFIX}2g.20gb", "Type=nvidia_a100_2g.10gb")
    lab.run(["scontrol", "reconfigure"], check=True)
    wait_for(
        lambda: "lower than configured" in lab.run(["scontrol", "show", "node", "m1"]).stdout, "m1 stays in service"
    )


def untracked(release: str) -> Lab:
    """Make a lab whose accounting neither tracks GPUs nor enforces limits, and hides them from users."""
    lab = Lab.create(release=release, extra_slurm_conf="AccountingStorageTRES=gres/mps\nProctrackType=proctrack/pgid")
    with (lab.root / "etc/slurmdbd.conf").open("a") as text:
        text.write("PrivateData=accounts,users\n")
    return lab


def without_database(lab: Lab) -> None:
    """Take the accounting away from a lab that is up: one without a database could not be set up."""
    text = "".join(line for line in _lines(lab.slurm_conf) if not line.startswith("AccountingStorage"))
    lab.slurm_conf.write_text(f"{text}AccountingStorageType=accounting_storage/none\n")
    _restart_slurmctld(lab)


def whole_nodes_only(lab: Lab) -> None:
    """Select nodes by a plugin that knows no GPUs; with gres/mps or gres/shard slurmctld does not start on it."""
    for path in (lab.slurm_conf, lab.root / "etc/gres.conf"):
        kept = (line for line in _lines(path) if not re.search("Name=(mps|shard) ", line))
        path.write_text(re.sub(r",(mps|shard)\b(:\d+)?", "", "".join(kept)))
    replace(lab.slurm_conf, "SelectType=select/cons_tres", "SelectType=select/linear")
    replace(lab.slurm_conf, "CR_Core_Memory", "CR_Memory")
    _restart_slurmctld(lab)


def ahead_of_time(lab: Lab, node: str, ahead_s: int) -> dict[str, str]:
    """Start a node's slurmd with a clock that is ahead; return by which environment any program has one."""
    library = build_preload("skew", lab.root / "etc")
    lab.book.stop([next(record for record in lab.book.records() if record.name == f"slurmd-{node}")])
    skewed = {"LD_PRELOAD": str(library), "SKEW_S": str(ahead_s)}
    argv = ["env", *(f"{name}={value}" for name, value in skewed.items()), "slurmd", "-N", node, "-D"]
    lab.start_daemon(f"slurmd-{node}", argv, None)
    return skewed


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines(keepends=True)


def _restart_slurmctld(lab: Lab) -> None:
    lab.book.stop([record for record in lab.book.records() if record.name == "slurmctld"])
    daemons.start_slurmctld(lab)


def replace(path: Path, old: str, new: str) -> None:
    """Change what a file of a lab says."""
    text = path.read_text()
    assert old in text, (path, old)
    path.write_text(text.replace(old, new))


def wait_for_backfill(lab: Lab) -> None:
    """Wait until a cycle of backfill has seen more jobs than it looks at."""

    def seen() -> bool:
        return (parse_queue(lab.run(["sdiag"], check=True).stdout).queue_jobs or 0) > 3

    wait_for(seen, "no cycle of backfill saw the queue")

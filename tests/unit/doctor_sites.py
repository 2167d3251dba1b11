# SPDX-License-Identifier: Apache-2.0
"""A site that is sound in all that 'colloc site doctor' looks at, ways to spoil it, and one recorded in ruins."""

from collections.abc import Mapping, Sequence
from typing import Any

from slurm_colloc.core.model import Gres
from slurm_colloc.gpu.nvidia_smi import SmiDevice
from slurm_colloc.site.doctor.facts import Script, Site, Unread, known
from slurm_colloc.slurm import setup
from slurm_colloc.slurm.limits import Cap, parse_caps
from slurm_colloc.slurm.parse import Node, Partition, parse_nodes, parse_partitions
from slurm_colloc.slurm.setup import GresLine, Queue
from tests.unit.made import RECORDED

MIG = "nvidia_h100_80gb_hbm3_"
WHOLE, SLICE, LARGER = "h100", f"{MIG}1g.10gb", f"{MIG}3g.40gb"
UNREAD = Unread("it is hidden")


def node(name: str = "g1", *gres: Gres, **fields: Any) -> Node:
    has = gres or (Gres("gpu", WHOLE, 2),)
    made = Node(name, has, ("gpu",), cpus=16, mem_mib=64000, configured=has, slurmd_start_s=1000)
    return made._replace(**fields)


G1 = node("g1", Gres("gpu", WHOLE, 2), Gres("mps", WHOLE, 200))
G2 = node("g2", Gres("gpu", WHOLE, 2), Gres("shard", WHOLE, 8))
M1 = node("m1", Gres("gpu", SLICE, 2), Gres("gpu", LARGER, 1))
TRACKED = f"gres/gpu,gres/mps,gres/shard,gres/gpu:{WHOLE},gres/gpu:{SLICE},gres/gpu:{LARGER}"
FAIR = {f"gres/gpu:{WHOLE}": 100.0, f"gres/gpu:{SLICE}": 14.0, f"gres/gpu:{LARGER}": 43.0}
FAIR |= {"gres/mps": 1.0, "gres/shard": 25.0}


def partition(name: str = "gpu", weights: Mapping[str, float] = FAIR, **words: str) -> Partition:
    """Return a partition as scontrol shows one with these words."""
    priced = ",".join(f"{tres}={weight:g}" for tres, weight in weights.items())
    said = {"PartitionName": name, "TRESBillingWeights": priced, "MaxTime": "01:00:00", **words}
    [made] = parse_partitions(" ".join(f"{key}={value}" for key, value in said.items()))
    return made


SETTINGS = {
    "AccountingStorageEnforce": "associations,limits,qos",
    "AccountingStorageTRES": f"cpu,mem,{TRACKED}",
    "AccountingStorageType": "accounting_storage/slurmdbd",
    "DefMemPerCPU": "4000",
    "GresTypes": "gpu,mps,shard",
    "JobAcctGatherType": "jobacct_gather/cgroup",
    "ProctrackType": "proctrack/cgroup",
    "PrologFlags": "Alloc",
    "SchedulerParameters": "bf_window=10080,bf_max_job_test=50",
    "SchedulerType": "sched/backfill",
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_CORE_MEMORY",
    "TaskPlugin": "task/affinity,task/cgroup",
}
PROLOG = """\
#!/bin/sh
# nvidia-smi -c 3 would change all GPUs; quit | nvidia-cuda-mps-control
export CUDA_MPS_PIPE_DIRECTORY=/run/mps/$SLURM_JOB_UID
for gpu in $(echo $CUDA_VISIBLE_DEVICES | tr , ' '); do
    nvidia-smi -i "$gpu" -c EXCLUSIVE_PROCESS
done
echo get_server_list | nvidia-cuda-mps-control || nvidia-cuda-mps-control -d
"""
EPILOG = """\
#!/bin/sh
echo quit | CUDA_MPS_PIPE_DIRECTORY=/run/mps/$SLURM_JOB_UID nvidia-cuda-mps-control
"""
TASK_PROLOG = "#!/bin/sh\necho export CUDA_MPS_PIPE_DIRECTORY=/run/mps/$(id -u)\n"
SCRIPTS = tuple(
    Script(setting, f"/etc/slurm/{setting.lower()}", text)
    for setting, text in (("Prolog", PROLOG), ("Epilog", EPILOG), ("TaskProlog", TASK_PROLOG))
)
SOUND = Site(
    release="26.05",
    settings=SETTINGS,
    cgroup={"ConstrainDevices": "yes", "ConstrainRAMSpace": "yes"},
    nodes=(G1, G2, M1, node("c1", gres=(), configured=())),
    partitions=(partition(MaxTime="7-00:00:00"), partition("all", {})),
    gres_conf=(
        GresLine("g[1-2]", "gpu", WHOLE),
        GresLine("g1", "mps", "", frozenset({"all_sharing"})),
        GresLine("g2", "shard", ""),
        GresLine("m1", "gpu", SLICE),
        GresLine("m1", "gpu", LARGER),
    ),
    scripts=SCRIPTS,
    limits=(
        Cap("QOS 'normal'", "MaxTRESPerUser", {"billing": 400}),
        Cap("account 'ml'", "GrpTRES", {f"gres/gpu:{WHOLE}": 4, "gres/mps": 100, "gres/shard": 8}),
        Cap("account 'ml'", "MaxTRES", {"cpu": 8}),
    ),
    queue=Queue(2000.0, 10, 9, 9),
    clock_ahead_s=(0.4, 0.5),
    this_node="g1",
    devices=(SmiDevice("GPU-1", "NVIDIA H100 80GB HBM3", "", "default"),),
)


def settings(**changed: str) -> dict[str, Any]:
    return {"settings": SETTINGS | changed}


def prolog(text: str, *more: Script) -> dict[str, Any]:
    return {"scripts": (Script("Prolog", "/p", text), *more)}


def priced(**weights: float) -> dict[str, Any]:
    return {"partitions": (partition(weights={name.replace("_", "/", 1): one for name, one in weights.items()}),)}


def parted(**words: Any) -> dict[str, Any]:
    """Return a partition with further words of scontrol's."""
    return {"partitions": (partition(**words),)}


def marked(name: str, *flags: str) -> dict[str, Any]:
    """Return a gres.conf that has these flags for a gres of g1 and g2."""
    others = tuple(line for line in known(SOUND.gres_conf) if line.name != name)
    return {"gres_conf": (*others, GresLine("g[1-2]", name, WHOLE if name == "gpu" else "", frozenset(flags)))}


def limited(key: str = "MaxTRESPerUser", holders: Sequence[str] = ("QOS 'normal'",), **tres: str) -> dict[str, Any]:
    named = {name.replace("_", "/", 1): int(most) for name, most in tres.items()}
    return {"limits": tuple(Cap(holder, key, named) for holder in holders)}


# As sacctmgr answers of a laboratory whose limits are set up wrong.
QOS_ROWS = "normal||||||||||\none||||||||gres/gpu=1||\nsound||||||||billing=100||\nmust||||||||||gres/gpu=1\n"
ASSOCIATION_ROWS = "root|||||||||\nroot|root||||||||\nml|||||||||\nphys|||gres/gpu:h100=4||||||\nphys|carol||||||||\n"


def recorded_site(slurm: str) -> Site:
    def text(name: str) -> str:
        return (RECORDED / f"slurm-{slurm}/setup" / name).read_text()

    main, cgroup = setup.parse_config_parts(text("config.txt"))
    assert cgroup is None
    queue = setup.parse_queue(text("queue.txt"))
    return Site(
        release=slurm,
        settings=main,
        cgroup=UNREAD,
        nodes=parse_nodes(text("node.txt")),
        partitions=parse_partitions(text("partition.txt")),
        gres_conf=setup.parse_gres_conf(text("gres.conf")),
        scripts=(Script("Prolog", "/lab/etc/prolog.sh", text("prolog.sh")),),
        limits=parse_caps([QOS_ROWS, ASSOCIATION_ROWS]),
        queue=queue,
        clock_ahead_s=(0.0, 0.5),
        this_node="login",
        devices=UNREAD,
    )

# SPDX-License-Identifier: Apache-2.0
"""Each check on a site that is sound in that respect, and on one that is not."""

from pathlib import Path
from typing import Any

import pytest
from ClusterShell.NodeSet import set_std_group_resolver, set_std_group_resolver_config

from slurm_colloc.cli.colloc.site_doctor import _text
from slurm_colloc.core.errors import InputError
from slurm_colloc.core.model import Gres
from slurm_colloc.gpu.nvidia_smi import SmiDevice
from slurm_colloc.site.doctor.checks import CHECKS, Diagnosis, diagnose
from slurm_colloc.site.doctor.facts import TRIED, Script
from slurm_colloc.site.doctor.memory_limits import memory_limits_of
from slurm_colloc.slurm.setup import GresLine, Queue
from tests.unit.doctor_sites import (
    G1,
    G2,
    LARGER,
    M1,
    SETTINGS,
    SLICE,
    SOUND,
    TRACKED,
    UNREAD,
    WHOLE,
    limited,
    marked,
    node,
    parted,
    priced,
    prolog,
    recorded_site,
    settings,
)
from tests.unit.golden import Printed
from tests.unit.made import RELEASES

CHECKOUT = Path(__file__).resolve().parents[2]


def said(diagnosis: Diagnosis) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for fault in diagnosis.faults:
        found.setdefault(fault.code, []).append((fault.subject, fault.evidence))
    return found


def gaps(diagnosis: Diagnosis) -> dict[str, str]:
    return {one.code: one.why for one in diagnosis.unchecked}


def test_a_sound_site_has_no_findings() -> None:
    found = diagnose(SOUND)
    assert found.faults == ()
    assert [(one.code, one.subject) for one in found.unchecked] == [("DOC020", "g2,m1")]
    assert found.codes == tuple(check.code for check in CHECKS)


def test_codes_are_told_apart_and_say_all_that_is_promised() -> None:
    assert len({check.code for check in CHECKS}) == len(CHECKS)
    for check in CHECKS:
        assert check.severity in ("error", "warning")
        assert all((check.title, check.consequence, check.mend, check.source)), check.code
    (twice,) = (check for check in CHECKS if check.code == "DOC021")
    assert twice.severity == "error", "a job takes memory that is not its own"


BY_JOB = "export CUDA_MPS_PIPE_DIRECTORY=/run/mps/$SLURM_JOB_ID\nnvidia-cuda-mps-control -d\n"


UNCONFINED = {"ConstrainRAMSpace": "no", "ConstrainSwapSpace": "no"}


def program(setting: str = "Prolog", **fields: Any) -> dict[str, Any]:
    return {"scripts": (Script(setting, "/p", "")._replace(**fields),)}


def plugstack(words: str) -> dict[str, Any]:
    text = f"# optional /x/colloc_spank.so mps=/a\noptional /x/other.so mps=/a\noptional /x/colloc_spank.so {words}\n"
    return {"plugstack": (Script("PlugStackConfig", "/c", text),)}


# Whom a finding is about: what a setting is said "of slurm.conf" by is left out here.
P, GPU, QOS, TRES = "Prolog '/p'", "partition 'gpu'", "QOS 'normal'", "AccountingStorageTRES"
PLUGSTACK = "PlugStackConfig '/c'"

BROKEN: list[tuple[str, dict[str, Any], str, str]] = [
    ("DOC001", prolog('nvidia-smi -c "${CUDA_VISIBLE_DEVICES}"'), P, "nvidia-smi -c"),
    ("DOC001", prolog("nvidia-smi \\\n  --compute-mode=$SLURM_JOB_GPUS"), P, "--compute-mode=$SLURM"),
    ("DOC002", prolog("true && nvidia-smi -c 0"), P, "'nvidia-smi -c 0'"),
    ("DOC002", prolog("nvidia-smi -c EXCLUSIVE_PROCESS # -i 0"), P, "'nvidia-smi -c EXCLUSIVE_PROCESS'"),
    ("DOC003", prolog("echo quit | nvidia-cuda-mps-control"), P, "'echo quit | nvidia-cuda-mps-control'"),
    ("DOC003", prolog("nvidia-cuda-mps-control <<< quit"), P, "<<< quit"),
    ("DOC004", prolog(BY_JOB), P, "there is no TaskProlog"),
    ("DOC004", prolog(BY_JOB, Script("TaskProlog", "/t", "echo")), P, "TaskProlog does not name it"),
    ("DOC005", prolog("ps aux | grep nvidia-cuda-mps | grep -v grep"), P, "ps aux"),
    ("DOC005", prolog("pkill -f nvidia-cuda-mps-control"), P, "pkill"),
    ("DOC006", prolog(BY_JOB), P, "'/run/mps/$SLURM_JOB_ID'"),
    ("DOC006", prolog(f"id=${{SLURM_JOB_ID}}\n{BY_JOB.replace('$SLURM_JOB_ID', '${id}')}"), P, "SLURM_JOB_ID"),
    ("DOC007", prolog("nvidia-cuda-mps-control -d -multiuser-server"), P, "-multiuser-server"),
    ("DOC008", {"settings": {**SETTINGS, "PrologEpilogTimeout": "16"}}, "PrologEpilogTimeout", "it is 16 s"),
    *(
        (
            "DOC009",
            {**prolog("nvidia-cuda-mps-control -d"), **settings(**{key: kind})},
            P,
            f"'/tmp/nvidia-mps', and {kind}",
        )
        for key, kind in (("JobContainerType", "job_container/tmpfs"), ("NamespaceType", "namespace/tmpfs"))
    ),
    *(
        (
            "DOC010",
            {"nodes": (node("g7", *G1.gres, Gres("shard", "", 4)),), "release": slurm},
            "g7",
            f"of Slurm {slurm}",
        )
        for slurm in RELEASES
    ),
    (
        "DOC011",
        {"gres_conf": (GresLine("g1", "gpu", "a100"),)},
        "g1",
        "slurm.conf has gpu:h100; gres.conf has only a100",
    ),
    (
        "DOC011",
        {"gres_conf": (GresLine("", "gpu", "a100"),)},
        "g1",
        "gres.conf has gpu:a100; slurm.conf has only h100",
    ),
    ("DOC011", {"this_node": "m1"}, "m1", f"slurm.conf has gpu:{SLICE}; the driver has no slices"),
    ("DOC013", settings(AccountingStorageTRES=f"{TRACKED},gres/gpu:v100"), TRES, "gres/gpu:v100"),
    ("DOC013", priced(**{"gres_gpu:v100": 1.0}), "TRESBillingWeights of partition 'gpu'", "no node has gres/gpu:v100"),
    ("DOC013", limited(**{"gres_gpu:v100": "1"}), "MaxTRESPerUser of QOS 'normal'", "no node has gres/gpu:v100"),
    ("DOC014", settings(SelectType="select/linear"), "slurm.conf", "select/linear"),
    ("DOC015", settings(GresTypes="gpu"), "GresTypes", "it lacks mps, shard, of which gres.conf has lines"),
    ("DOC016", marked("mps"), "g1", "the node has 2 GPUs, and gres.conf has no Flags=all_sharing for its mps"),
    (
        "DOC016",
        marked("shard", "one_sharing"),
        "g2",
        "the node has 2 GPUs, and gres.conf has Flags=one_sharing for its shard",
    ),
    ("DOC017", marked("gpu", "no_gpu_env"), "g[1-2]", "gres.conf has Flags=no_gpu_env for gpu h100"),
    ("DOC020", {"devices": (SmiDevice("GPU-1", "h", "", "prohibited"),)}, "g1, GPU-1", "compute mode is prohibited"),
    (
        "DOC020",
        {"this_node": "g2", "devices": (SmiDevice("GPU-1", "h", "", "exclusive_process"),)},
        "g2, GPU-1",
        "gres/shard",
    ),
    ("DOC021", {"release": "22.05"}, "g[1-2]", "on one node of Slurm 22.05"),
    (
        "DOC021",
        {"release": "22.05", "nodes": (node("g9", Gres("gpu", "", 1), Gres("shard", "", 4)), M1)},
        "g9",
        "of Slurm 22.05",
    ),
    ("DOC030", {"cgroup": {"ConstrainDevices": "no"}}, "cgroup.conf", "ConstrainDevices is no"),
    ("DOC030", settings(TaskPlugin="task/affinity"), "slurm.conf", "TaskPlugin is task/affinity"),
    ("DOC031", {"cgroup": UNCONFINED}, "cgroup.conf", "ConstrainRAMSpace is no"),
    ("DOC031", {"cgroup": UNCONFINED, **settings(SelectTypeParameters="CR_CORE")}, "cgroup.conf", "no"),
    ("DOC032", settings(ProctrackType="proctrack/linuxproc"), "slurm.conf", "proctrack/linuxproc"),
    ("DOC040", settings(AccountingStorageTRES="cpu,gres/gpu:h100"), TRES, "it lacks gres/gpu"),
    ("DOC041", settings(AccountingStorageTRES="gres/gpu"), TRES, "gres/mps, gres/shard"),
    ("DOC042", settings(AccountingStorageTRES="gres/gpu"), TRES, f"gres/gpu:{SLICE}"),
    ("DOC043", settings(AccountingStorageType="accounting_storage/none"), "slurm.conf", "accounting_storage/none"),
    ("DOC044", settings(AccountingStorageEnforce="associations"), "AccountingStorageEnforce", "and 1 more"),
    ("DOC045", settings(JobAcctGatherType="jobacct_gather/none"), "slurm.conf", "jobacct_gather/none"),
    ("DOC050", limited(gres_gpu="1"), QOS, "MaxTRESPerUser=gres/gpu=1 says nothing of gres/mps and gres/shard"),
    ("DOC050", limited("MaxTRES", gres_gpu="0"), QOS, "MaxTRES=gres/gpu=0 says nothing of gres/mps"),
    ("DOC050", limited("GrpTRESMins", gres_gpu="9"), QOS, "GrpTRESMins=gres/gpu=9 says nothing of gres/mps"),
    ("DOC050", limited(gres_gpu="0", gres_shard="4"), QOS, "says nothing of gres/mps"),
    (
        "DOC050",
        limited("GrpTRES", ("a", "b", "c", "d"), **{"gres_gpu:h100": "1"}),
        "a, b, c and 1 more",
        "gres/gpu:h100=1",
    ),
    ("DOC051", limited(gres_gpu="1", gres_mps="1", gres_shard="1"), QOS, "MaxTRESPerUser=gres/gpu=1 is used up"),
    ("DOC052", limited("MinTRES", gres_gpu="1"), QOS, "MinTRES=gres/gpu=1, and nodes have mps, shard"),
    ("DOC060", priced(gres_gpu=100.0), GPU, f"bills 100 for gpu:{SLICE} and 100 for gpu:h100; 100 for gpu:{LARGER} "),
    ("DOC060", priced(gres_gpu=100.0, **{f"gres_gpu:{SLICE}": 14.0}), GPU, f"114 for gpu:{SLICE} and 100 for gpu:h100"),
    ("DOC060", {**priced(gres_gpu=9.0), "nodes": (M1,)}, GPU, f"bills 9 for gpu:{SLICE} and 9 for gpu:{LARGER}"),
    ("DOC061", priced(**{f"gres_gpu:{WHOLE}": 100.0}), GPU, f"gres/mps, gres/shard, gres/gpu:{SLICE}"),
    (
        "DOC062",
        settings(PriorityWeightTRES="CPU=1,GRES/gpu=1000,GRES/mps=10"),
        "PriorityWeightTRES",
        "it weighs GPUs and not gres/shard",
    ),
    ("DOC070", {"clock_ahead_s": (-90.2, 0.5)}, "g1 (this machine)", "its clock is 90 s behind slurmctld's"),
    ("DOC070", {"nodes": (G1._replace(slurmd_start_s=2100),)}, "g1", "its slurmd started 100 s after now"),
    (
        "DOC071",
        {"queue": Queue(2000.0, 90, 50, 80)},
        "SchedulerParameters",
        "of 80 that waited the last cycle came to 50; bf_max_job_test is 50",
    ),
    (
        "DOC074",
        parted(DefaultTime="NONE", MaxTime="UNLIMITED"),
        GPU,
        "no DefaultTime; MaxTime=UNLIMITED",
    ),
    ("DOC080", parted(OverSubscribe="EXCLUSIVE"), GPU, "OverSubscribe=EXCLUSIVE, and its nodes have mps"),
    ("DOC080", parted(Exclusive="NODE"), GPU, "Exclusive=NODE, and its nodes have mps, shard, MIG slices"),
    ("DOC081", parted(OverSubscribe="FORCE:4"), GPU, "OverSubscribe=FORCE:4"),
    ("DOC082", {**parted(ExclusiveUser="YES"), "nodes": (G2,)}, GPU, "its nodes have shard"),
    ("DOC082", {**parted(Exclusive="USER"), "nodes": (M1,)}, GPU, "its nodes have MIG slices"),
    ("DOC082", {**parted(ExclusiveUser="YES"), "nodes": (G1,)}, GPU, "its nodes have mps and 2 GPUs"),
    ("DOC083", parted(MinNodes="2"), GPU, "MinNodes=2"),
    ("DOC084", settings(SelectTypeParameters="CR_SOCKET_MEMORY"), "SelectTypeParameters", "CR_SOCKET"),
    ("DOC085", settings(SelectTypeParameters="CR_CPU_MEMORY,CR_LLN"), "SelectTypeParameters", "CR_LLN"),
    ("DOC085", parted(LLN="YES"), GPU, "LLN=YES"),
    (
        "DOC086",
        settings(SelectTypeParameters="CR_CORE_MEMORY,MULTIPLE_SHARING_GRES_PJ"),
        "SelectTypeParameters",
        "it has MULTIPLE_SHARING_GRES_PJ, and nodes have mps",
    ),
    ("DOC087", settings(PreemptMode="GANG,SUSPEND"), "PreemptMode", "it has GANG,SUSPEND"),
    (
        "DOC088",
        parted(JobDefaults="DefCpuPerGPU=9"),
        "m1 in partition 'gpu'",
        "DefCpuPerGPU=9 by 3 GPUs is 27, and a job may have 16 CPUs of a node",
    ),
    ("DOC088", {**parted(), **settings(JobDefaults="DefCpuPerGPU=9")}, "g[1-2] in partition 'gpu'", "by 2 GPUs is 18"),
    (
        "DOC088",
        parted(JobDefaults="DefCpuPerGPU=4", MaxCPUsPerNode="3"),
        "g[1-2] in partition 'gpu'",
        "DefCpuPerGPU=4 by 2 GPUs is 8, and a job may have 3 CPUs of a node",
    ),
    ("DOC089", parted(JobDefaults="DefMemPerGPU=40000"), "g[1-2] in partition 'gpu'", "may have 64000 MiB of a node"),
    ("DOC090", settings(SelectTypeParameters="CR_CORE"), "SelectTypeParameters", "it is CR_CORE"),
    ("DOC091", {**parted(), **settings(DefMemPerCPU="")}, GPU, "neither DefMemPerCPU nor DefMemPerNode"),
    (
        "DOC091",
        {**parted(JobDefaults="DefMemPerGPU=9"), **settings(DefMemPerCPU="UNLIMITED"), "nodes": (G2, M1)},
        GPU,
        "and shard, MIG slices",
    ),
    ("DOC091", parted(DefMemPerNode="40000"), GPU, "DefMemPerNode=40000, of 64000 MiB of a node"),
    ("DOC100", program(mode=0o644), P, "its mode is 0644, and root runs it"),
    ("DOC100", program("TaskProlog", mode=0o750), "TaskProlog '/p'", "its mode is 0750, and every user runs it"),
    ("DOC100", program(mode=None), P, "there is none on this node"),
    ("DOC101", program(mode=0o777), P, "its mode is 0777"),
    ("DOC101", program(folder_mode=0o777), P, "the mode of its folder is 0777"),
    ("DOC101", program(owner=1001), P, "it belongs to uid 1001"),
    ("DOC102", prolog("colloc-mps start"), P, "'colloc-mps start', and there is no Epilog"),
    ("DOC102", prolog(BY_JOB, Script("Epilog", "/e", "true")), P, "no Epilog ends what it starts"),
    ("DOC103", settings(PrologFlags="Alloc,NoHold"), "PrologFlags", "it is Alloc,NoHold"),
    ("DOC103", settings(PrologFlags="(null)"), "PrologFlags", "it is (null)"),
    (
        "DOC104",
        plugstack("mps=/usr/libexec/slurm_colloc/colloc-mps mps_each=a site=/s"),
        PLUGSTACK,
        "colloc-mps mps_each=a'",
    ),
    ("DOC104", plugstack("sampler=python"), PLUGSTACK, "'sampler=python'"),
]


@pytest.mark.parametrize(("code", "fields", "subject", "evidence"), BROKEN)
def test_a_fault_is_found(code: str, fields: dict[str, Any], subject: str, evidence: str) -> None:
    found = said(diagnose(SOUND._replace(**fields)))[code]
    assert [one for one in found if one[0].removesuffix(" of slurm.conf") == subject and evidence in one[1]], found


OURS = tuple(
    Script(setting, f"/{name}", (CHECKOUT / f"tests/golden/site/h100-mig-mps/{name}").read_text())
    for setting, name in (("Prolog", "prolog.50-colloc"), ("Epilog", "epilog.50-colloc"), ("TaskProlog", "task_prolog"))
)
# Nobody's, with the defects of the prolog that is copied most: docs/explanation/decisions.md says what ours does.
COPIED = """\
gpu=${CUDA_VISIBLE_DEVICES}
nvidia-smi -c ${CUDA_VISIBLE_DEVICES}
echo quit | nvidia-cuda-mps-control
ps aux | grep nvidia-cuda-mps-control | grep -v grep && scontrol update nodename=$SLURMD_NODENAME state=down
export CUDA_MPS_PIPE_DIRECTORY=/tmp/mps_$gpu
nvidia-cuda-mps-control -d && sleep 1
"""


def test_our_own_prolog_is_sound_and_the_one_that_is_copied_most_is_not(printed: Printed) -> None:
    mps = {f"DOC00{number}" for number in range(1, 8)}
    ours = diagnose(SOUND._replace(scripts=OURS))
    assert mps.isdisjoint(said(ours))
    assert mps.isdisjoint(gaps(ours))
    untold = diagnose(SOUND._replace(scripts=OURS[:2]))
    printed("doctor", *map(": ".join, said(untold)["DOC004"]))
    copied = diagnose(SOUND._replace(**prolog(COPIED)))
    assert mps & said(copied).keys() == {"DOC001", "DOC003", "DOC004", "DOC005"}


def test_every_check_finds_something_somewhere() -> None:
    assert {code for code, *_ in BROKEN} == {check.code for check in CHECKS}


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        ("DOC001", prolog("nvidia-smi -q -i $CUDA_VISIBLE_DEVICES")),
        ("DOC008", {"settings": {**SETTINGS, "PrologEpilogTimeout": "65534"}}),
        ("DOC008", {"settings": {**SETTINGS, "PrologEpilogTimeout": "16"}, "nodes": (G2,)}),
        ("DOC002", prolog("nvidia-smi --query-gpu=compute_mode --format=csv")),
        ("DOC002", prolog("nvidia-smi --id=$gpu --compute-mode 3")),
        ("DOC004", prolog("export CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps; nvidia-cuda-mps-control -d")),
        ("DOC004", prolog("nvidia-cuda-mps-control -d")),
        ("DOC006", {**prolog(BY_JOB), "nodes": (G2,)}),
        ("DOC009", {**prolog(BY_JOB), **settings(JobContainerType="job_container/tmpfs")}),
        ("DOC009", {**prolog("nvidia-cuda-mps-control -d"), **settings(JobContainerType="(null)")}),
        ("DOC010", {"nodes": (G1, G2)}),
        ("DOC016", {"nodes": (node("g1", Gres("gpu", WHOLE, 1), Gres("mps", WHOLE, 100)),), "gres_conf": ()}),
        ("DOC016", marked("shard")),
        ("DOC017", marked("gpu", "nvidia_gpu_env", "opencl_env")),
        ("DOC011", {"nodes": (node("g9", Gres("gpu", "", 2)),)}),
        (
            "DOC011",
            {
                "this_node": "m1",
                "devices": tuple(SmiDevice(f"MIG-{one}", "h", one, "") for one in ("1g.10gb", "3g.40gb")),
            },
        ),
        ("DOC020", {"this_node": "g1", "devices": (SmiDevice("GPU-1", "h", "", "exclusive_process"),)}),
        ("DOC021", {"release": "22.05", "nodes": (node("g9"), M1)}),
        ("DOC021", {"release": "22.05", "nodes": (node("m2", *M1.gres, Gres("mps", SLICE, 200)),)}),
        ("DOC031", {"cgroup": {"ConstrainRAMSpace": "no", "ConstrainSwapSpace": "yes"}}),
        ("DOC040", settings(AccountingStorageTRES="", AccountingStorageType="accounting_storage/none")),
        ("DOC044", {**settings(AccountingStorageEnforce="associations"), **limited(cpu="3")}),
        ("DOC050", limited(gres_gpu="1", billing="100")),
        ("DOC050", limited(gres_gpu="1", gres_mps="50", gres_shard="4")),
        ("DOC051", {**limited(gres_gpu="1"), "nodes": (G1, G2)}),
        ("DOC050", limited("MaxTRES", gres_gpu="1")),
        ("DOC050", limited("MaxTRESPerNode", **{"gres_gpu:h100": "2"})),
        ("DOC051", limited(gres_gpu="0")),
        ("DOC052", {**limited("MinTRES", gres_gpu="1"), **settings(AccountingStorageEnforce="associations")}),
        ("DOC052", {**limited("MinTRES", gres_gpu="1"), "nodes": (M1,)}),
        ("DOC052", limited("MinTRES", cpu="1")),
        ("DOC050", limited("MinTRES", gres_gpu="1")),
        ("DOC051", limited("MinTRES", gres_gpu="1")),
        ("DOC060", {**priced(gres_gpu=100.0), "nodes": (G1,)}),
        ("DOC060", {**priced(gres_gpu=100.0, **{f"gres_gpu:{LARGER}": 9.0}), "nodes": (M1,)}),
        ("DOC060", priced(cpu=1.0)),
        ("DOC061", priced(cpu=1.0)),
        ("DOC062", settings(PriorityWeightTRES="cpu=9")),
        ("DOC062", settings(PriorityWeightTRES="gres/gpu=9,gres/mps=1,gres/shard=1")),
        ("DOC074", parted(DefaultTime="NONE", MaxTime="01:00:00")),
        ("DOC081", parted(OverSubscribe="FORCE:1")),
        ("DOC080", {**parted(OverSubscribe="EXCLUSIVE"), "nodes": (node("g9"),)}),
        (
            "DOC082",
            {**parted(ExclusiveUser="YES"), "nodes": (node("g9", Gres("gpu", WHOLE, 1), Gres("mps", WHOLE, 100)),)},
        ),
        ("DOC083", parted(MinNodes="1")),
        ("DOC087", {**settings(PreemptMode="GANG,SUSPEND"), "nodes": (M1,)}),
        ("DOC088", parted(JobDefaults="DefCpuPerGPU=5", MaxCPUsPerNode="UNLIMITED")),
        ("DOC088", parted(MaxCPUsPerNode="1")),
        ("DOC089", parted(JobDefaults="DefMemPerGPU=20000")),
        ("DOC090", {**settings(SelectTypeParameters="CR_CORE"), "nodes": (node("g9"),)}),
        ("DOC091", {**parted(), **settings(SelectTypeParameters="CR_CORE", DefMemPerCPU="")}),
        ("DOC091", {**parted(JobDefaults="DefMemPerGPU=9"), **settings(DefMemPerCPU=""), "nodes": (M1,)}),
        ("DOC091", {**parted(DefMemPerCPU="9"), **settings(DefMemPerCPU="")}),
        ("DOC091", parted(DefMemPerNode="30000")),
        ("DOC100", program("TaskProlog", mode=0o755)),
        ("DOC101", program(owner=64030) | settings(SlurmUser="slurm(64030)")),
        ("DOC101", program(folder_mode=0o1777)),
        ("DOC102", prolog("true")),
        ("DOC103", settings(PrologFlags="Contain")),
        ("DOC104", plugstack("sampler=/opt/bin/python site=/s # mps=/a")),
        ("DOC071", {"queue": Queue(2000.0, 0, None, None)}),
        ("DOC071", settings(SchedulerType="sched/builtin")),
    ],
)
def test_what_is_sound_is_not_found_wanting(code: str, fields: dict[str, Any]) -> None:
    assert code not in said(diagnose(SOUND._replace(**fields)))
    assert code not in gaps(diagnose(SOUND._replace(**fields))) or code == "DOC020"


def test_the_largest_of_a_node_is_what_max_tres_bills(printed: Printed) -> None:
    site = SOUND._replace(**priced(**{"gres_gpu": 10.0, f"gres_gpu:{WHOLE}": 20.0, f"gres_gpu:{SLICE}": 10.0}))
    assert "DOC060" not in said(diagnose(site))
    largest = site._replace(settings=SETTINGS | {"PriorityFlags": "MAX_TRES"})
    assert "DOC060" not in said(diagnose(largest))
    dear = largest._replace(**priced(**{"gres_gpu": 20.0, f"gres_gpu:{WHOLE}": 10.0, f"gres_gpu:{SLICE}": 10.0}))
    printed("doctor", *map(": ".join, said(diagnose(dear))["DOC060"]))


@pytest.mark.parametrize(
    ("fields", "codes", "why"),
    [
        ({"limits": UNREAD}, {"DOC013", "DOC050", "DOC051", "DOC052"}, "it is hidden"),
        (
            {"limits": UNREAD, **settings(AccountingStorageEnforce="")},
            {"DOC013", "DOC044", "DOC050", "DOC051"},
            "hidden",
        ),
        ({"gres_conf": UNREAD}, {"DOC011", "DOC015", "DOC016", "DOC017"}, "it is hidden"),
        ({"gres_conf": ()}, {"DOC011", "DOC016"}, "gres.conf here has no "),
        ({"queue": UNREAD, "clock_ahead_s": UNREAD}, {"DOC070", "DOC071"}, "it is hidden"),
        ({"queue": Queue(2000.0, 4, None, None)}, {"DOC071"}, "4 jobs wait, and no cycle of it has ended yet"),
        ({"cgroup": UNREAD}, {"DOC030", "DOC031"}, "it is hidden"),
        ({"cgroup": {}}, {"DOC030", "DOC031"}, "slurmctld does not say what Constrain"),
        ({"scripts": ()}, {"DOC006"}, "no script that slurm.conf names starts an MPS daemon"),
        (
            {"scripts": (Script("Prolog", "/p", UNREAD),)},
            {*(f"DOC00{number}" for number in range(1, 8)), "DOC102"},
            "it is hidden",
        ),
        (
            prolog("colloc-mps start", Script("Epilog", "/e", UNREAD), Script("TaskProlog", "/t", UNREAD)),
            {*(f"DOC00{number}" for number in range(1, 8)), "DOC102"},
            "it is hidden",
        ),
        ({"plugstack": (Script("PlugStackConfig", "/c", UNREAD),)}, {"DOC104"}, "it is hidden"),
        ({**program(mode=None), "this_node": "login", "nodes": (G2, M1)}, {"DOC100"}, "there is none on this machine"),
        ({"this_node": "m1", "devices": UNREAD}, {"DOC011"}, "the slices themselves: it is hidden"),
        (
            {
                "nodes": (node("g1", Gres("gpu", WHOLE, 1), Gres("mps", "", 9), Gres("shard", "", 4)),),
                "release": "26.11",
            },
            {"DOC010"},
            "not tried on Slurm 26.11",
        ),
    ],
)
def test_what_cannot_be_read_is_not_called_sound(fields: dict[str, Any], codes: set[str], why: str) -> None:
    diagnosis = diagnose(SOUND._replace(**fields))
    found = gaps(diagnosis)
    assert set(found) - {"DOC020"} == codes
    assert all(why in found[code] for code in codes), found
    assert not codes & set(said(diagnosis))


def test_of_the_gpus_of_this_node_none_goes_unmentioned() -> None:
    assert gaps(diagnose(SOUND._replace(devices=UNREAD)))["DOC020"] == "it is hidden"
    silent = diagnose(SOUND._replace(devices=(SmiDevice("GPU-1", "h", "", ""),)))
    assert [one.subject for one in silent.unchecked] == ["g2,m1", "g1, GPU-1"]


def test_checks_can_be_left_out(printed: Printed) -> None:
    left = diagnose(SOUND, ["DOC020", "DOC001"])
    assert left.unchecked == ()
    assert {check.code for check in CHECKS} - set(left.codes) == {"DOC001", "DOC020"}
    with printed.raises("doctor", InputError, "'DOC999'"):
        diagnose(SOUND, ["DOC999"])


@pytest.mark.parametrize("slurm", RELEASES)
def test_the_recorded_site_that_was_set_up_wrong(slurm: str, printed: Printed) -> None:
    found = said(diagnose(recorded_site(slurm)))
    assert set(found) == {
        *(f"DOC00{number}" for number in range(1, 8)),
        *("DOC010", "DOC011", "DOC013", "DOC016", "DOC030", "DOC031", "DOC032", "DOC045"),
        *("DOC050", "DOC051", "DOC052", "DOC060", "DOC061", "DOC071", "DOC074", "DOC102"),
        *(("DOC021",) if slurm == "22.05" else ()),
    }
    printed("doctor", *map(": ".join, found["DOC050"]))
    assert [subject for subject, _ in found["DOC060"]] == ["partition 'dear'"]
    assert [subject for subject, _ in found["DOC061"]] == ["partition 'dear'", "partition 'free'"]


def test_a_name_in_gres_conf_asks_no_group_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ClusterShell would run the command of clustershell's own configuration for it."""
    (tmp_path / "groups.conf").write_text(f"[Main]\ndefault: x\n[x]\nmap: touch {tmp_path}/ran; echo g1\n")
    monkeypatch.setenv("CLUSTERSHELL_CFGDIR", str(tmp_path))
    set_std_group_resolver_config(str(tmp_path / "groups.conf"))
    try:
        lines = (GresLine("@all,@x", "gpu", "other"), GresLine("@x", "gpu", "more"))
        diagnose(SOUND._replace(gres_conf=lines))
    finally:
        set_std_group_resolver(None)
    assert not (tmp_path / "ran").exists()


OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (dvs-builder@U22)\n"
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Wed Sep  9 21:35:33 UTC 2026\n"


@pytest.mark.parametrize(
    ("version", "kernel", "controllers", "named"),
    [
        (OPEN.format("615.71.09"), "6.14.0-33-generic", "cpuset cpu io memory dmem misc", ("(dmem)",)),
        (CLOSED.format("615.71"), "5.14.0-503.el9", "cpuset cpu io memory misc", ("(misc",)),
        (OPEN.format("580.159.04"), "6.14.0", "memory dmem", ("no ", "580.159.04", "r615")),
        (CLOSED.format("615.71"), "6.14.0", None, ("no ", "cgroup v2")),
        (CLOSED.format("550.90"), "6.1.0", "memory", ("no ", "550.90", "dmem")),
    ],
)
def test_whether_a_node_could_hold_memory_limits(
    version: str, kernel: str, controllers: str | None, named: tuple[str, ...], tmp_path: Path
) -> None:
    assert memory_limits_of(tmp_path, kernel) == ""  # no driver
    for name, text in {"proc/driver/nvidia/version": version, "sys/fs/cgroup/cgroup.controllers": controllers}.items():
        (tmp_path / name).parent.mkdir(parents=True)
        if text is not None:
            (tmp_path / name).write_text(text)
    found = memory_limits_of(tmp_path, kernel)
    assert found.startswith("no ") is (named[0] == "no ")
    assert all(one in found for one in named)


def test_the_doctor_says_on_which_releases_its_checks_were_tried() -> None:
    for release, told in (("26.05", False), ("26.11", True), ("27.05", True)):
        site = SOUND._replace(release=release)
        assert (TRIED in _text(site, diagnose(site))) is told

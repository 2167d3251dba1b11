# SPDX-License-Identifier: Apache-2.0
"""The texts of the lab's configuration files. Pure: nothing here touches the disk."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.cluster.nodes import CPUS, MEM_MB, NODES, PARTITIONS, tracked_tres

_COMMON = """\
ClusterName={cluster}
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={slurmctld}
StateSaveLocation={root}/state
SlurmctldPidFile={root}/run/slurmctld.pid
SlurmctldLogFile={root}/log/slurmctld.log
SlurmdSpoolDir={root}/spool/%n
SlurmdPidFile={root}/run/slurmd-%n.pid
SlurmdLogFile={root}/log/slurmd-%n.log
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
SlurmctldDebug=info
SlurmdDebug=info
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerType=sched/backfill
SchedulerParameters=sched_min_interval=0,bf_interval=1
DefMemPerCPU=100
MaxJobCount=100000
# Finished jobs stay in scontrol for as long as a lab may live.
MinJobAge=604800
KillWait=2
PrologFlags=Alloc
Prolog={root}/etc/prolog.sh
Epilog={root}/etc/epilog.sh
TaskProlog={root}/etc/taskprolog.sh
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
GresTypes=gpu,mps,shard
"""

# cred_expire: a job that is requeued waits for as long, two minutes by default, before it may start again.
# AccountingStoragePass: without it clients look for munge's usual socket when they talk to slurmdbd.
_ROOT_FORM = """\
AccountingStorageTRES={tres}
AccountingStoreFlags=job_comment,job_script,job_env
SlurmUser=slurm
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/mrun/munge.sock,cred_expire=20
CredType=cred/munge
PriorityType=priority/multifactor
PriorityWeightFairshare=10000
PriorityWeightAge=1000
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={slurmdbd}
AccountingStoragePass={root}/mrun/munge.sock
AccountingStorageEnforce=associations
"""

# No AccountingStorageTRES: "slurmdbd is required to run with TRES gres/gpu" is fatal to slurmctld.
_USER_FORM = """\
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
AccountingStorageType=accounting_storage/none
"""

_SLURMDBD = """\
AuthType=auth/munge
AuthInfo=socket={root}/mrun/munge.sock
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={slurmdbd}
SlurmUser=slurm
DebugLevel=info
LogFile={root}/log/slurmdbd.log
PidFile={root}/run/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={mariadbd}
StorageUser=slurm
StoragePass={password}
StorageLoc=slurm_acct_db
"""

_DATABASE_INIT = """\
create database if not exists slurm_acct_db;
create user if not exists slurm@'127.0.0.1' identified by '{password}';
create user if not exists slurm@localhost identified by '{password}';
grant all on slurm_acct_db.* to slurm@'127.0.0.1';
grant all on slurm_acct_db.* to slurm@localhost;
"""

# A real GPU's mps job is told its device by Slurm; made-up devices lack that, though the prolog knows it.
_PROLOG = """\
#!/bin/sh
[ -n "${{CUDA_VISIBLE_DEVICES-}}" ] || exit 0
printf '%s\\n' "CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES" "SLURM_JOB_GPUS=${{SLURM_JOB_GPUS-}}" \\
    >{root}/gpu_env/"$SLURMD_NODENAME.$SLURM_JOB_ID"
"""

_EPILOG = """\
#!/bin/sh
rm -f {root}/gpu_env/"$SLURMD_NODENAME.$SLURM_JOB_ID"
"""

# Slurm takes over each line `export NAME=value` that a task prolog prints.
_TASK_PROLOG = """\
#!/bin/sh
# A job submitted with --export=NONE has lost the names of the lab's users: give them back.
if [ -z "${{LD_PRELOAD-}}" ]; then
{names}
fi
told={root}/gpu_env/"$SLURMD_NODENAME.$SLURM_JOB_ID"
if [ -z "${{CUDA_VISIBLE_DEVICES+set}}" ] && [ -r "$told" ]; then
    while IFS= read -r line; do echo "export $line"; done <"$told"
fi
"""


def port_names(form: str) -> list[str]:
    daemons = ["slurmctld"] if form == "user" else ["mariadbd", "slurmdbd", "slurmctld"]
    return [*daemons, *(f"slurmd-{node.name}" for node in NODES)]


def cluster_name(ports: Mapping[str, int]) -> str:
    """Return the ClusterName: one for each lab, since two labs on one machine see each other's processes."""
    return f"lab{ports['slurmctld']}"


def slurm_conf(root: Path, form: str, ports: Mapping[str, int], user: str, extra: str) -> str:
    """Return slurm.conf for a lab in this folder; extra lines come last, so that they win."""
    text = _COMMON + (_USER_FORM if form == "user" else _ROOT_FORM)
    tres = ",".join(tracked_tres())
    lines = [text.format(root=root, user=user, cluster=cluster_name(ports), tres=tres, **ports).rstrip()]
    for node in NODES:
        gres = f" Gres={node.gres}" if node.gres else ""
        size = f"CPUs={CPUS} CoresPerSocket={CPUS} RealMemory={MEM_MB}"
        port = ports[f"slurmd-{node.name}"]
        lines.append(f"NodeName={node.name} NodeAddr=127.0.0.1 Port={port} {size}{gres}")
    for name, members in PARTITIONS.items():
        default = " Default=YES" if name == "all" else ""
        lines.append(f"PartitionName={name} Nodes={members}{default} MaxTime=INFINITE DefaultTime=10")
    return "\n".join([*lines, extra.strip(), ""])


def cgroup_conf(plugin: str) -> str:
    return f"CgroupPlugin={plugin}\n"


def gres_conf(devices: Mapping[str, Sequence[Path]]) -> str:
    lines = ["AutoDetect=off"]
    for node in NODES:
        for gpu_type, path in zip(node.gpu_types, devices.get(node.name, ()), strict=True):
            lines.append(f"NodeName={node.name} Name=gpu Type={gpu_type} File={path}")
        if node.shared:
            name, count = node.shared.split(":")
            lines.append(f"NodeName={node.name} Name={name} Count={count}")
    return "\n".join(lines) + "\n"


def slurmdbd_conf(root: Path, ports: Mapping[str, int], password: str) -> str:
    return _SLURMDBD.format(root=root, password=password, **ports)


def database_init(password: str) -> str:
    return _DATABASE_INIT.format(password=password)


def scripts(root: Path, names: Mapping[str, str]) -> dict[str, str]:
    """Return the prolog, epilog and task prolog by file name."""
    where = shlex.quote(str(root))
    exports = "\n".join(f"    echo {shlex.quote(f'export {k}={v}')}" for k, v in names.items()) or "    :"
    return {
        "prolog.sh": _PROLOG.format(root=where),
        "epilog.sh": _EPILOG.format(root=where),
        "taskprolog.sh": _TASK_PROLOG.format(root=where, names=exports),
    }

# SPDX-License-Identifier: Apache-2.0
"""A task as a step of the pack's job: its cores, its memory, its environment and the command line of srun.

Each step is given all of the job's cores, and the tasks share them out by ``taskset``: asked for some of them with
--overlap, Slurm gives every step the same ones. Slurm does keep a step's memory limit beside --overlap.

Variables bring MPS and its limits into the steps and containers of a task. An srun exports what SLURM_EXPORT_ENV says,
which sbatch --export leaves behind; "NONE" and a list keep all but what begins with SLURM_. Apptainer drops variables
(--cleanenv) and folders (--contain), and takes what has its own prefix.
"""

import math
import os
import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from slurm_colloc.core.errors import InputError
from slurm_colloc.pack.spec import Spec, Task
from slurm_colloc.slurm.array import parse_array

# These tell a task's processes: a name that begins with SLURM_ passes by whatever srun is told to export.
TASK_VARIABLE, RUN_VARIABLE = "SLURM_CSUB_TASK", "SLURM_CSUB_RUN"
# Variables that srun reads as if they were its own options, and that would change a step's shape, or where its output
# goes. Slurm puts many of them into a job's environment for the job's own wishes, which are not those of one task.
_READ_BY_SRUN = re.compile(
    r"(?:SLURM|SRUN)_(?:CPUS_PER_TASK|CPUS_PER_GPU|CPU_BIND.*|CPU_FREQ_REQ|MEM_BIND.*|MEM_PER_\w+|NTASKS.*|NPROCS|"
    r"DISTRIBUTION|DIST_\w+|ARBITRARY_NODELIST|GPUS\w*|GPU_BIND|GPU_FREQ|GRES|GRES_FLAGS|STEP_GRES|TRES_\w+|HINT|"
    r"THREADS\w*|THREAD_SPEC|CORE_SPEC|EXCLUSIVE|EXACT|OVERLAP|WHOLE|OVERCOMMIT|IMMEDIATE|WAIT|TIMELIMIT|SIGNAL|"
    r"EXPORT_ENV|OPEN_MODE|STDINMODE|STDOUTMODE|STDERRMODE|INPUT|OUTPUT|ERROR|LABELIO|UNBUFFEREDIO|PTY|"
    r"KILL_BAD_EXIT|NO_KILL|MPI_TYPE|MULTI_PROG|RELATIVE|REMOTE_CWD|WORKING_DIR|EPILOG|PROLOG|CONTAINER\w*|NETWORK|"
    r"RESV_PORTS|SPREAD_JOB|USE_MIN_NODES|STEP_\w+|DEBUG|VERBOSE|QUIET|COMPRESS|BCAST\w*|JOB_NUM_NODES|NNODES)"
)
# Variables that a step has and a batch script has not, or otherwise: a program that looks for one would think itself
# started by srun. (Open MPI then asks srun for what srun was not asked to give.)
_OF_THE_STEP = (
    "SLURM_STEP_ID SLURM_STEPID SLURM_STEP_GPUS SLURM_STEP_NODELIST SLURM_STEP_NUM_NODES SLURM_STEP_NUM_TASKS"
    " SLURM_STEP_TASKS_PER_NODE SLURM_STEP_LAUNCHER_PORT SLURM_STEP_RESV_PORTS SLURM_SRUN_COMM_HOST"
    " SLURM_SRUN_COMM_PORT SLURM_LAUNCH_NODE_IPADDR SLURM_UMASK SRUN_DEBUG SLURM_TRES_PER_TASK"
)
# $1 to $4: the file that says which step and process it is, standard output, standard error, standard input. The file
# is there from the beginning and is only given another name: that works on a disk that is full. The process is that of
# the user's own command, whatever that does to its environment.
_IN_THE_STEP = (
    '(read -r it </proc/$$/stat && echo "$it" >"$1") 2>/dev/null; '
    'mv -f "$1" "$1.${SLURM_STEP_ID-}" 2>/dev/null; exec <"$4" >>"$2" || exit 1; '
    'if [ "$2" = "$3" ]; then exec 2>&1; else exec 2>>"$3" || exit 1; fi; shift 4; '
    f'unset {_OF_THE_STEP}; exec "$@"'
)
_OF_CONTAINERS = ("APPTAINER", "SINGULARITY")


class Job(NamedTuple):
    """The pack's job on its node, as Slurm gave it.

    ``cores`` are the cores to share out, none where the job is not kept to its own; ``mem_share_mib`` is one task's
    part of the job's memory, None where Slurm gave no number.
    """

    job_id: str
    array_job_id: str
    name: str
    cluster: str
    user: str
    node: str
    folder: str
    cpus: int
    cores: tuple[int, ...]
    mem_share_mib: int | None


class Files(NamedTuple):
    """A task's files, by their whole names, and the one that says which step it is."""

    step: str
    output: str
    error: str
    input: str


def read_job(environ: Mapping[str, str], affinity: Collection[int], at_once: int, folder: str) -> Job:
    """Return what the variables of a batch script and the cores it may run on say of its job.

    Args:
        environ: the environment of the batch script.
        affinity: the cores that it may run on.
        at_once: how many tasks share the job at most.
        folder: its working folder.

    Raises:
        InputError: this is no batch script of a job.
    """
    job_id, cpus = environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_CPUS_ON_NODE", "")
    if not job_id.isdigit() or not cpus.isdigit():
        raise InputError("a pack runs inside a Slurm job, and SLURM_JOB_ID or SLURM_CPUS_ON_NODE is not set here")
    return Job(
        job_id=job_id,
        array_job_id=environ.get("SLURM_ARRAY_JOB_ID", job_id),
        name=environ.get("SLURM_JOB_NAME", ""),
        cluster=environ.get("SLURM_CLUSTER_NAME", ""),
        user=environ.get("SLURM_JOB_USER", environ.get("USER", "")),
        node=environ.get("SLURMD_NODENAME") or os.uname().nodename.partition(".")[0],
        folder=folder,
        cpus=int(cpus),
        # A job that may run on more than it was given is not kept to cores at all: pinned there, packs would meet on
        # the same few.
        cores=tuple(sorted(affinity)) if len(affinity) <= int(cpus) else (),
        mem_share_mib=_memory_mib(environ, int(cpus), at_once),
    )


def _memory_mib(environ: Mapping[str, str], cpus: int, at_once: int) -> int | None:
    per_node, per_cpu = environ.get("SLURM_MEM_PER_NODE", ""), environ.get("SLURM_MEM_PER_CPU", "")
    # 0 stands for all that the node has.
    total = int(per_cpu) * cpus if per_cpu.isdigit() else 0
    if per_node.isdigit():
        total = int(per_node)
    return total // at_once or None


def slots(cores: Sequence[int], at_once: int, cpus_per_task: int) -> list[tuple[int, ...]]:
    """Return the cores of each of ``at_once`` tasks, some of them in common if they do not suffice."""
    count = min(cpus_per_task, len(cores))
    return [
        tuple(sorted(cores[(slot * count + number) % len(cores)] for number in range(count))) for slot in range(at_once)
    ]


def srun_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for srun, without what would change what its command line says."""
    return {name: value for name, value in environ.items() if not _READ_BY_SRUN.fullmatch(name)}


def task_variables(spec: Spec, job: Job, task: Task, attempt: int, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what a task finds in its environment as a task of an array would, and CSUB_PACK_TASK.

    Args:
        spec: of the pack.
        job: that it runs in.
        task: the task.
        attempt: from 1.
        environ: the environment of the batch script.
    """
    numbers = range(1, len(spec.commands) + 1) if spec.commands else parse_array(spec.array)
    step = re.search(r":(\d+)", spec.array)
    cpus = str(spec.cpus_per_task)
    restarts = int(environ.get("SLURM_RESTART_COUNT") or 0) + attempt - 1
    return {
        "SLURM_ARRAY_JOB_ID": job.array_job_id,
        "SLURM_ARRAY_TASK_ID": str(task.number),
        "SLURM_ARRAY_TASK_COUNT": str(len(numbers)),
        "SLURM_ARRAY_TASK_MIN": str(numbers[0]),
        "SLURM_ARRAY_TASK_MAX": str(numbers[-1]),
        "SLURM_ARRAY_TASK_STEP": step[1] if step else "1",
        "SLURM_JOB_NAME": job.name,
        **{name: environ[name] for name in _OF_THE_STEP.split() if name in environ},  # 26.05: a number of its own
        # From 23.11 on, where it has cpu; an srun that finds another number there than in the next one gives up.
        **({"SLURM_TRES_PER_TASK": f"cpu={cpus}"} if "SLURM_TRES_PER_TASK" in environ else {}),
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_NNODES": "1",
        "SLURM_CPUS_PER_TASK": cpus,
        "SLURM_CPUS_ON_NODE": cpus,
        "SLURM_JOB_CPUS_PER_NODE": cpus,
        **({} if job.mem_share_mib is None else {"SLURM_MEM_PER_NODE": str(job.mem_share_mib)}),
        **({"SLURM_RESTART_COUNT": str(restarts)} if restarts else {}),
        **({} if "OMP_NUM_THREADS" in environ else {"OMP_NUM_THREADS": cpus}),
        # An srun inside the task must not wait for the end of the step that it is called in.
        "SLURM_OVERLAP": "1",
        "CSUB_PACK_TASK": str(task.number),
        TASK_VARIABLE: str(task.number),
    }


def command_line(
    srun: str,
    spec: Spec,
    job: Job,
    task: Task,
    *,
    script: str,
    files: Files,
    cores: Sequence[int],
    variables: Mapping[str, str],
) -> list[str]:
    """Return the command line that runs one task as a step.

    The files are opened inside the step, so that the task's output and errors keep their order. The variables are set
    by env there: srun and slurmstepd write their own over what they are handed, and --export may keep it back.

    Args:
        srun: the program.
        spec: of the pack.
        job: that it runs in.
        task: the task.
        script: the file with the user's script.
        files: the task's.
        cores: that it is kept to; none: all.
        variables: to set for it.
    """
    limit = []
    if (limit_min := spec.time_limit_min) is not None:
        minutes, seconds = divmod(math.ceil(limit_min * 60), 60)
        limit.append(f"--time={minutes}:{seconds:02d}")
    user_command = ["/bin/sh", "-c", task.command] if task.command else [*spec.interpreter, script, *spec.script_args]
    if "=" in user_command[0]:  # env would take it for a variable
        user_command = ["/bin/sh", "-c", 'exec "$@"', "task", *user_command]
    size = [f"--mem={job.mem_share_mib}M"] if job.mem_share_mib else []
    return [
        *(srun, *limit, "-J", f"task-{task.number}", "--overlap", "--exact", "-N1", "-n1", "-c", str(job.cpus), *size),
        *("--export=ALL", "--input=none", "--mpi=none", "--quiet"),
        *("/bin/sh", "-c", _IN_THE_STEP, "task", *files),
        *(["taskset", "-c", ",".join(map(str, cores))] if cores else []),
        *("env", *(f"{name}={value}" for name, value in variables.items())),
        *user_command,
    ]


def into_steps(variables: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return SLURM_EXPORT_ENV with the names of ``variables`` added; nothing where it keeps none of them back.

    Args:
        variables: that a step inside is to have.
        environ: the user's, with what sbatch set in it.
    """
    exported = environ.get("SLURM_EXPORT_ENV")
    if exported is None or exported == "ALL" or exported.startswith("ALL,"):
        return {}
    # srun looks at the first letters alone, and then at no more of the list.
    listed = "" if exported.upper().startswith(("NONE", "NIL")) else exported
    names = [name for name in variables if not name.startswith("SLURM_")]
    return {"SLURM_EXPORT_ENV": ",".join(filter(None, [listed, *names]))}


def into_containers(variables: Mapping[str, str], folders: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return what makes Apptainer, or Singularity, hand ``variables`` on and mount ``folders``.

    Args:
        variables: that a program in a container is to have.
        folders: that it is to find.
        environ: the user's; its mounts stay.
    """
    handed = {f"{prefix}ENV_{name}": value for prefix in _OF_CONTAINERS for name, value in variables.items()}
    # Apptainer reads Singularity's where its own is not set.
    before = environ.get("SINGULARITY_BIND", "")
    binds = {"SINGULARITY_BIND": before, "APPTAINER_BIND": environ.get("APPTAINER_BIND", before)}
    return handed | {name: ",".join(filter(None, [value, *folders])) for name, value in binds.items()}

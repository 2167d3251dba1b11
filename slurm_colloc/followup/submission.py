# SPDX-License-Identifier: Apache-2.0
"""A companion: a small job of the user's that waits for another one's end and submits it once more where that is due.

It lives outside the job it follows, needs no rights, and costs one core for a second. What it does is
``slurm_colloc.followup.companion``.
"""

import os
import pwd
import sys
from collections.abc import Mapping

from slurm_colloc.config import SiteConfig
from slurm_colloc.errors import ProcessError
from slurm_colloc.followup.record import FIRST, VERSION, Record, record_folder
from slurm_colloc.model import JobRequest
from slurm_colloc.process import run
from slurm_colloc.slurm.options import CommandLine
from slurm_colloc.slurm.parse import parse_submitted
from slurm_colloc.submit.handover import CALLED
from slurm_colloc.submit.render import quote

# What the environment of a job has otherwise than its submission had it.
_CHANGED_BY_SLURM = frozenset(
    {"CUDA_VISIBLE_DEVICES", "ENVIRONMENT", "GPU_DEVICE_ORDINAL", "HOSTNAME", "PWD", "ROCR_VISIBLE_DEVICES"}
    | {"TMPDIR", "ZE_AFFINITY_MASK"}
)
_REPLACED = set("%\\")


def record_of(
    why: str,
    name: str,
    job_id: str,
    request: JobRequest,
    command_line: CommandLine,
    environ: Mapping[str, str],
    cluster: str,
) -> Record:
    """Return what a companion is told of one call of csub; what is left at its default the caller may know.

    Args:
        why: of the record's reasons.
        name: of the record.
        job_id: of the job that the companion follows.
        request: what was asked for.
        command_line: csub's.
        environ: of the call.
        cluster: where it is.
    """
    return Record(
        version=VERSION,
        why=why,
        cluster=cluster,
        name=name,
        job_id=job_id,
        attempt=0,
        user=pwd.getpwuid(os.geteuid()).pw_name,
        job_name=request.name,
        signature=request.signature,
        own=tuple(one.word for one in command_line.own),
        options=command_line.sbatch_argv[: command_line.ends[-1]],
        script=os.path.basename(command_line.script) if command_line.script else "sbatch",
        from_stdin=command_line.script is None,
        script_args=command_line.script_args,
        folder=os.getcwd(),
        names=tuple(environ),
        variables={name: value for name, value in environ.items() if _is_slurms(name)},
        account=request.account,
        qos=request.qos,
        work_folder=request.folder,
    )


def _is_slurms(name: str) -> bool:
    return name.startswith(("SLURM", "SBATCH", "SRUN_")) or name in _CHANGED_BY_SLURM


def submit_companion(
    sbatch: str, record: Record, when: str, call_environ: Mapping[str, str], config: SiteConfig
) -> str:
    """Submit the companion of a record that is written, and return its job id.

    Args:
        sbatch: the real one.
        record: what it is told; its account, QOS and partition are the companion's too.
        when: the dependency, "afternotok:123" or "afterany:123".
        call_environ: the environment of csub's call, which the companion gets but for SBATCH_* (they are about the
            user's job, and in the record).
        config: the site.

    Raises:
        ProcessError: Slurm refused it or did not answer in time.
    """
    environ = {name: value for name, value in call_environ.items() if not name.startswith("SBATCH_")}
    folder = record_folder(record.cluster, record.name)
    argv = _argv(sbatch, record, when, folder, config)
    done = run(argv, config.timeouts.ask_slurm_s, environ, _script(folder), CALLED)
    submitted = parse_submitted(done.stdout)
    if done.status or not submitted:
        raise ProcessError(f"its companion job was refused (status {done.status}): {done.last_words}")
    return submitted.job_id


def _argv(sbatch: str, record: Record, when: str, folder: str, config: SiteConfig) -> list[str]:
    log = os.path.join(folder, "log")
    asked = {
        "account": record.account,
        "qos": record.qos,
        "partition": config.recovery.partition or record.partition,
    }
    return [
        sbatch,
        "--parsable",
        f"--job-name=csub-{'first' if record.why == FIRST else 'retry'}-{record.job_id}",
        f"--dependency={when}",
        "--kill-on-invalid-dep=yes",
        # Preempted, or its node failed: what it submits it claims first.
        "--requeue",
        *("--nodes=1", "--ntasks=1", "--cpus-per-task=1", "--mem=256M", "--time=10"),
        *(f"--{name}={value}" for name, value in asked.items() if value),
        "--export=ALL",
        # Wherever csub was called, that folder may be missing on the node; the program says so itself.
        "--chdir=/",
        "--input=/dev/null",
        # A pattern would be replaced in it.
        f"--output={os.devnull if set(log) & _REPLACED else log}",
    ]


def _script(folder: str) -> bytes:
    python, missing = quote(sys.executable), f"csub: this node has no '{sys.executable}'"
    lines = [
        "#!/bin/sh",
        f"[ -x {python} ] || {{ echo {quote(missing)} >&2; exit 127; }}",
        f"exec {python} -I -m slurm_colloc.followup.companion {quote(folder)}",
    ]
    return "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape")

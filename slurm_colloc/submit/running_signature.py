# SPDX-License-Identifier: Apache-2.0
"""The signature of a job that was not submitted by csub, worked out while the job runs.

Its script, arguments, folder and variables are those of the submission. Nobody can tell any more which variables were
given to this job alone (--export=NAME=VALUE), so such a job that does not name them in its script passes for one
without them.
"""

import os
from collections.abc import Mapping, Sequence

from slurm_colloc.core.errors import InputError
from slurm_colloc.core.files import read_bounded
from slurm_colloc.core.model import SharingMode
from slurm_colloc.estimate.signature import OF_REQUEST, WRAPPED, apart_by, signature
from slurm_colloc.slurm.array import array_of_task
from slurm_colloc.submit.render import BLOCK_BEGINS

# slurmctld takes no larger script unless it is told to (max_script_size).
_LIMIT_BYTES = 4 * 1024 * 1024
_SLURMS = ("SLURM", "CUDA_MPS_")
_SET_BY_SLURM = frozenset({"ENVIRONMENT", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"})


def known_by(path: str, arguments: Sequence[str], environ: Mapping[str, str], cluster: str) -> tuple[str, SharingMode]:
    """Return a running job's signature and how it holds its GPU.

    Args:
        path: the batch script as slurmd has it.
        arguments: the script's own.
        environ: of the job.
        cluster: the name that csub has for it.

    Raises:
        InputError: csub submitted it, and knows it better; nothing is learned from it, as it has a limit of MPS on its
            threads or several GPUs.
        StoreError: the script cannot be read.
    """
    text = read_bounded(path, _LIMIT_BYTES)
    if BLOCK_BEGINS.encode() in text:
        raise InputError(f"'{path}' was submitted by csub, which has it measured")
    if "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" in environ:
        raise InputError("under MPS's limit on its threads a job holds less memory than without: it teaches nothing")
    gpus, tasks = environ.get("SLURM_GPUS_ON_NODE", "1"), environ.get("SLURM_NTASKS", "")
    if gpus != "1" or environ.get("SLURM_JOB_NUM_NODES", "1") != "1":
        raise InputError(f"this job has {gpus} GPUs on this node; only those of one GPU are learned from")
    names = apart_by(cluster, tasks=int(tasks) if tasks.isdecimal() else None)
    variables = {
        name: value
        for name, value in environ.items()
        if name not in _SET_BY_SLURM and (name in OF_REQUEST or not name.startswith(_SLURMS))
    }
    # The command of --wrap was submitted.
    submitted = text.partition(WRAPPED)[2] or text
    known = signature(submitted, arguments, 1, names, variables, os.getcwd(), array=array_of_task(environ))
    return known.text, SharingMode.SHARD if "SLURM_SHARDS_ON_NODE" in environ else SharingMode.EXCLUSIVE

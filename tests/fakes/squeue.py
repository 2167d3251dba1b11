# SPDX-License-Identifier: Apache-2.0
"""A line of squeue, as csub asks for it."""

from slurm_colloc.slurm.jobs import QUEUE

_FIELDS = [field.removesuffix(":|") for field in QUEUE[-1].split(",")]
_ALONE = {
    "ArrayTaskID": "N/A",
    "UserName": "ann",
    "State": "RUNNING",
    "Partition": "gpu",
    "NodeList": "g1",
    "tres-alloc": "cpu=4,gres/gpu=1",
    "tres-per-node": "gres:gpu:1",
    "StartTime": "1767225600",
    "TimeUsed": "1:02:03",
    "Dependency": "(null)",
    "Reason": "None",
}


def squeue_line(job_id: str, **fields: str) -> str:
    """Return the line of one job or task that runs, but for ``fields``: squeue's names, "_" for "-"."""
    array, _, task = job_id.partition("_")
    ids = {"JobArrayID": job_id, "ArrayJobID": array, "JobID": array, **({"ArrayTaskID": task} if task else {})}
    values = _ALONE | ids | {name.replace("_", "-"): value for name, value in fields.items()}
    return "".join(f"{values[field]}|" for field in _FIELDS) + "\n"

# SPDX-License-Identifier: Apache-2.0
"""A line of squeue, as csub asks for it."""

from slurm_colloc.slurm.jobs import QUEUE

_FIELDS = [field.removesuffix(":|") for field in QUEUE[-1].split(",")]
_ALONE = {
    "UserName": "ann",
    "State": "RUNNING",
    "StartTime": "1767225600",
    "Dependency": "(null)",
}


def squeue_line(job_id: str, **fields: str) -> str:
    """Return the line of one job or task that runs, but for ``fields``, by squeue's names."""
    values = _ALONE | {"JobArrayID": job_id, "ArrayJobID": job_id.partition("_")[0]} | fields
    return "".join(f"{values[field]}|" for field in _FIELDS) + "\n"

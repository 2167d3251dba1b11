# SPDX-License-Identifier: Apache-2.0
"""COL002: GPU processes outside any job.

What they do is charged to nobody, and while one is on a GPU nothing is said of a job that holds it and seems idle. It
names the node, and no person: whose process it was is not recorded.
"""

from collections.abc import Iterable

from slurm_colloc.config import Audit
from slurm_colloc.measured import StrayUse
from slurm_colloc.model import Finding
from slurm_colloc.units import significant

CODE = "COL002"


def find(strays: Iterable[StrayUse], bounds: Audit) -> list[Finding]:
    """Return one finding for each node above the site's bound."""
    return [
        Finding(
            code=CODE,
            severity="warning",
            subject=stray.node,
            evidence=f"processes outside any job for {significant(stray.gpu_hours)} GPU-h on {stray.gpus} of its GPUs "
            f"(slices); the site's bound is {bounds.outside_jobs_min_gpu_hours:g} GPU-h",
            remedy="look for logins past Slurm (pam_slurm_adopt), containers of a daemon, monitors that hold a context",
            reproduce="nvidia-smi on that node, and /proc/PID/cgroup of what it lists",
        )
        for stray in strays
        if stray.gpu_hours >= bounds.outside_jobs_min_gpu_hours > 0
    ]

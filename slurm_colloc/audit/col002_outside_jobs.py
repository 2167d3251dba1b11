# SPDX-License-Identifier: Apache-2.0
"""COL002: GPU processes outside any job.

What they do is charged to nobody, and while one is on a GPU nothing is said of a job that holds it and seems idle. It
names the node, and no person: whose process it was is not recorded.
"""

from slurm_colloc.audit.rule import UNKNOWN, Bound, Bounds, Rule, Said, hours
from slurm_colloc.core.audit_model import NODE, NODES, Subject


def _say(subject: Subject, bounds: Bounds) -> Said | None:
    if not bounds["min_gpu_hours"]:
        return None
    return Said(
        f"processes outside any job for {hours(subject.gpu_hours)} on {subject.figures['gpus']:g} of its GPUs "
        f"(slices); the site's threshold is {hours(bounds['min_gpu_hours'])}",
        "look for logins past Slurm (pam_slurm_adopt), containers of a daemon, monitors that hold a context: "
        "nvidia-smi on that node, and /proc/PID/cgroup of what it lists",
    )


RULE = Rule(
    code="COL002",
    name="outside jobs",
    title="GPU processes outside any job",
    documentation=__doc__ or "",
    bounds={"min_gpu_hours": Bound(1.0, "hours of GPUs and slices in the window, on one node; 0: never")},
    judged={UNKNOWN: "stray_hours IS NOT NULL"},
    found="stray_hours > 0",
    hours="stray_hours",
    figures={"gpus": "sum(gpus)"},
    say=_say,
    about=NODE,
    source=NODES,
    subject="node",
)

# SPDX-License-Identifier: Apache-2.0
"""COL001: GPUs held at zero use.

A user's runs held GPUs, were sampled for enough of their time, and in none of those samples did a kernel run. Time
that was not sampled is not counted. A run of which either counter (GPU_UTIL, SM activity) showed anything is none of
them, nor is one that was suspended, nor one whose figures stand on anything weaker than a measurement of this run
alone: what a neighbour did is held against nobody.

A kernel is what SMs do: video engines and copies are none. A slice has one counter, SM activity; while another program
profiles its GPU, that reads 0, and nothing tells.

Runs whose memory was filled although nothing ran are COL006's: a model that waits for requests is no forgotten shell.
job_defense_shield calls it zero-util-gpu-hours.
"""

from slurm_colloc.audit.rule import COUNTED, COUNTED_SURE, PARKED, UNUSED, Bound, Bounds, Rule, Said
from slurm_colloc.audit.words import hours, runs, seen
from slurm_colloc.audited import Subject


def _say(subject: Subject, bounds: Bounds) -> Said | None:
    if subject.gpu_hours <= 0 or subject.gpu_hours < bounds["min_gpu_hours"]:
        return None
    return Said(
        f"{hours(subject.gpu_hours)} in {runs(subject)} without one kernel seen, {seen(subject)}; "
        f"the site's bound is {hours(bounds['min_gpu_hours'])}",
        "end jobs that wait at a prompt or failed early; ask for no GPU where none is used",
    )


RULE = Rule(
    code="COL001",
    name="zero use",
    title="GPUs held at zero use",
    documentation=__doc__ or "",
    bounds={"min_gpu_hours": Bound(24.0, "GPU-hours at zero use in the window, of one user, from which it speaks")},
    judged=COUNTED_SURE,
    found=f"{UNUSED} AND NOT {PARKED}",
    hours=COUNTED,
    say=_say,
)

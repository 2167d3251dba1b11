# SPDX-License-Identifier: Apache-2.0
"""COL015: jobs that csub could have placed and that did not go through it.

A user's runs held whole GPUs, would have fitted a piece of one (by COL007's rule), and csub has kept no decision about
their jobs. It says nothing where the site's policy is not auto, nor of runs that began before csub first gave anybody
anything on their cluster.

Judged are the runs that COL007 judges. A job that csub left as it was asked for did go through it, and is COL007's
alone, and so is a later run of one that was requeued. Of a job submitted while the policy was off for a time csub keeps
nothing, nor where it could not write: such a job did go through it.
"""

from slurm_colloc.audit.rule import FIT_NEEDS, USED, Bound, Bounds, Rule, Said
from slurm_colloc.audit.words import hours, runs, seen
from slurm_colloc.audited import Subject


def _say(subject: Subject, bounds: Bounds) -> Said | None:
    freed = subject.figures["freed"]
    if not freed:
        return None
    return Said(
        f"{hours(subject.gpu_hours)} in {runs(subject)} of which csub has no record and that would have fitted a "
        f"piece of a GPU, {hours(freed)} less; {seen(subject)}; the site's bound is {hours(bounds['min_gpu_hours'])}",
        "submit with csub instead of sbatch: it takes the same options, and leaves a job as asked where it is unsure",
    )


RULE = Rule(
    code="COL015",
    name="past csub",
    title="jobs that csub could have placed and that did not go through it",
    documentation=__doc__ or "",
    bounds={"min_gpu_hours": Bound(24.0, "GPU-hours of such runs in the window, of one user, from which it speaks")},
    judged={"csub gave nothing on its cluster yet": "csub_there", **FIT_NEEDS, **USED},
    found="fit_unit IS NOT NULL AND fit_gpus < 1 AND NOT csub_asked",
    hours="allocated",
    figures={"freed": "sum(allocated * (1 - fit_gpus)) FILTER (found)"},
    say=_say,
)

# SPDX-License-Identifier: Apache-2.0
"""COL015: jobs that csub could have placed and that did not go through it.

A user's runs held whole GPUs, would have fitted a piece of one (by COL007's rule), and csub was never asked: it decided
nothing of their jobs. On a cluster on which csub never decided anything it says nothing.

Judged are the runs that COL007 judges. A job that csub left as it was asked for did go through it, and is COL007's
alone, and so is a later run of one that was requeued. Of jobs submitted while the site's policy was off csub keeps
nothing: they seem to have gone past it.
"""

from slurm_colloc.audit.rule import Bound, Bounds, Rule, Said
from slurm_colloc.audit.words import hours, runs
from slurm_colloc.audited import Subject


def _say(subject: Subject, bounds: Bounds) -> Said | None:
    freed = subject.figures["freed"]
    if subject.gpu_hours <= 0 or subject.gpu_hours < bounds["min_gpu_hours"] or not freed:
        return None
    return Said(
        f"{hours(subject.gpu_hours)} in {runs(subject)} that csub was not asked about and could have given a piece of "
        f"a GPU, {hours(freed)} less; the site's bound is {hours(bounds['min_gpu_hours'])}",
        "submit with csub instead of sbatch: it takes the same options, and leaves a job as asked where it is unsure",
    )


RULE = Rule(
    code="COL015",
    name="past csub",
    title="jobs that csub could have placed and that did not go through it",
    documentation=__doc__ or "",
    bounds={"min_gpu_hours": Bound(24.0, "GPU-hours of such runs in the window, of one user, from which it speaks")},
    judged="fit_judged AND allocated > 0 AND csub_there",
    found="fit_unit IS NOT NULL AND fit_gpus < 1 AND NOT csub_asked",
    hours="allocated",
    figures={"freed": "sum(allocated * (1 - fit_gpus)) FILTER (found)"},
    say=_say,
)

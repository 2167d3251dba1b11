# SPDX-License-Identifier: Apache-2.0
"""COL007: whole GPUs for runs that would have fitted a piece of one.

A user's runs held whole GPUs, and a slice or a share that the site has would have held each of them: its peak of GPU
memory with the site's headroom, and its mean SM activity while kernels ran within the slowdown that the site allows. It
says how many of all runs that can be judged those are, how many GPU-hours the pieces would have left to others, and how
many runs would have fitted none.

It is the rule of 'colloc report' and 'colloc job': what csub, had it known what was measured, would have given.
Only completed runs are compared: inside the window, alone on one whole GPU that they used, sampled for at least 60 % of
their time. Those at zero use are COL001's.
It never says that a run would have taken no longer, or that a piece was free.

job_defense_shield's gpu-model-too-powerful is its like, by GPU_UTIL and memory against bounds of the site's.
"""

from slurm_colloc.audit.rule import (
    FIT_NEEDS,
    PIECE_ENOUGH,
    PIECES,
    USED,
    Bound,
    Bounds,
    Rule,
    Said,
    ask_for_piece,
    gib,
    hours,
    runs,
    seen,
)
from slurm_colloc.core.audit_model import Subject
from slurm_colloc.core.units import at_most


def _say(subject: Subject, bounds: Bounds) -> Said | None:
    freed, peak_mib, sm_pct = (subject.figures[name] for name in ("freed", "peak_mib", "sm_pct"))
    if not freed or peak_mib is None:
        return None
    active = "" if sm_pct is None else f"; mean SM activity of a run while kernels ran: at most {at_most(sm_pct)} %"
    none = subject.judged - subject.found
    misfits = f"; {none} of {subject.judged} judged runs fit no piece" if none else ""
    return Said(
        f"{hours(subject.gpu_hours)} of whole GPUs in {runs(subject)} that would have fitted a piece of a GPU "
        f"(peaks of GPU memory up to {gib(peak_mib)}{active}); other jobs could have had {hours(freed)} of it"
        f"{misfits}; {seen(subject)}; the site's threshold is {hours(bounds['min_gpu_hours'])}",
        f"{ask_for_piece(subject, 'such jobs')}; 'colloc job JOB' shows what a job used",
    )


RULE = Rule(
    code="COL007",
    name="fits a slice",
    title="whole GPUs for runs that would have fitted a piece of one",
    documentation=__doc__ or "",
    bounds={"min_gpu_hours": Bound(24.0, "GPU-hours of such runs in the window, of one user, from which it speaks")},
    judged={**FIT_NEEDS, **USED},
    found="fits",
    hours="allocated",
    figures={
        "freed": "sum(fit_freed) FILTER (found)",
        "peak_mib": "max(peak_mib) FILTER (found)",
        "sm_pct": "max(fit_sm_pct) FILTER (found)",
        **PIECES,
    },
    say=_say,
    label=PIECE_ENOUGH,
)

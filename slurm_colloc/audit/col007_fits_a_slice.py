# SPDX-License-Identifier: Apache-2.0
"""COL007: whole GPUs for runs that would have fitted a piece of one.

A user's runs held whole GPUs, and a slice or a share that the site has would have held each of them: its peak of GPU
memory with the site's headroom, and the SM activity that it stayed at or below for 95 % of its time, within the
slowdown that the site allows. It says how many of all runs that can be judged those are, how many GPU-hours the pieces
would have left to others, and how many runs would have fitted none.

It is the rule of 'colloc report' and 'colloc job': what csub, had it known what was measured, would have given. Judged
are completed runs of one whole GPU, measured alone on it for enough of their time, where site.toml has pieces. It never
says that a run would have taken no longer, or that a piece was free.

job_defense_shield's gpu-model-too-powerful is its like, by GPU_UTIL and memory against bounds of the site's.
"""

from slurm_colloc.audit.rule import Bound, Bounds, Rule, Said
from slurm_colloc.audit.words import gib, hours, runs, seen
from slurm_colloc.audited import Subject


def _say(subject: Subject, bounds: Bounds) -> Said | None:
    freed, peak_mib = subject.figures["freed"], subject.figures["peak_mib"]
    if subject.gpu_hours <= 0 or subject.gpu_hours < bounds["min_gpu_hours"] or not freed or peak_mib is None:
        return None
    none_pct = 100 * (subject.judged - subject.found) / subject.judged
    return Said(
        f"{hours(subject.gpu_hours)} of whole GPUs in {runs(subject)} that would have fitted a piece of one, half of "
        f"them {subject.label} or a smaller one (peaks of GPU memory up to {gib(peak_mib)}), which leaves "
        f"{hours(freed)} to others; {none_pct:.0f} % of {subject.judged} that can be judged would have fitted none; "
        f"{seen(subject)}; the site's bound is {hours(bounds['min_gpu_hours'])}",
        "submit by csub, which gives such a piece, or look at one of them with 'colloc job' and ask for it",
    )


RULE = Rule(
    code="COL007",
    name="fits a slice",
    title="whole GPUs for runs that would have fitted a piece of one",
    documentation=__doc__ or "",
    bounds={"min_gpu_hours": Bound(24.0, "GPU-hours of such runs in the window, of one user, from which it speaks")},
    judged="fit_judged AND allocated > 0",
    found="fit_unit IS NOT NULL AND fit_gpus < 1",
    hours="allocated",
    figures={
        "freed": "sum(allocated * (1 - fit_gpus)) FILTER (found)",
        "peak_mib": "max(peak_mib) FILTER (found)",
    },
    say=_say,
    label="(quantile_disc({'gpus': fit_gpus, 'unit': fit_unit}, 0.5) FILTER (found)).unit",
)

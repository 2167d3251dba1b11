# SPDX-License-Identifier: Apache-2.0
"""COL013: an estimate that is wrong for an application.

Of the runs of one user's application (its signature) for which csub had an estimate of the peak of GPU memory, too many
peaked above its q99, or most stayed far below it. Above, a piece of a GPU may have been too small and a run may have
failed; far below, it got a larger piece than it needs, or a whole GPU.

A run counts where its peak was measured, of this run alone, over enough of its time. Above counts whatever became of
the run, below only if it completed, since a run that ended early had not reached its peak yet. A client of MPS shows
less memory than the same run on a whole GPU, and is never said to be below. A peak that equals the q99 is within it. It
is nobody's fault where csub guessed; where the user said what it needs (--gpu-footprint), that is what is wrong.
"""

from slurm_colloc.audit.rule import SURE, UNSAMPLED, Bound, Bounds, Rule, Said
from slurm_colloc.audit.words import gib, runs, seen
from slurm_colloc.audited import APPLICATION, Subject
from slurm_colloc.units import counted


def _say(subject: Subject, bounds: Bounds) -> Said | None:
    above, below, most, least = (subject.figures[name] for name in ("above", "below", "highest_mib", "q99_mib"))
    if subject.judged < max(1, bounds["min_runs"]) or above is None or below is None or least is None:
        return None
    above_pct, below_pct = 100 * above / subject.judged, 100 * below / subject.judged
    if above >= max(1, bounds["min_above"]) and above_pct > bounds["above_pct"]:
        what = f"{above:g} peaked above the estimate ({above_pct:.0f} %; up to {gib(most or 0)})"
        bound = f"{bounds['above_pct']:g} %"
    elif below_pct > 50:
        what = f"{below:g} used less than {bounds['below_pct']:g} % of the estimate ({below_pct:.0f} %)"
        bound = "half of them"
    else:
        return None
    return Said(
        f"of {counted(subject.judged, 'run')} with an estimate of GPU memory of {gib(least)} or more {what}: "
        f"{runs(subject)}, {seen(subject)}; the site's bound is {bound} of at least {bounds['min_runs']:g}",
        "say what it needs (--gpu-footprint=mem=SIZE, or 'colloc history --correct JOB mem=SIZE'); 'colloc history' "
        "shows what the estimate stands on",
    )


_ABOVE = "peak_mib > gpu_mem_q99_mib"
_BELOW = "(state = 'COMPLETED' AND mode != 'mps' AND 100 * peak_mib < $below_pct * gpu_mem_q99_mib)"
RULE = Rule(
    code="COL013",
    name="wrong estimate",
    title="an estimate that is wrong for an application",
    documentation=__doc__ or "",
    bounds={
        "min_runs": Bound(5.0, "runs that can be judged, of one application, from which it speaks"),
        "above_pct": Bound(5.0, "percent of them above the q99, beyond which it speaks"),
        "min_above": Bound(2.0, "and at least so many runs above"),
        "below_pct": Bound(50.0, "percent of the q99 below which a peak is far below; it speaks of more than half"),
    },
    judged={
        "no estimate of its GPU memory": "signature != '' AND mode IS NOT NULL AND gpu_mem_q99_mib > 0",
        "on several GPUs": "devices = 1",
        "begun before the window": "from_s <= start_s",
        UNSAMPLED: f"{SURE} AND peak_mib > 0",
        "not completed": f"state = 'COMPLETED' OR {_ABOVE}",
    },
    found=f"{_ABOVE} OR {_BELOW}",
    hours="allocated",
    least="",
    figures={
        "above": f"count(*) FILTER ({_ABOVE})",
        "below": f"count(*) FILTER ({_BELOW})",
        "highest_mib": f"max(peak_mib) FILTER ({_ABOVE})",
        "q99_mib": "min(gpu_mem_q99_mib)",
    },
    say=_say,
    about=APPLICATION,
    subject="\"user\" || ':' || signature",
)

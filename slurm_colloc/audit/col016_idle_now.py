# SPDX-License-Identifier: Apache-2.0
"""COL016: a running job whose GPUs are idle now.

A job runs, and at its last reading, not long ago, no kernel had run on any of its GPUs for so long: since it was first
seen, if there never was one, else since the last. It is about one job, so that it can be asked about, warned and, where
the site has switched that on, held or cancelled.

A job that worked before, or put something into GPU memory, gets the longer bound: it may go on, or wait for requests.
Counted is what was seen: time for which no reading tells is taken off, wherever it was, and where the last reading is
old when the audit looks nothing is said: accounting that nobody takes in any more knows of no end. Nor is it of jobs
that were suspended, share a GPU without a measurement of their own, or whose samples are only means, nor of slices:
they have one counter, which another program on the card can take away for hours, and somebody may lose a job by this.
Readings and accounting are hours old at times: whoever acts on it looks again
before.

job_defense_shield calls it cancel-zero-gpu-jobs, and counts from the start of the job.
"""

from slurm_colloc.audit.rule import (
    COUNTED_SURE,
    COUNTERS,
    FRESH,
    IDLE_HOURS,
    IDLE_S,
    NEVER_USED,
    PARKED,
    READ_S,
    Bound,
    Bounds,
    Rule,
    Said,
)
from slurm_colloc.audit.words import hours, seen, zeros
from slurm_colloc.audited import JOB, Subject
from slurm_colloc.units import in_words


def _say(subject: Subject, bounds: Bounds) -> Said | None:
    idle_s, worked, age_s = (subject.figures[name] for name in ("idle_s", "worked", "age_s"))
    if idle_s is None:
        return None
    bound_min = bounds["sliding_warning_min" if subject.figures["sliding"] else "first_warning_min"]
    before = "after it had worked" if worked else "nor any before in the window"
    return Said(
        f"no kernel for the last {in_words(idle_s)} ({zeros(subject)}) up to a reading {in_words(age_s or 0)} before "
        f"the audit looked ({hours(subject.gpu_hours)}), {before}, {seen(subject)}; "
        f"the site's bound is {bound_min:g} min",
        "cancel it with 'scancel' if it waits for nothing; 'colloc job JOB' shows when it worked last",
    )


# A model that waits for requests is no forgotten shell, and where no memory is known it may be one.
_NEVER_WORKED = f"{NEVER_USED} AND peak_mib IS NOT NULL AND NOT {PARKED}"
RULE = Rule(
    code="COL016",
    name="idle now",
    title="a running job whose GPUs are idle",
    documentation=__doc__ or "",
    bounds={
        "first_warning_min": Bound(60.0, "minutes idle of a job that never worked, from which it speaks"),
        "sliding_warning_min": Bound(240.0, "the same of one that worked before, or has its GPU memory filled"),
        "reading_age_min": Bound(120.0, "minutes that its last reading may be old when the audit looks"),
    },
    judged=f"{COUNTED_SURE} AND tail_s IS NOT NULL AND {FRESH} AND (util_used IS NOT NULL OR blocked IS NULL)",
    found=f"{IDLE_S} > 0 AND {IDLE_S} >= 60 * if({_NEVER_WORKED}, $first_warning_min, $sliding_warning_min)",
    hours=IDLE_HOURS,
    figures={
        "idle_s": f"max({IDLE_S}) FILTER (found)",
        "age_s": f"max($until_s - {READ_S}) FILTER (found)",
        "idle_since_s": f"max({READ_S} - {IDLE_S}) FILTER (found)",
        "worked": f"count(*) FILTER (found AND NOT ({NEVER_USED}))",
        "sliding": f"count(*) FILTER (found AND NOT ({_NEVER_WORKED}))",
        **COUNTERS,
    },
    say=_say,
    about=JOB,
    subject="job_id",
)

# SPDX-License-Identifier: Apache-2.0
"""COL001: GPUs held at zero use.

A user's runs held GPUs, were sampled for enough of their time, and in these samples hardly a kernel ran: each counter
that is known (GPU_UTIL, SM activity) is at most audit.idle_pct over that time, since a program that does no more than
open its GPU shows some milliseconds (0.1 % of two seconds on an H100). The finding says the most that was seen. Time
that was not sampled is not counted, nor is a run that has just begun and loads its data, nor a short one, whose
readings are in good part of what came before and after it, nor one that was suspended, nor one whose figures stand on
anything weaker than a measurement of this run alone: what a neighbour did is held against nobody.

A kernel is what SMs do: video engines and copies are none. While another program profiles a GPU, its SM activity reads
0, and only GPU_UTIL beside it tells; a slice has none, and so its 0 is held against nobody.

Runs whose memory was filled although nothing ran are COL006's: a model that waits for requests is no forgotten shell.
Of runs whose memory is not known neither says anything. job_defense_shield calls it zero-util-gpu-hours.
"""

from slurm_colloc.audit.rule import (
    ASLEEP,
    AWAKE,
    COUNTED,
    COUNTED_SURE,
    COUNTERS,
    LONG,
    MEMORY_KNOWN,
    PARKED,
    RUNNING,
    SETTLED,
    SHORT,
    SHORTEST,
    UNSAMPLED,
    UNUSED,
    YOUNG,
    Bound,
    Bounds,
    Rule,
    Said,
)
from slurm_colloc.audit.words import hours, kernels, runs, seen
from slurm_colloc.audited import Subject


def _say(subject: Subject, bounds: Bounds) -> Said:
    return Said(
        f"{hours(subject.gpu_hours)} in {runs(subject)} with {kernels(subject)}, "
        f"{seen(subject)}; the site's bound is {hours(bounds['min_gpu_hours'])}",
        "end jobs that wait at a prompt or failed early; ask for no GPU where none is used (video engines and copies "
        "are not seen: say so if it was these)",
    )


RULE = Rule(
    code="COL001",
    name="zero use",
    title="GPUs held at zero use",
    documentation=__doc__ or "",
    bounds={
        "min_gpu_hours": Bound(24.0, "GPU-hours at zero use in the window, of one user, from which it speaks"),
        "shortest_min": SHORTEST,
        "running_min": RUNNING,
    },
    judged={
        ASLEEP: AWAKE,
        SHORT: LONG,
        YOUNG: SETTLED,
        UNSAMPLED: COUNTED_SURE,
        "GPU memory not known": MEMORY_KNOWN,
    },
    found=f"{UNUSED} AND NOT {PARKED}",
    hours=COUNTED,
    figures=COUNTERS,
    say=_say,
)

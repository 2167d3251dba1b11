# SPDX-License-Identifier: Apache-2.0
"""COL001: GPUs that are held and idle.

A job's GPUs are idle, of one of six kinds. Of runs that have ended, by what they did in the window, added up for each
user: hardly a kernel ran (never used); none ran although the GPU's memory was filled (parked: a model that waits for
requests); none ran any more after it had worked (tail: a hang, a notebook left open); for a good part of the time
there was no process of the job on the GPU (empty: preparation on CPUs); of several GPUs some were never used (some).
And of a job that runs: no kernel for so long, up to a reading that is not old (now), or some of its GPUs never used.
Each job is told of once: what its user heard while it ran is not said again when it has ended.

Counted is what was seen, by a measurement of this run alone: what a neighbour did is held against nobody. Time that
was not sampled is not counted as idle, wherever it was, nor are runs that were suspended, whose node failed, or that
are short, whose readings are in good part of what came before and after them. A kernel is what SMs do: video engines
and copies are none. A counter that reads 0.1 % is a program that only opened its GPU. While another program profiles
a GPU its SM activity reads 0, and only GPU_UTIL beside it tells; a slice has none, and so its 0 is held against
nobody; only that no process was there counts, by the driver's list. A GPU that was at work while that list was empty
is not empty, and of GPUs that were shared nobody can tell. A run that worked, or filled its memory, may go on: while
it runs it gets the longer bound. It never says that a run was useless, only that others could not have what it held.
Where a partition gives out whole nodes, exclude it: nobody can give back a GPU there.

job_defense_shield calls it zero-util-gpu-hours and, while it runs, cancel-zero-gpu-jobs, which counts from the start.
"""

from collections.abc import Iterator

from slurm_colloc.audit.rule import (
    AWAKE,
    HELD,
    LONG,
    SHORTEST,
    UNKNOWN,
    UNSAMPLED,
    Bound,
    Bounds,
    Rule,
    Said,
    gib,
    hours,
    runs,
    seen,
    shown,
)
from slurm_colloc.core.audit_model import JOB, Subject
from slurm_colloc.core.units import counted, in_words
from slurm_colloc.facts.judgement import DO, FEWER, LEAST_TAIL_MIN, NO_USE, PIECE, TAIL, fewer

# Kind, as a column of idle_runs.sql -> its hours, what is said of them, and what helps.
_KINDS = {
    "never": ("counted_hours", "that never used the GPU", DO[NO_USE]),
    "parked": (
        "counted_hours",
        "that filled up to {peak} of GPU memory and ran hardly a kernel",
        "end a server to which no requests come",
    ),
    "tail": (
        "tail_hours",
        "after the last activity on the GPU, at most {longest} in one run",
        DO[TAIL],
    ),
    "no_process": (
        "no_process_hours",
        "without a process of the job on the GPU",
        "prepare data in a job without a GPU",
    ),
    "some_unused": (
        "some_unused_hours",
        "that used only some of their GPUs (the worst asked for {asked} and used {used})",
        DO[FEWER],
    ),
}


def _kinds(subject: Subject) -> Iterator[tuple[str, str, str]]:
    """Yield how much is of each kind, in words what it is, and what helps."""
    figures = subject.figures
    for kind, (_, words, remedy) in _KINDS.items():
        number, found_hours = figures[f"{kind}_runs"], figures[f"{kind}_hours"]
        if number and found_hours:
            devices, idle = figures["asked"] or 0, figures["unused"] or 0
            phrase = words.format(
                peak=gib(figures["peak_mib"] or 0),
                longest=in_words(figures["longest_s"] or 0),
                asked=int(devices),
                used=int(devices - idle),
            )
            if kind == "some_unused":
                remedy += _instead(subject, int(devices - idle))
            if kind == "parked" and figures["parked_fitting"]:
                remedy += f", or {DO[PIECE]} for it"
            yield f"{hours(found_hours)} in {counted(int(number), 'run')}", phrase, remedy


def _instead(subject: Subject, used: int) -> str:
    """Return what asks for as many GPUs as were used, where all of one node were asked for alike."""
    gres = fewer(subject.label, used) if subject.label else ""
    return f" ({gres} in place of {subject.label})" if gres else ""


def _say(subject: Subject, bounds: Bounds) -> Said:
    counters = shown(subject, "never_runs")
    kinds = list(_kinds(subject))
    extent = f" {kinds[0][1]}" if len(kinds) == 1 else f"; {'; '.join(f'{much} {phrase}' for much, phrase, _ in kinds)}"
    # Why a report may say more: COULD FREE has the whole time of GPUs that were never used.
    left_out = "; time that was not sampled is left out here" if (subject.coverage_pct or 100) < 100 else ""
    return Said(
        f"{hours(subject.gpu_hours)} idle in {runs(subject)}{extent}; {counters}{seen(subject)}{left_out}; "
        f"the site's threshold is {hours(bounds['min_gpu_hours'])}",
        f"{'; '.join(remedy for *_, remedy in kinds)}; tell the administrators if the job used video engines or only "
        "copied data: neither is measured",
    )


def _say_now(subject: Subject, bounds: Bounds) -> Said | None:
    idle_s, age_s = subject.figures["idle_s"], subject.figures["age_s"]
    if idle_s is None:
        units, devices = int(subject.figures["units"] or 0), int(subject.figures["devices"] or 0)
        return Said(
            f"asked {devices} GPUs, used {devices - units} in the window ({hours(subject.gpu_hours)}), up to a reading "
            f"{in_words(age_s or 0)} before the audit looked, {seen(subject)}; the site's threshold is "
            f"{bounds['sliding_warning_min']:g} min",
            f"{DO[FEWER]}{_instead(subject, devices - units)}; 'colloc job JOB' shows each GPU",
        )
    bound_min = bounds["sliding_warning_min" if subject.figures["sliding"] else "first_warning_min"]
    counters = shown(subject, "found_runs").removesuffix(", ")
    before = "after it had worked" if subject.figures["worked"] else "nor any before in the window"
    return Said(
        f"no kernel for the last {in_words(idle_s)} ({counters}) up to a reading "
        f"{in_words(age_s or 0)} before the audit looked ({hours(subject.gpu_hours)}), {before}, {seen(subject)}; "
        f"the site's threshold is {bound_min:g} min",
        "cancel the job with 'scancel' if it hangs; 'colloc job JOB' shows when it last used its GPU",
    )


_BOUNDS = {
    "min_gpu_hours": Bound(24.0, "GPU-hours idle in the window, of one user's runs that ended, from which it speaks"),
    "tail_min": Bound(LEAST_TAIL_MIN, "minutes idle since the last activity, from which they count"),
    "empty_pct": Bound(20.0, "percent of a run's GPU-hours without a process, from which they count"),
    "parked_mib": Bound(2048.0, "GPU memory at peak, of each GPU, from which a run at zero use is parked"),
    "shortest_min": SHORTEST,
    "first_warning_min": Bound(60.0, "minutes idle of a job that runs and never worked, from which it speaks"),
    "sliding_warning_min": Bound(240.0, "the same of one that worked before, has its memory filled, or uses some GPUs"),
    "reading_age_min": Bound(120.0, "minutes that the last reading of a job that runs may be old"),
}
RUNNING = Rule(
    code="COL001",
    name="idle",
    title="a running job whose GPUs are idle",
    documentation=__doc__ or "",
    bounds=_BOUNDS,
    judged={UNKNOWN: "counted_sure AND tail_s IS NOT NULL AND fresh AND (util_used IS NOT NULL OR blocked IS NULL)"},
    found="idle_now OR some_unused_now",
    hours="if(idle_now, idle_s / span_s * allocated, idle_units_hours)",
    figures={
        "idle_s": "max(idle_s) FILTER (found AND idle_now)",
        "age_s": "max(age_s) FILTER (found)",
        # NULL of a job that works on some of its GPUs: nothing is ever done to it.
        "idle_since_s": "max(read_s - idle_s) FILTER (found AND idle_now)",
        "worked": "count(*) FILTER (found AND NOT no_kernel)",
        "sliding": "count(*) FILTER (found AND NOT never_worked)",
        "units": "max(idle_units) FILTER (found)",
        "devices": "max(devices) FILTER (found)",
        "found_runs": "count(*) FILTER (found)",
        # A counter that is 0 since then may have been more before.
        "util_most_pct": "NULL",
        "sm_most_pct": "NULL",
        "by_util": "count(*) FILTER (found AND util_used IS NOT NULL)",
        "by_sm": "count(*) FILTER (found AND sm_used IS NOT NULL)",
    },
    say=_say_now,
    about=JOB,
    sheet="idle_runs",
    subject="job_id",
    label="max(shown) FILTER (found AND nodes = 1)",
    least="",
)
RULE = Rule(
    code="COL001",
    name="idle",
    title="GPUs held and idle",
    documentation=__doc__ or "",
    bounds=_BOUNDS,
    judged={
        "it runs still": "end_s IS NOT NULL",
        "told of while it ran": "job_id NOT IN (SELECT unnest($told::VARCHAR[]))",
        **AWAKE,
        **LONG,
        UNSAMPLED: f"sure AND {HELD}",
        "GPU memory not known": "NOT zero_use OR peak_mib IS NOT NULL AND (devices = 1 OR nodes IS NOT NULL)",
        # Neither a counter that can be believed nor a list of processes.
        "not known whether it was at work": "coalesce(counted_sure, false) OR held_idle_hours IS NOT NULL",
    },
    found=" OR ".join(_KINDS),
    hours="idle_hours",
    figures={
        **{f"{kind}_runs": f"count(*) FILTER ({kind})" for kind in _KINDS},
        **{
            f"{kind}_hours": f"sum(({hours_}::DOUBLE)::DECIMAL(38, 12)) FILTER ({kind})::DOUBLE"
            for kind, (hours_, *_) in _KINDS.items()
        },
        "peak_mib": "max(peak_mib) FILTER (parked)",
        "longest_s": "max(idle_s) FILTER (tail)",
        "parked_fitting": "count(*) FILTER (parked AND fits)",
        # The worst run: the one whose unused GPUs were most.
        "asked": "arg_max(devices, (idle_units, -devices)) FILTER (some_unused)",
        "unused": "max(idle_units) FILTER (some_unused)",
        "util_most_pct": "max(100 * util_used / util_measured) FILTER (never AND util_measured > 0)",
        "sm_most_pct": "max(100 * sm_used / sm_measured) FILTER (never AND sm_measured > 0)",
        "by_util": "count(*) FILTER (never AND util_used IS NOT NULL)",
        "by_sm": "count(*) FILTER (never AND sm_used IS NOT NULL)",
    },
    say=_say,
    label="arg_max(shown, (idle_units, -devices)) FILTER (some_unused AND nodes = 1)",
    sheet="idle_runs",
    running=RUNNING,
)

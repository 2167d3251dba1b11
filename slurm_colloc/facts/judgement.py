# SPDX-License-Identifier: Apache-2.0
"""The judgement of one run, the same in a mail, a report, on a page and by colloc job and me. Pure.

The database adds up what facts/sql/run_fits.sql finds of each of many runs (``Fitted``), and ``judge`` puts one of them
into what to do. Each line that is given is one that Slurm takes: tests/cluster/test_remedies.py sends each.
"""

from typing import NamedTuple

from slurm_colloc.core.audit_model import IDLE_PCT
from slurm_colloc.core.chart_model import JobTimeline
from slurm_colloc.core.model import Evidence
from slurm_colloc.core.units import counted
from slurm_colloc.core.usage_model import MIN_COVERAGE_PCT, JobUsage
from slurm_colloc.slurm.gres import parse_gres

# Results may be written on CPUs until then. A site that counts other tails in COL001 does so in its mails alone.
LEAST_TAIL_MIN = 120.0
# Less is not worth a line of what to do.
LEAST_GPU_HOURS = 0.01
NO_USE, FEWER, PIECE, TAIL = "no use", "fewer", "piece", "tail"
# The words for each thing to do, in all places.
DO = {
    NO_USE: "submit without a GPU what does not use one",
    FEWER: "ask for as many GPUs as the program uses",
    PIECE: "ask for a piece of a GPU",
    TAIL: "let a job end when its work on the GPU ends, and close notebooks",
}
# Which runs have a fit, wherever one is said.
COMPARED = (
    "Only completed runs are compared: inside the window, alone on one whole GPU that they used, sampled for at "
    f"least {MIN_COVERAGE_PCT:.0f} % of their time"
)
# The same as ``never_used`` and the coverage that it needs, of a row of ``usage`` in SQL.
NEVER_USED = (
    f"(coalesce(coverage_pct, 0) >= {MIN_COVERAGE_PCT} AND allocated > 0 AND (util_used IS NOT NULL OR "
    "coalesce(held_idle_hours, 0) > 0) AND (util_used IS NOT NULL AND util_measured > 0 OR "
    "sm_used IS NOT NULL AND sm_measured > 0) "
    f"AND coalesce(100 * util_used <= {IDLE_PCT} * util_measured, true) "
    f"AND coalesce(100 * sm_used <= {IDLE_PCT} * sm_measured, true))"
)
# The request for no GPU, as --gres has it.
NO_GPU = "none"
# Each of them replaces itself alone: --gres beside a script's --gpus=2 is refused, or adds a second node.
STYLES = ("gres", "gpus", "gpus-per-node")


class Fitted(NamedTuple):
    """A row of run_fits.sql: why nothing is said of a piece (a code of core/wording.py), or the piece.

    ``unit`` is empty where no piece holds the run; ``gpus`` is what it is worth in whole GPUs, ``most_mib`` the memory
    peak that it holds at most, and ``freed_gpu_hours`` what it would have left to others. ``unused_gpus``
    of several were never used, None where none was or not all were seen; ``spare_gpu_hours`` are theirs. ``nodes``
    are those that they were seen on. ``partition`` is where the piece is asked for, empty for the run's own.
    """

    why: str
    unit: str
    gpus: float | None
    most_mib: int | None
    freed_gpu_hours: float
    asked_gpus: int
    unused_gpus: int | None
    spare_gpu_hours: float
    nodes: int | None = 1
    partition: str = ""


class RunFound(NamedTuple):
    """One run; ``timeline`` is None where there are no samples of it, ``evidence`` also while it runs.

    ``fitted`` is None of a run that had no whole GPU, or of which nobody knows what it had.
    """

    usage: JobUsage
    timeline: JobTimeline | None
    evidence: Evidence | None
    fitted: Fitted | None = None


class Remedy(NamedTuple):
    """A thing to do (a key of DO), in words, the gres to ask for, and the GPU-hours that it leaves to others at most.

    The hours of a run's remedies add up: after a tail has begun, a piece or fewer GPUs leave nothing more.
    """

    code: str
    what: str
    gres: str
    gpu_hours: float


class Judgement(NamedTuple):
    """The judgement of a run.

    ``why`` is the code of why nothing is said of a piece, empty where something is; ``unit`` is then the piece, empty
    where none holds it. ``used_gpus`` of ``asked_gpus`` were used, None where that is not known. ``idle_s`` is for how
    long it went on after the last activity. ``remedies`` are what to do, the first the most.
    """

    found: RunFound
    why: str
    unit: str
    asked_gpus: int
    used_gpus: int | None
    idle_s: float
    remedies: tuple[Remedy, ...]


def judge(run: RunFound) -> Judgement:
    """Return what is said of one run."""
    usage, fitted = run.usage, run.fitted
    allocated = usage.allocated_gpu_hours or 0.0
    enough = (usage.coverage_pct or 0.0) >= MIN_COVERAGE_PCT and allocated > 0
    unused, idle_s = enough and never_used(usage), (usage.idle_tail_s or 0.0) if enough else 0.0
    asked_gpus = fitted.asked_gpus if fitted else 1
    used = None if fitted is None or fitted.unused_gpus is None else asked_gpus - fitted.unused_gpus
    remedies = []
    if unused:
        remedies = [Remedy(NO_USE, DO[NO_USE], NO_GPU, allocated)]
    else:
        tail = idle_s / (usage.end_s - usage.start_s) if idle_s >= 60 * LEAST_TAIL_MIN else 0.0
        if fitted and used and fitted.unused_gpus:
            words = f"ask for {counted(used, 'GPU')}, as only {used} of {asked_gpus} did work"
            gres = fewer(usage.gres, used) if fitted.nodes == 1 else ""
            remedies.append(Remedy(FEWER, words, gres, fitted.spare_gpu_hours * (1 - tail)))
        if fitted and fitted.unit and fitted.freed_gpu_hours > 0:
            words = f"{DO[PIECE]}: {fitted.unit} holds it"
            remedies.append(Remedy(PIECE, words, fitted.unit, fitted.freed_gpu_hours * (1 - tail)))
        if tail:
            remedies.append(Remedy(TAIL, DO[TAIL], "", allocated * tail))
    return Judgement(
        run,
        fitted.why if fitted else "",
        "" if unused or fitted is None else fitted.unit,
        asked_gpus,
        used,
        idle_s,
        tuple(sorted(remedies, key=lambda remedy: -remedy.gpu_hours)),
    )


def never_used(run: JobUsage) -> bool:
    """Return whether hardly a kernel ran while it was measured, outside suspensions, by each metric that is known.

    A GPU whose counters another program holds reads 0 SMs, and GPU_UTIL alone tells; a slice has none, so that it is
    not known of one, unless no process of the job was there.
    """
    uses = ((run.util_used_gpu_hours, run.util_measured_gpu_hours), (run.sm_used_gpu_hours, run.sm_measured_gpu_hours))
    hardly = [100 * used <= IDLE_PCT * measured for used, measured in uses if used is not None and measured]
    sure = run.util_used_gpu_hours is not None or bool(run.held_idle_gpu_hours)
    return sure and bool(hardly) and all(hardly)


def fewer(gres: str, used: int) -> str:
    """Return what asks for so many GPUs of the kind that an allocation (in Slurm's words) was of.

    Empty where it was of several kinds.
    """
    kinds = parse_gres(gres)
    return str(kinds[0]._replace(quantity=used)) if len(kinds) == 1 else ""


def enough(piece: str, differ: bool) -> str:
    """Return of several runs which piece is enough, the largest of those that they fit, and whether these differ."""
    return f"{piece} is enough for each run{', some need less' if differ else ''}"


def option_for(gres: str, style: str) -> str:
    """Return the option of one of STYLES that asks for whole GPUs, or for none."""
    return (
        f"--{style}={gres}" if style == "gres" else f"--{style}={'0' if gres == NO_GPU else gres.removeprefix('gpu:')}"
    )

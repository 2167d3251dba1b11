# SPDX-License-Identifier: Apache-2.0
"""One's own last days: runs, what they had and used, what they would have fitted, and what to do about it."""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from math import fsum
from typing import Any, NamedTuple

from slurm_colloc.core.chart_model import Fit
from slurm_colloc.core.units import at_least, counted, in_words, printable, significant
from slurm_colloc.core.usage_model import JobUsage
from slurm_colloc.facts.judgement import COMPARED, FEWER, LEAST_GPU_HOURS, NO_USE, TAIL, Judgement
from slurm_colloc.report.layout import NO_TERMINAL, TEXT_INDENT, Terminal, folded, table_lines, titled
from slurm_colloc.report.text import json_text, stamp
from slurm_colloc.report.usage import METRICS, Use, percent, use_by, use_of

SCHEMA = 2
IDLEST = 5
_ADVICE = 3
# GPU-hours that runs of each remedy held for nothing.
_HELD = {
    NO_USE: "{runs} held {hours} GPU-h and hardly a kernel ran",
    FEWER: "{runs} held {hours} GPU-h of GPUs on which hardly a kernel ran; job {worst} used {used} of {asked}",
    TAIL: "{runs} held GPUs for {hours} GPU-h after the last activity on them, up to {longest}",
}


class Hint(NamedTuple):
    """Advice, the evidence for it, a command, and the GPU-hours that it is about."""

    what: str
    evidence: str
    command: str
    gpu_hours: float


class MyReport(NamedTuple):
    """A user's runs in [since, until), with the hints that they support.

    ``source`` says where it is from, ``runs_without_gpu`` are the others, ``fit`` is None where nothing is known of
    what any of the runs would have fitted.
    """

    user: str
    cluster: str
    since: datetime
    until: datetime
    source: str
    runs: Sequence[JobUsage]
    runs_without_gpu: int
    fit: Fit | None
    hints: Sequence[Hint]


class Sums(NamedTuple):
    """Sums over runs: GPU-hours in whole-GPU equivalents; see GroupUsage for the terms."""

    runs: int
    running: int
    without_size: int
    allocated_gpu_hours: float | None
    sm_measured_gpu_hours: float
    sm_used_gpu_hours: float | None
    util_measured_gpu_hours: float
    util_used_gpu_hours: float | None
    coverage_pct: float | None
    methods: tuple[str, ...]


def sums_of(runs: Sequence[JobUsage]) -> Sums:
    """Return runs added up; those whose share's size is not known are counted and not in the hours.

    The allocated hours are None where no size is known.
    """
    sized = [run for run in runs if run.allocated_gpu_hours is not None]
    covered = [(run.allocated_gpu_hours or 0.0, run.coverage_pct) for run in sized if run.coverage_pct is not None]
    hours: dict[str, Any] = {}
    for metric in METRICS:
        uses = [use for run in sized if (use := use_by(run, metric))]
        hours[f"{metric}_measured_gpu_hours"] = fsum(use.measured_gpu_hours for use in uses)
        hours[f"{metric}_used_gpu_hours"] = fsum(use.used_gpu_hours for use in uses) if uses else None
    return Sums(
        runs=len(runs),
        running=sum(run.state == "RUNNING" for run in runs),
        without_size=len(runs) - len(sized),
        allocated_gpu_hours=fsum(run.allocated_gpu_hours or 0.0 for run in sized) if sized or not runs else None,
        **hours,
        coverage_pct=percent(fsum(held * pct / 100 for held, pct in covered), fsum(held for held, _ in covered)),
        methods=tuple(sorted({method for run in runs for method in run.methods})),
    )


def idlest(runs: Sequence[JobUsage]) -> list[tuple[JobUsage, float]]:
    """Return the runs that left most idle, by SM activity, else by GPU_UTIL, the first the most."""
    idle = [(run, use.idle_gpu_hours) for run in runs if (use := use_of(run)) and use.idle_gpu_hours > 0]
    return sorted(idle, key=lambda run_idle: (-run_idle[1], run_idle[0].job_id))[:IDLEST]


def hints_of(judgements: Sequence[Judgement]) -> Iterator[Hint]:
    """Yield what is to be said of GPUs that nobody used, of all runs of which it is said together."""
    for code, held in _HELD.items():
        group = [
            (judgement, remedy) for judgement in judgements for remedy in judgement.remedies if remedy.code == code
        ]
        if not group:
            continue
        hours = fsum(remedy.gpu_hours for _, remedy in group)
        most, remedy = max(group, key=lambda pair: pair[1].gpu_hours)
        longest = in_words(max(judgement.idle_s for judgement, _ in group))
        worst = most.found.usage.job_id
        words = held.format(runs=_with_ids([judgement.found.usage for judgement, _ in group]), hours=significant(hours),
                           longest=longest, worst=worst, used=most.used_gpus, asked=most.asked_gpus)  # fmt: skip
        yield Hint(remedy.what, words, f"colloc job {worst}", hours)


def _with_ids(runs: Sequence[JobUsage]) -> str:
    ids = list(dict.fromkeys(run.job_id for run in runs))
    return f"{counted(len(runs), 'run')} (job {', '.join(ids[:5])}{', ...' if ids[5:] else ''})"


def best(hints: Sequence[Hint]) -> list[Hint]:
    """Return the hints worth a line, those about most GPU-hours first."""
    worth = [hint for hint in hints if hint.gpu_hours >= LEAST_GPU_HOURS]
    return sorted(worth, key=lambda hint: -hint.gpu_hours)[:_ADVICE]


def as_text(report: MyReport, terminal: Terminal = NO_TERMINAL) -> str:
    """Return the report for a terminal, or for what is none: lines are as long as they are."""
    where = f" on {printable(report.cluster)}" if report.cluster else ""
    lines = [f"{printable(report.user)}{where}, {stamp(report.since)} to {stamp(report.until)}{_verdict(report)}"]
    lines += _body(report) if report.runs else _nothing(report)
    return "".join(f"{line}\n" for text in lines for line in folded(text, terminal.columns, _indent(text)))


def _verdict(report: MyReport) -> str:
    """Return the one thing to know, where anything was measured."""
    use = use_of(sums_of(report.runs))
    if use is None:
        return ""
    freed_words = ""
    if report.fit and (freed := report.fit.could_free_gpu_hours):
        ways = (("smaller pieces of GPUs", report.fit.freed_gpu_hours), ("fewer GPUs", report.fit.spare_gpu_hours))
        freed_words = f"; with {' or '.join(way for way, hours in ways if hours)} "
        freed_words += f"you could have freed up to {significant(freed)} GPU-hours"
    return f": your jobs used {use} of their GPUs ({use.metric}){freed_words}"


def _indent(line: str) -> int:
    """Return where the text of a line begins, and so the later pieces of it: that of a hint, or behind a title."""
    return 5 if line.startswith("     ") else TEXT_INDENT


def _nothing(report: MyReport) -> list[str]:
    without = f" ({counted(report.runs_without_gpu, 'run')} without one)" if report.runs_without_gpu else ""
    return [
        f"no run of yours had a GPU in this time{without}: nothing was wasted.",
        "look further back by --since; submit by 'csub' in place of sbatch, and what a job needs is known from then on",
        f"source: {printable(report.source)}",
    ]


def _body(report: MyReport) -> Iterator[str]:
    sums = sums_of(report.runs)
    running = f", {sums.running} of them running" if sums.running else ""
    yield titled("runs", f"{sums.runs} with a GPU{running}; {report.runs_without_gpu} without a GPU, not counted below")
    left_out = f"; without {counted(sums.without_size, 'run')} on shares of unknown size" if sums.without_size else ""
    hours = sums.allocated_gpu_hours
    held = f"{significant(hours or 0.0, 4)} GPU-h in {counted(sums.runs - sums.without_size, 'run')}, in whole GPUs"
    yield titled("allocated", f"{'not known' if hours is None else held}{left_out}")
    for title, metric in (("SM", "sm"), ("GPU_UTIL", "util")):
        runs = sum(use_by(run, metric) is not None for run in report.runs)
        yield titled(title, _share(use_by(sums, metric), runs))
    if report.fit:
        yield titled("would fit", _fit(report.fit))
    covered = "not recorded" if sums.coverage_pct is None else f"{at_least(sums.coverage_pct)} % of the allocated GPU-h"
    yield titled("sampled", f"{covered} ({printable(', '.join(sums.methods)) or 'no samples'})")
    yield titled("source", printable(report.source))
    if not sums.methods:
        yield "  no run was sampled: 'colloc agent' on the nodes does that, or the sampler that csub puts into a job"
    for number, hint in enumerate(best(report.hints), 1):
        yield ""
        yield f"  {number}. {printable(hint.what)}"
        yield f"     {printable(hint.evidence)}"
        yield f"     $ {printable(hint.command)}"
    most = idlest(report.runs)
    if most:
        yield ""
        yield "your most idle runs"
        rows = [["JOB", "NAME", "GPU", "IDLE GPU-h", "ALLOC GPU-h"]]
        for run, idle in most:
            names = (run.job_id, run.job_name, run.gres)
            rows.append([*map(printable, names), significant(idle, 4), significant(run.allocated_gpu_hours or 0.0, 4)])
        yield from (f"  {line}" for line in table_lines(rows) if not line.startswith("--"))


def _share(use: Use | None, runs: int) -> str:
    if use is None:
        return "not measured"
    used, measured, idle = (significant(hours, 4) for hours in (*use[:2], use.idle_gpu_hours))
    return f"{use} of the {measured} GPU-h sampled in {counted(runs, 'run')}: {used} used, {idle} idle"


def _fit(fit: Fit) -> str:
    fits, of_hours, freed, spare = (
        significant(hours, 4)
        for hours in (fit.fits_gpu_hours, fit.known_gpu_hours, fit.freed_gpu_hours, fit.spare_gpu_hours)
    )
    compared = counted(fit.judged_runs, "compared run")
    words = f"a piece of a GPU was enough for {fit.fitting_runs} of {compared} ({fits} of {of_hours} GPU-h)"
    if fit.spare_runs:
        fewer = f"fewer GPUs were enough for {counted(fit.spare_runs, 'run')}; that frees up to {spare} GPU-h"
        words = f"{fewer}; {words}" if fit.judged_runs else fewer
    if fit.fitting_runs:
        each = " for each of them" if fit.fitting_runs > 1 else ""
        words += f"{f', {printable(fit.unit)}{each}' if fit.unit else ''}; that frees up to {freed} GPU-h"
    return words + (f"; not compared: {counted(fit.not_judged_runs, 'run')}. {COMPARED}" if fit.not_judged_runs else "")


def as_json(report: MyReport) -> str:
    """Return the same as JSON, null for what is not known."""
    record = report._asdict() | {
        "total": sums_of(report.runs),
        "advice": best(report.hints),
        "idlest": [run._asdict() | {"idle_gpu_hours": idle} for run, idle in idlest(report.runs)],
    }
    del record["runs"], record["hints"]
    return json_text(SCHEMA, record)


FORMATS: dict[str, Callable[..., str]] = {"text": as_text, "json": as_json}

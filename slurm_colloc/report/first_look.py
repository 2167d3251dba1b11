# SPDX-License-Identifier: Apache-2.0
"""A reader's first look: the month in a few sentences, and what to do, most GPU-hours first. Pure."""

from collections.abc import Iterable, Iterator

from slurm_colloc.core.chart_model import Todo
from slurm_colloc.core.units import counted, printable, significant
from slurm_colloc.core.usage_model import MIN_COVERAGE_PCT
from slurm_colloc.report.charts import short, why_not
from slurm_colloc.report.usage import METRICS, UsageReport, of_installed, use_of

MOST = 5
ADMINISTRATORS = "administrators"
# A piece of time is a day from so many hours on (of 23 when clocks are set), and a week.
_DAY_H, _WEEK_H = 23, 100
_REPLACES = " (a line '#SBATCH' goes in place of what asks for GPUs)"
_MEASURE = "measure what is used: agents need "
_ORDER = "then install what its ORDER.md names for agents"
_INIT = """colloc site init --tier report --set observe.agent=true --set paths.state='"/shared/slurm_colloc"'"""
_RENDER = "colloc site render -o colloc-files"


def sentences(report: UsageReport) -> Iterator[str]:
    """Yield what was allocated, used, never used, what would have fitted, and what sharing harmed; each where known."""
    total, allocated = report.total, report.total.allocated_gpu_hours
    if not total.jobs or allocated is None:
        yield f"GPU-hours are not known: {'no share has a known size' if total.jobs else why_not(report)}."
        return
    pct = of_installed(report).allocated_pct
    share = "" if pct is None else f" of {short(report.installed_gpu_hours)} installed"
    part = "" if pct is None else f" ({pct:.0f} %{_spread(report)})"
    yield f"{short(allocated)}{share} GPU-hours were allocated{part}."
    use = use_of(total)
    if use is None:
        yield f"How much of them was used is not measured ({why_not(report)})."
    else:
        did = "The GPUs' processors (SMs) worked" if use.metric == METRICS["sm"] else "A kernel ran"
        share = f"{short(use.used_gpu_hours)} of {short(use.measured_gpu_hours)} measured GPU-hours ({use})"
        yield f"{did} for {share}; {short(use.idle_gpu_hours)} were idle."
    fit = report.fits[-1] if report.fits else None
    if total.held_idle_gpu_hours:
        yield f"{short(total.held_idle_gpu_hours)} GPU-hours were held by jobs without a program on the GPU."
    if fit and fit.fitting_runs:
        yield (
            f"Sharing could have freed at most {short(fit.freed_gpu_hours)} GPU-hours, had it slowed no job. A part of "
            f"a GPU was enough for {fit.fitting_runs:,} of {fit.judged_runs:,} runs compared (of {total.jobs:,})."
        )
    if fit and fit.spare_runs:
        runs = counted(fit.spare_runs, "run")
        yield f"Fewer GPUs could have freed {short(fit.spare_gpu_hours)} GPU-hours: {runs} left some unused."
    if total.held_idle_gpu_hours or (fit and (fit.fitting_runs or fit.spare_runs)):
        yield "These hours overlap: do not add them."
    if (harm := report.harm) and harm.part is not None and harm.low is not None and harm.high is not None:
        part, low, high = (significant(100 * value, 2) for value in (harm.part, harm.low, harm.high))
        share = f"{part} %; the true part is {low} to {high} % with 95 % certainty"
        yield f"Of {harm.known:,} runs on pieces of which it is known, {harm.runs:,} were harmed ({share})."


def _spread(report: UsageReport) -> str:
    """Return between which ends the part of the installed that was allocated lay by day, or by week."""
    pieces = report.charts.over_time if report.charts else ()
    for least_h, most_h, name in ((_DAY_H, _DAY_H + 3, "day"), (_WEEK_H, 1e9, "week")):
        percents = [
            100 * piece.allocated_gpu_hours / piece.installed_gpu_hours
            for piece in pieces
            if least_h <= (piece.until_s - piece.since_s) / 3600 < most_h and piece.installed_gpu_hours
        ]
        if len(percents) > 1:
            return f"; between {min(percents):.0f} and {max(percents):.0f} % a {name}"
    return ""


def with_to_do(report: UsageReport, users: int, of_users: Iterable[Todo], agents: bool | None) -> UsageReport:
    """Return a report with what to do, what leaves or tells of most GPU-hours first.

    Args:
        report: a report.
        users: how many of its users could do something.
        of_users: remedies of those of them who could leave most.
        agents: whether the site has agents on its nodes, None where there is no site file.
    """
    # A reader who may not see all runs administers nothing.
    others = () if report.visible else tuple(_administrators(report, agents))
    every = sorted((*of_users, *others), key=lambda todo: -todo.gpu_hours)
    return report._replace(to_do=tuple(every[:MOST]), to_do_found=users + len(others))


def _administrators(report: UsageReport, agents: bool | None) -> Iterator[Todo]:
    total = report.total
    blind = not total.methods or (total.coverage_pct is not None and total.coverage_pct < MIN_COVERAGE_PCT)
    if blind and total.allocated_gpu_hours:
        hours = total.allocated_gpu_hours * (1 - (total.coverage_pct or 0.0) / 100)
        task, command = {
            None: (f"{_MEASURE}a site file, and a folder that nodes share; '{_RENDER}', {_ORDER}", _INIT),
            False: (f"{_MEASURE}observe.agent and paths.state, which nodes share, in site.toml; {_ORDER}", _RENDER),
            True: ("find out why agents sample so little", "colloc site doctor"),
        }[agents]
        yield Todo(ADMINISTRATORS, task, hours, total.jobs, "", command)
    if report.over_limit_gpu_hours:
        task = "end in accounting what has ended, but goes on there long after its time limit"
        runs = report.runs_over_limit
        yield Todo(ADMINISTRATORS, task, report.over_limit_gpu_hours, runs, "", "sacctmgr show runawayjobs")
    for stray in report.strays[:1]:
        task = f"find out whose the processes outside any job on {stray.node} are"
        yield Todo(ADMINISTRATORS, task, stray.gpu_hours, 0, "", f"ssh {stray.node} nvidia-smi")


def to_do_title(report: UsageReport) -> str:
    """Return how many of the things to do are told."""
    told, found = len(report.to_do), report.to_do_found
    return f"To do{f', {told} of {found} things' if found > told else ''}, by their GPU-hours"


def as_lines(report: UsageReport) -> Iterator[str]:
    """Yield what to do for a terminal."""
    if report.to_do:
        replaces = _REPLACES if any(todo.line for todo in report.to_do) else ""
        yield f"{to_do_title(report)}{replaces}:"
    for place, todo in enumerate(report.to_do, 1):
        yield f"  {place}. {heading_of(todo)}"
        yield from (f"     {printable(line)}" for line in (todo.line, todo.command and f"$ {todo.command}") if line)


def heading_of(todo: Todo) -> str:
    """Return who could do what, and about how many GPU-hours."""
    runs = f" in {todo.runs:,} run{'' if todo.runs == 1 else 's'}" if todo.runs else ""
    return printable(f"{todo.who}, {short(todo.gpu_hours)} GPU-h{runs}: {todo.what}")

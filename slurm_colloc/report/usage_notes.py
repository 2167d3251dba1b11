# SPDX-License-Identifier: Apache-2.0
"""The lines above and below the table of a usage report: window, coverage, freshness."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import fsum

from slurm_colloc.core.chart_model import SeveralGpus
from slurm_colloc.core.sharing_model import Collocation, Prediction
from slurm_colloc.core.units import counted, printable, significant
from slurm_colloc.core.usage_model import GroupUsage, Lost
from slurm_colloc.estimate.ladder import UNKNOWN_RUNG
from slurm_colloc.report.columns import Column
from slurm_colloc.report.text import stamp, window_in_words
from slurm_colloc.report.usage import UsageReport, of_installed, only_given, saved_gpu_hours

_MOST_LISTED = 5


def heading(report: UsageReport) -> str:
    """Return the one line that says what the figures are about."""
    where = f"on {printable(report.cluster)}" if report.cluster else "(cluster not named)"
    visible = ", of what you may see" if report.visible else ""
    when = f"{window_in_words(report.since, report.until)}{' so far' if report.so_far else ''}"
    return f"GPU use {where}, {when}, by {report.by}{visible}"


def summary(report: UsageReport, meanings: Iterable[str]) -> list[str]:
    """Return the lines below the table: gaps and faults, coverage, what columns mean in a sentence each, freshness."""
    legend = dict.fromkeys(f"{meaning.partition('. ')[0].rstrip('.')}." for meaning in meanings if meaning)
    return [*_warnings(report), *_coverage(report), *legend, _freshness(report)]


def footnotes(report: UsageReport, meanings: Iterable[str]) -> list[str]:
    """Return meanings, method, denominators and counts, by which a reader trusts or doubts the columns."""
    total, before = report.total, report.runs_begun_before
    begun = f", begun before the window, and so in the one before, too: {before}" if before else ""
    lines = [
        *dict.fromkeys(filter(None, meanings)),
        f"runs in window: {report.runs}; without GPU: {report.runs_without_gpu}; "
        f"with GPU: {total.jobs}, of them measured: {total.jobs_measured}{begun}",
        *_of_cluster(report),
        *_several(report.several),
        *_shared(report.collocation),
        *map(_predicted, report.predictions),
        *_figures_beside(total),
        *_warnings(report),
    ]
    if total.methods or not report.of_text:
        lines.append(f"methods: {', '.join(total.methods) or 'none'}")
    lines += _rows_known(report)
    if not report.of_text:
        lines.append(_known_until(report))
    if report.rows_in is not None:
        lines.append(
            f"rows in {report.rows_in}: {report.rows_used} used, {report.job_steps} job steps, "
            f"{rejected_rows(report.rejected, report.lost)}"
        )
    return lines


def _warnings(report: UsageReport) -> Iterator[str]:
    """Yield what the figures are not about, though a reader may think so."""
    total = report.total
    yield from map(printable, filter(None, (report.visible, *report.names)))
    if report.runs and not total.jobs:
        yield "No run had a GPU. Does AccountingStorageTRES in slurm.conf name gres/gpu?"
    if report.recorded and not report.runs:
        begun, ended = map(stamp, report.recorded)
        source = "text" if report.of_text else "store"
        yield f"No run is in this window. The {source} has runs from {begun} to {ended}: give --since."
    if total.jobs and not total.jobs_measured:
        if total.methods:
            yield "The samples of these runs have neither GPU_UTIL nor SM activity."
        elif not only_given(report):
            yield "No run was sampled. Does 'colloc agent' run on the nodes, and may you read its samples?"
    if report.in_proportion:
        yield "The window cuts an hour of which no samples are left: its use is counted in proportion to time."
    yield from _left_out(report)


def _coverage(report: UsageReport) -> Iterator[str]:
    """Yield how much of what was allocated was sampled, and which rows the figures lack."""
    total = report.total
    if only_given(report):
        yield "sacct says what was allocated. What was used of it, 'colloc agent' measures on the nodes."
    elif total.jobs:
        part = "An unknown part" if total.coverage_pct is None else f"{total.coverage_pct:.0f} %"
        runs = f"{total.jobs_measured} of {counted(total.jobs, 'run')}"
        yield f"{part} of the allocated GPU-hours was sampled, in {runs}."
    if report.rejected and report.rows_in is not None:
        yield f"Of {counted(report.rows_in, 'row')} of sacct {rejected_rows(report.rejected, report.lost)}."


def _freshness(report: UsageReport) -> str:
    """Return until when this is known, and where more is said."""
    explain = "'colloc report --explain' explains each column."
    ends = (report.ingested, report.flushed)
    # Nothing can come late into a window that lies behind both.
    late = not report.of_text and not all(end and end >= report.until for end in ends)
    return f"{_known_until(report)}. {explain}" if late else explain


def _known_until(report: UsageReport) -> str:
    runs, samples = (stamp(end) if end else "(not known)" for end in (report.ingested, report.flushed))
    return f"Data so far: runs until {runs}, hours of samples until {samples}"


def _rows_known(report: UsageReport) -> Iterator[str]:
    if report.rows_repeated or report.rows_not_started or report.rows_outside:
        yield (
            f"rows {'used' if report.of_text else 'in the store'}: {counted(report.runs, 'run')} in the window, "
            f"{counted(report.rows_repeated, 'repeat')} of them, {report.rows_not_started} of jobs that had not "
            f"started, {report.rows_outside} outside the window"
        )


def rejected_rows(rejected: Mapping[str, int], lost: Lost) -> str:
    """Return how many rows are rejected, what they may have been, and why they are."""
    reasons = "; ".join(f"{printable(reason)}: {count}" for reason, count in sorted(rejected.items()))
    words = f"{sum(rejected.values())} rejected"
    if lost.gpu_hours:
        hours = significant(lost.gpu_hours + lost.used_gpu_hours)
        words += f", which may have been {significant(lost.gpu_hours)} of {hours} GPU-h"
    if lost.unknown_rows:
        words += f", of which nobody can tell in {counted(lost.unknown_rows, 'row')} how many GPU-h"
    return f"{words} ({reasons})" if reasons else words


def _figures_beside(total: GroupUsage) -> Iterator[str]:
    """Yield what else was measured than the columns have."""
    if total.sm_beyond_gpu_hours:
        yield f"SM activity beyond their share, not counted as used: {significant(total.sm_beyond_gpu_hours)} GPU-h"
    if total.held_unknown_hours:
        yield (
            "not in HELD, because nobody saw how many jobs shared the GPU: "
            f"{significant(total.held_unknown_hours)} h of shares"
        )


def _left_out(report: UsageReport) -> Iterator[str]:
    """Yield what the figures lack, or have in spite of nobody knowing its end or its job."""
    total = report.total
    if report.runaways:
        yield (
            "runs without a known end ('sacctmgr show runawayjobs'), counted as long as they were seen: "
            f"{report.runaways}"
        )
    if report.runs_without_length:
        yield (
            "runs without an end and without a run time (ElapsedRaw), which count no hours: "
            f"{report.runs_without_length}"
        )
    if report.runs_over_limit:
        yield (
            "runs without an end, for more than a day beyond their time limit, which count as long as their rows say "
            f"('sacctmgr show runawayjobs'): {report.runs_over_limit}, {significant(report.over_limit_gpu_hours)} GPU-h"
        )
    if report.unaccounted_hours > 0.01 * report.sampled_job_hours:
        yield (
            f"sampled time of jobs while accounting has no run of them: {significant(report.unaccounted_hours)} of "
            f"{significant(report.sampled_job_hours)} h; does 'colloc ingest' run, and are the nodes' clocks right?"
        )
    if total.jobs_without_size:
        types = f" ({_listed(report.types_without_size)})" if report.types_without_size else ""
        yield (
            "runs left out of GPU-hours because the size of their share is not known: "
            f"{total.jobs_without_size}{types}; "
            "their pool in site.toml needs mps_per_gpu, shards_per_gpu or its slices ('colloc site init' writes them)"
        )
    if report.types_taken_for_whole and total.jobs:
        yield (
            "GPU types that neither site.toml nor a MIG profile explains, counted as whole GPUs: "
            f"{_listed(report.types_taken_for_whole)}"
        )
    if report.types_sharing_memory and total.jobs:
        yield (
            "compute instances, counted by their own compute slices, with memory that others of the same GPU instance "
            f"use as well: {_listed(report.types_sharing_memory)}"
        )
    if report.strays:
        hours = fsum(stray.gpu_hours for stray in report.strays)
        nodes = _listed([stray.node for stray in report.strays])
        yield f"GPUs with processes outside any job, charged to nobody: {significant(hours)} GPU-h on {nodes}"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(printable, names[:_MOST_LISTED])) + (", ..." if names[_MOST_LISTED:] else "")


def _of_cluster(report: UsageReport) -> list[str]:
    shares = of_installed(report)
    if report.installed_gpu_hours is None or shares.allocated_pct is None:
        return []
    uses = [("SM activity", shares.sm_at_least_pct), ("with a kernel running (GPU_UTIL)", shares.util_at_least_pct)]
    used = "".join(f", {name} at least {value:.1f} %" for name, value in uses if value is not None)
    return [
        f"of the {significant(report.installed_gpu_hours, 4)} GPU-h installed "
        f"(by site.toml, nodes that were down included): allocated {shares.allocated_pct:.1f} %{used}"
    ]


def _shared(times: Sequence[Collocation]) -> list[str]:
    # A slice's hours are more than its part of a GPU; a sum of parts may differ in its last digits.
    if not any(time.jobs > 1 or time.unit_hours > time.gpu_hours + 1e-6 for time in times):
        return []
    # Time without a job is not told from what was not sampled at a run's end.
    hours = ", ".join(f"{significant(time.gpu_hours)} with {time.jobs}" for time in times if time.jobs)
    if saved := saved_gpu_hours(times):
        hours += f"; a whole GPU for each job would have taken {significant(saved)} GPU-h more"
    return [f"sampled GPU-h by the number of jobs on a GPU or slice: {hours}"]


def _several(gpus: SeveralGpus | None) -> list[str]:
    if gpus is None:
        return []
    words = f"runs of several GPUs: {gpus.runs}, {significant(gpus.gpu_hours)} GPU-h"
    if not gpus.known_runs:
        return [f"{words}; how many of them each used is not known"]
    balance = (
        ""
        if gpus.balance_median is None
        else f"; balance (mean activity over the busiest GPU's) of half of them {gpus.balance_median:.2f} or less"
    )
    return [
        f"{words}; seen on each of their GPUs: {gpus.known_runs}, which used {gpus.used_gpus} of {gpus.gpus}, all of "
        f"theirs {gpus.all_used_runs}{balance}"
    ]


_SEVERAL = (
    Column("GPUS EACH", "size", 0),
    Column("RUNS", "runs", 0),
    Column("ALLOC GPU-h", "gpu_hours", 2),
    Column("RUNS SEEN ON ALL", "known_runs", 0),
    Column("THEIR GPUS", lambda size: size.gpus if size.known_runs else None, 0),
    Column("USED", lambda size: size.used_gpus if size.known_runs else None, 0),
    Column("BALANCE", "balance_median", 2),
)


def several_rows(report: UsageReport) -> list[list[str]]:
    """Return runs of several GPUs as a table, its titles first; empty where there are none."""
    rows = [[column.cell(size, ",") for column in _SEVERAL] for size in report.several_by_size]
    return [[column.title for column in _SEVERAL], *rows] if rows else []


def _predicted(rung: Prediction) -> str:
    parts = [
        ("memory", rung.mem_known, rung.mem_within, rung.mem_median_ratio),
        ("SM activity", rung.sm_known, rung.sm_within, rung.sm_median_ratio),
    ]
    words = "; ".join(
        f"of {figure} high enough in {f'all {count}' if within == count > 1 else f'{within} of {count}'} runs tested, "
        f"half of which used {100 * ratio:.0f} % of it or less"
        for figure, count, within, ratio in parts
        if count and ratio is not None
    )
    runs = counted(rung.jobs, "run")
    if rung.rung == UNKNOWN_RUNG:
        return f"csub had no footprint: {runs}"
    return f"csub's forecasts by '{printable(rung.rung)}', {runs}: {words or 'none completed with a measurement'}"

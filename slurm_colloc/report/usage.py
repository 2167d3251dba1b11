# SPDX-License-Identifier: Apache-2.0
"""Real against allocated GPU use, as a table, JSON, CSV or a page. No I/O but what the caller does with the text."""

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial
from math import fsum
from typing import NamedTuple

from slurm_colloc.config import Prices
from slurm_colloc.estimate.bounds import LEVEL, lower_bound
from slurm_colloc.model import Collocation, GroupUsage, Prediction, StrayUse
from slurm_colloc.report.page import render_page
from slurm_colloc.report.text import inert, printable, stamp, table_lines

SCHEMA = 2


class UsageReport(NamedTuple):
    """All that a usage report says.

    ``runaways`` are runs whose end nobody knows. In ``unaccounted_hours`` of ``sampled_job_hours`` samples saw a job on
    a unit while accounting has no run of it.

    ``equivalents`` says by what a slice is part of a GPU. ``installed_gpu_hours`` is what the site's GPUs come to in
    the window so far, None where no site file says. ``rows_in`` = ``rows_used`` + ``job_steps`` + ``rejected``, which
    is by reason. ``recorded`` is from when to when there are runs at all, where the window has none. ``templates`` is
    the site's own folder of them.
    """

    cluster: str
    since: datetime
    until: datetime
    by: str
    equivalents: str
    groups: tuple[GroupUsage, ...]
    total: GroupUsage
    runs: int
    runs_without_gpu: int
    runaways: int
    unaccounted_hours: float
    sampled_job_hours: float
    installed_gpu_hours: float | None
    collocation: tuple[Collocation, ...]
    predictions: tuple[Prediction, ...]
    prices: Prices
    strays: tuple[StrayUse, ...]
    rows_in: int
    rows_used: int
    job_steps: int
    rejected: dict[str, int]
    recorded: tuple[datetime, datetime] | None
    so_far: bool
    of_text: bool
    templates: str


# Title, field, and digits after the point; None: as many as GPU-hours have in this report.
_COLUMNS: tuple[tuple[str, str, int | None], ...] = (
    ("RUNS", "jobs", 0),
    ("ALLOC GPU-h", "allocated_gpu_hours", None),
    ("HELD GPU-h", "held_gpu_hours", None),
    ("COV %", "coverage_pct", 0),
    ("UTIL GPU-h", "util_used_gpu_hours", None),
    ("UTIL %", "util_weighted_pct", 1),
    ("SM GPU-h", "sm_used_gpu_hours", None),
    ("SM %", "sm_weighted_pct", 1),
    ("EMPTY GPU-h", "held_idle_gpu_hours", None),
    ("kWh", "energy_kwh", None),
)


def money(group: GroupUsage, prices: Prices) -> dict[str, float | None]:
    """Return what a group's GPU-hours and its measured energy come to, None without a price or a measurement."""

    def times(amount: float | None, price: float | None) -> float | None:
        return None if amount is None or price is None else amount * price

    co2_g = times(group.energy_kwh, prices.co2_g_per_kwh)
    return {
        "gpu_cost": times(group.allocated_gpu_hours, prices.gpu_hour),
        "energy_cost": times(group.energy_kwh, prices.kwh),
        "co2_kg": None if co2_g is None else co2_g / 1000,
    }


def hours_digits(report: UsageReport) -> int:
    """Return the digits that all GPU-hours of this report are shown with: its columns must add up as printed."""
    return 2 if (report.total.allocated_gpu_hours or 0) >= 10 else 4


def _number(value: float | None, digits: int) -> str:
    # Below the last digit, 0.00 would say "nothing" of something.
    if value is None:
        return "-"
    return f"{value:.{digits}f}" if value == 0 or value >= 10**-digits else f"<{10**-digits:.{digits}f}"


def as_table(report: UsageReport) -> str:
    """Return the report for a terminal."""
    rows = [[report.by.upper(), *_titles(report)]]
    rows += [[printable(group.name), *_cells(report, group)] for group in (*report.groups, report.total)]
    return "\n".join([heading(report), "", *table_lines(rows), "", *footnotes(report)]) + "\n"


def _titles(report: UsageReport) -> list[str]:
    return [*(title for title, _, _ in _COLUMNS), *_priced(report.prices)]


def _cells(report: UsageReport, group: GroupUsage) -> list[str]:
    hours, cost = hours_digits(report), money(group, report.prices)
    cells = [_number(getattr(group, field), hours if digits is None else digits) for _, field, digits in _COLUMNS]
    return [*cells, *(_number(cost[field], 2) for field in _priced(report.prices).values())]


def _priced(prices: Prices) -> dict[str, str]:
    """Return the columns of money that this site has prices for: title -> figure."""
    currency = printable(prices.currency)
    known = {
        f"GPU {currency}": ("gpu_cost", prices.gpu_hour),
        f"kWh {currency}": ("energy_cost", prices.kwh),
        "CO2 kg": ("co2_kg", prices.co2_g_per_kwh),
    }
    return {title: field for title, (field, price) in known.items() if price is not None}


def heading(report: UsageReport) -> str:
    """Return the one line that says what the figures are about."""
    where = f"on {printable(report.cluster)}" if report.cluster else "(cluster not named)"
    until = f"{stamp(report.until)}{' so far' if report.so_far else ''}"
    return f"GPU use {where}, {stamp(report.since)} to {until}, by {report.by}"


def footnotes(report: UsageReport) -> list[str]:
    """Return method, denominators and counts: what a reader needs to trust or doubt the figures."""
    total = report.total
    lines = [
        f"ALLOC (allocated): whole-GPU equivalents, MIG by {report.equivalents}, times hours in the window.",
        "HELD: GPU time kept from others: suspended time counts, a share counts one nth of a GPU that n jobs share.",
        "COV (covered): the part of ALLOC that was sampled. UTIL % and SM %: used over covered GPU-hours.",
        "UTIL (GPU_UTIL): time with any kernel running, whole GPUs only. SM (SM active): SMs with work, all runs.",
        "EMPTY: sampled, and no process of the job on it. kWh: of what was sampled. Most idle first.",
        f"runs in window: {report.runs}; without GPU: {report.runs_without_gpu}; "
        f"with GPU: {total.jobs}, of them measured: {total.jobs_measured}",
        *_of_cluster(report),
        *_shared(report.collocation),
        *map(_predicted, report.predictions),
    ]
    if report.runs and not total.jobs:
        lines.append("NOT ONE run had a GPU: does AccountingStorageTRES in slurm.conf name gres/gpu?")
    if report.recorded and not report.runs:
        first, last = map(stamp, report.recorded)
        lines.append(f"the {'text' if report.of_text else 'store'} has runs from {first} to {last}; give --since")
    if report.of_text and not total.methods:
        lines.append("a text says what was allocated and no more; for use: colloc ingest, agents")
    elif total.jobs and not total.jobs_measured:
        lines.append(
            "NOT ONE of these runs was measured: does 'colloc agent' run on the nodes, and may you read its samples?"
        )
    lines += _figures_beside(total)
    lines += _left_out(report)
    if total.methods or not report.of_text:
        lines.append(f"methods: {', '.join(total.methods) or 'none'}")
    rejected = sum(report.rejected.values())
    reasons = "; ".join(f"{printable(why)}: {count}" for why, count in sorted(report.rejected.items()))
    lines.append(
        f"rows in {report.rows_in}: {report.rows_used} used, {report.job_steps} job steps, "
        f"{rejected} rejected{f' ({reasons})' if rejected else ''}"
    )
    return lines


def _figures_beside(total: GroupUsage) -> Iterator[str]:
    """Yield what else was measured than the columns have."""
    if total.util_plain_pct is not None:
        yield f"UTIL as plain mean over the whole-GPU runs measured: {total.util_plain_pct:.2f} %"
    if total.sm_plain_pct is not None:
        yield f"SM as plain mean over the runs measured: {total.sm_plain_pct:.2f} %"
    if total.held_unknown_hours:
        yield f"shares' time in which nobody saw how many jobs shared, not in HELD: {total.held_unknown_hours:.3g} h"


def _left_out(report: UsageReport) -> Iterator[str]:
    """Yield what the figures lack, or have in spite of nobody knowing its end or its job."""
    total = report.total
    if report.runaways:
        yield (
            "runs whose end nobody knows ('sacctmgr show runawayjobs'), counted as far as they were seen: "
            f"{report.runaways}"
        )
    if report.unaccounted_hours > 0.01 * report.sampled_job_hours:
        yield (
            f"sampled time of jobs while accounting has no run of them: {report.unaccounted_hours:.3g} of "
            f"{report.sampled_job_hours:.3g} h; does 'colloc ingest' run, and are the nodes' clocks right?"
        )
    if total.jobs_without_size:
        yield (
            f"runs left out of GPU-hours because the size of their share is not known: {total.jobs_without_size}; "
            "their pool in site.toml needs mps_per_gpu, shards_per_gpu or its slices ('colloc site init' writes them)"
        )
    if report.strays:
        hours = fsum(stray.gpu_hours for stray in report.strays)
        nodes = ", ".join(printable(stray.node) for stray in report.strays[:5]) + (", ..." if report.strays[5:] else "")
        yield f"GPUs with processes outside any job, charged to nobody: {hours:.3g} GPU-h on {nodes}"


def of_installed(report: UsageReport) -> dict[str, float | None]:
    """Return what was allocated and used in percent of the GPUs installed; what is used is at least that much."""
    total = report.total
    of = report.installed_gpu_hours
    hours = {
        "allocated_pct": total.allocated_gpu_hours,
        "util_at_least_pct": total.util_used_gpu_hours,
        "sm_at_least_pct": total.sm_used_gpu_hours,
    }
    return {name: 100 * value / of if of and value is not None else None for name, value in hours.items()}


def _of_cluster(report: UsageReport) -> list[str]:
    shares = of_installed(report)
    if report.installed_gpu_hours is None or shares["allocated_pct"] is None:
        return []
    known = [("GPU_UTIL", shares["util_at_least_pct"]), ("SM active", shares["sm_at_least_pct"])]
    used = "".join(f", really used by {name} at least {value:.1f} %" for name, value in known if value is not None)
    return [
        f"of the {report.installed_gpu_hours:.4g} GPU-h installed (by site.toml, nodes that were down included): "
        f"allocated {shares['allocated_pct']:.1f} %{used}"
    ]


def _shared(times: Sequence[Collocation]) -> list[str]:
    if not any(time.jobs > 1 or time.unit_hours > time.gpu_hours for time in times):
        return []
    hours = ", ".join(f"{time.gpu_hours:.3g} with {time.jobs}" for time in times)
    saved = fsum(time.saved_gpu_hours for time in times)
    # Below that it is what floating point leaves of nothing.
    if saved > 1e-6 * fsum(time.gpu_hours for time in times):
        hours += f"; a whole GPU for each job, for as long, would have taken {saved:.3g} GPU-h more"
    return [f"sampled GPU-h by the number of jobs on a GPU or slice: {hours}"]


def _predicted(rung: Prediction) -> str:
    parts = [
        ("memory", rung.mem_known, rung.mem_within, rung.mem_median_ratio, "q99"),
        ("SM", rung.sm_known, rung.sm_within, rung.sm_median_ratio, "q95"),
    ]
    known = "; ".join(
        f"{what} within its {quantile} in {within} of {count} measured, so in at least "
        f"{100 * lower_bound(within, count):.0f} % of all ({LEVEL:.0%} certain), median {100 * ratio:.0f} % of it"
        for what, count, within, ratio, quantile in parts
        if count and ratio is not None
    )
    return f"csub's footprints by {printable(rung.rung)}, {rung.jobs} runs: {known or 'none measured'}"


def as_json(report: UsageReport) -> str:
    """Return the report as JSON; percentages and hours unrounded, null for not known."""
    shown = {
        "schema": SCHEMA,
        **{name: value for name, value in report._asdict().items() if name not in ("templates", "of_text")},
        "since": report.since.isoformat(),
        "until": report.until.isoformat(),
        "recorded": report.recorded and [moment.isoformat() for moment in report.recorded],
        "groups": [group._asdict() | money(group, report.prices) for group in report.groups],
        "total": report.total._asdict() | money(report.total, report.prices),
        "prices": report.prices._asdict(),
        "predictions": [prediction._asdict() for prediction in report.predictions],
        "of_installed": of_installed(report),
        "collocation": [{**time._asdict(), "saved_gpu_hours": time.saved_gpu_hours} for time in report.collocation],
        "strays": [stray._asdict() for stray in report.strays],
    }
    return json.dumps(shown, indent=2) + "\n"


def as_csv(report: UsageReport) -> str:
    """Return one row for each group; names that a spreadsheet would run as a formula are quoted with an apostrophe."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    fields = [field for field in GroupUsage._fields if field != "name"]
    writer.writerow([report.by, *fields, *money(report.total, report.prices)])
    for group in report.groups:
        values = [getattr(group, field) for field in fields] + list(money(group, report.prices).values())
        writer.writerow(
            [inert(group.name), *(";".join(value) if isinstance(value, tuple) else value for value in values)]
        )
    return out.getvalue()


def as_html(report: UsageReport) -> str:
    """Return one self-contained page.

    Raises:
        ConfigError: a site's template that does not render.
    """
    largest = max((group.allocated_gpu_hours or 0.0 for group in report.groups), default=0.0)
    return render_page(
        "report.html.j2",
        report.templates,
        number=_number,
        report=report,
        heading=heading(report),
        footnotes=footnotes(report),
        titles=_titles(report),
        cells=partial(_cells, report),
        largest=largest or 1.0,
        digits=hours_digits(report),
        # A bar shows one metric only: SM activity where any run has it.
        metric="sm" if report.total.sm_used_gpu_hours is not None else "util",
    )


FORMATS: dict[str, Callable[[UsageReport], str]] = {
    "table": as_table,
    "json": as_json,
    "csv": as_csv,
    "html": as_html,
}

# SPDX-License-Identifier: Apache-2.0
"""Real against allocated GPU use, as a table, JSON, CSV or a page. No I/O but what the caller does with the text."""

import csv
import io
import json
from collections.abc import Callable
from datetime import datetime
from math import fsum
from typing import NamedTuple

import jinja2

from slurm_colloc.errors import ConfigError
from slurm_colloc.model import GroupUsage, StrayUse
from slurm_colloc.report.text import printable, stamp
from slurm_colloc.shipped import template_folders

SCHEMA = 1


class UsageReport(NamedTuple):
    """All that a usage report says.

    ``rejected`` are the rows that it does not have, by reason; ``templates`` is the site's own folder of them.
    """

    cluster: str
    since: datetime
    until: datetime
    by: str
    groups: tuple[GroupUsage, ...]
    total: GroupUsage
    runs: int
    runs_without_gpu: int
    strays: tuple[StrayUse, ...]
    rejected: dict[str, int]
    templates: str


# Title, field, and digits after the point; None: as many as GPU-hours have in this report.
_COLUMNS: tuple[tuple[str, str, int | None], ...] = (
    ("RUNS", "jobs", 0),
    ("ALLOC GPU-h", "allocated_gpu_hours", None),
    ("COV %", "coverage_pct", 0),
    ("UTIL GPU-h", "util_used_gpu_hours", None),
    ("UTIL %", "util_weighted_pct", 1),
    ("SM GPU-h", "sm_used_gpu_hours", None),
    ("SM %", "sm_weighted_pct", 1),
    ("IDLE GPU-h", "idle_gpu_hours", None),
)


def hours_digits(report: UsageReport) -> int:
    """Return the digits that all GPU-hours of this report are shown with: its columns must add up as printed."""
    return 2 if report.total.allocated_gpu_hours >= 10 else 4


def _number(value: float | None, digits: int) -> str:
    # Below the last digit, 0.00 would say "nothing" of something.
    if value is None:
        return "-"
    return f"{value:.{digits}f}" if value == 0 or value >= 10**-digits else f"<{10**-digits:.{digits}f}"


def as_table(report: UsageReport) -> str:
    """Return the report for a terminal."""
    hours = hours_digits(report)
    rows = [[report.by.upper(), *(title for title, _, _ in _COLUMNS)]]
    for group in (*report.groups, report.total):
        cells = [_number(getattr(group, field), hours if digits is None else digits) for _, field, digits in _COLUMNS]
        rows.append([printable(group.name), *cells])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = []
    for row in rows:
        first, *others = (
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append("  ".join([first, *others]).rstrip())
    rule = "-" * max(len(line) for line in lines)
    table = [lines[0], rule, *lines[1:-1], rule, lines[-1]]
    return "\n".join([heading(report), "", *table, "", *footnotes(report)]) + "\n"


def heading(report: UsageReport) -> str:
    """Return the one line that says what the figures are about."""
    return f"GPU use on {printable(report.cluster)}, {stamp(report.since)} to {stamp(report.until)}, by {report.by}"


def footnotes(report: UsageReport) -> list[str]:
    """Return method, denominators and counts: what a reader needs to trust or doubt the figures."""
    total = report.total
    lines = [
        "ALLOC (allocated): whole-GPU equivalents times hours in the window; MIG by compute slices, else by count.",
        "COV (covered): the part of ALLOC that was sampled. UTIL % and SM %: used over covered GPU-hours.",
        "UTIL (GPU_UTIL): time with any kernel running, whole GPUs only. SM (SM active): SMs with work, all runs.",
        "IDLE: covered and not used, by SM where measured, else by UTIL; largest first.",
        f"runs in window: {report.runs}; without GPU: {report.runs_without_gpu}; "
        f"with GPU: {total.jobs}, of them measured: {total.jobs_measured}",
    ]
    if total.jobs and not total.jobs_measured:
        lines.append(
            "NOT ONE of these runs was measured: does 'colloc agent' run on the nodes, and may you read its samples?"
        )
    if total.util_plain_pct is not None:
        lines.append(f"UTIL as plain mean over the whole-GPU runs measured: {total.util_plain_pct:.2f} %")
    if total.jobs_without_size:
        lines.append(
            f"runs left out of GPU-hours because the size of their share is not known: {total.jobs_without_size}"
        )
    if report.strays:
        hours = fsum(stray.gpu_hours for stray in report.strays)
        nodes = ", ".join(printable(stray.node) for stray in report.strays[:5]) + (", ..." if report.strays[5:] else "")
        lines.append(f"GPUs with processes outside any job, charged to nobody: {hours:.3g} GPU-h on {nodes}")
    lines.append(f"methods: {', '.join(total.methods) or 'none'}")
    rejected = sum(report.rejected.values())
    reasons = "; ".join(f"{printable(why)}: {count}" for why, count in sorted(report.rejected.items()))
    lines.append(f"rows rejected at ingest: {rejected}{f' ({reasons})' if rejected else ''}")
    return lines


def as_json(report: UsageReport) -> str:
    """Return the report as JSON; percentages and hours unrounded, null for not known."""
    shown = {
        "schema": SCHEMA,
        **{name: value for name, value in report._asdict().items() if name != "templates"},
        "since": report.since.isoformat(),
        "until": report.until.isoformat(),
        "groups": [group._asdict() for group in report.groups],
        "total": report.total._asdict(),
        "strays": [stray._asdict() for stray in report.strays],
    }
    return json.dumps(shown, indent=2) + "\n"


def as_csv(report: UsageReport) -> str:
    """Return one row for each group; names that a spreadsheet would run as a formula are quoted with an apostrophe."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    fields = [field for field in GroupUsage._fields if field != "name"]
    writer.writerow([report.by, *fields])
    for group in report.groups:
        values = [getattr(group, field) for field in fields]
        writer.writerow(
            [inert(group.name), *(";".join(value) if isinstance(value, tuple) else value for value in values)]
        )
    return out.getvalue()


def inert(text: str) -> str:
    """Return ``text`` so that a spreadsheet shows it rather than evaluates it."""
    return "'" + printable(text) if text[:1] in ("=", "+", "-", "@", "\t", "\r") else printable(text)


def as_html(report: UsageReport) -> str:
    """Return one self-contained page.

    Raises:
        ConfigError: a site's template that does not render.
    """
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(template_folders(report.templates)),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["number"] = _number
    environment.filters["printable"] = printable
    largest = max((group.allocated_gpu_hours for group in report.groups), default=0.0)
    try:
        return environment.get_template("report.html.j2").render(
            report=report,
            heading=heading(report),
            footnotes=footnotes(report),
            largest=largest or 1.0,
            digits=hours_digits(report),
        )
    except jinja2.TemplateError as error:
        raise ConfigError(f"template 'report.html.j2' does not render: {error}") from error


FORMATS: dict[str, Callable[[UsageReport], str]] = {
    "table": as_table,
    "json": as_json,
    "csv": as_csv,
    "html": as_html,
}

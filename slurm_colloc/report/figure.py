# SPDX-License-Identifier: Apache-2.0
"""Parts that all charts use: titles, rounding, and the reason for an empty chart."""

from collections.abc import Iterable
from datetime import UTC, datetime, tzinfo
from typing import NamedTuple
from zoneinfo import ZoneInfo

from slurm_colloc.core.units import printable
from slurm_colloc.report.usage import UsageReport

Rows = tuple[dict[str, float | str | None], ...]


class Figure(NamedTuple):
    """One chart.

    ``says`` is the chart in one sentence, for whoever does not see it; ``caption`` how to read it, with denominators
    and method; ``legend`` pairs of a style and what it stands for. ``titles`` and ``cells`` are its figures as a table.
    ``rows`` are drawn as ``drawing`` says; ``limits`` part the values that differ by darkness. ``missing`` is why there
    is nothing to draw.
    """

    name: str
    title: str
    drawing: str
    says: str = ""
    caption: str = ""
    legend: tuple[tuple[str, str], ...] = ()
    titles: tuple[str, ...] = ()
    cells: tuple[tuple[str, ...], ...] = ()
    rows: Rows = ()
    limits: tuple[float, ...] = ()
    missing: str = ""


def short(value: float | None) -> str:
    """Return a figure with three digits or all before the point, "not measured" for None."""
    if value is None:
        return "not measured"
    size = abs(value)
    digits = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3
    words = f"{value:,.{digits}f}" if size >= 0.001 or not size else "<0.001" if value > 0 else "just below 0"
    return words.rstrip("0").rstrip(".") if "." in words and "<" not in words else words


def rounded(value: float | None) -> float | None:
    """Return a value for drawing: four digits, so that a page of thousands of users stays small."""
    if value is None:
        return None
    whole = float(f"{value:.4g}")
    return int(whole) if whole.is_integer() else whole


def zone_of(report: UsageReport) -> tzinfo:
    """Return the zone of all times on the page."""
    try:
        return ZoneInfo(report.charts.zone) if report.charts else report.since.tzinfo or UTC
    except (ValueError, OSError, KeyError):  # a name of a system's own, as '+01' or 'localtime'
        return report.since.tzinfo or UTC


def wall_ms(at_s: float, zone: tzinfo) -> int:
    """Return what a clock of the zone shows, counted as if in UTC: a browser in another zone then shows the same."""
    return int(datetime.fromtimestamp(at_s, zone).replace(tzinfo=UTC).timestamp() * 1000)


def why_not(report: UsageReport, metric: str = "") -> str:
    """Return why use, or use by one metric, is not measured."""
    total = report.total
    if not total.jobs:
        return "no run in the window had a GPU"
    if report.of_text and not total.methods:
        return "a text of sacct says what was allocated and no more"
    if not total.jobs_measured:
        return "not one run was sampled: does 'colloc agent' run on the nodes, and may you read its samples?"
    if metric == "sm":
        return "what sampled these runs does not tell SM activity: DCGM does, and NVML on Hopper and newer"
    return "GPU_UTIL is of whole GPUs, and no run of one was sampled" if metric == "util" else "no sample covers it"


def missing(report: UsageReport) -> str:
    """Return why a chart has nothing to draw."""
    return why_not(report) if report.charts else "this report was made without it"


def limits_over_decades(values: Iterable[float]) -> tuple[float, ...]:
    """Return at most five round limits, 1-3-10-30 and so on, that tell apart values which range over decades."""
    known = list(values)
    rounds = [digit * 10.0**power for power in range(-6, 12) for digit in (1, 3)]
    return tuple(number for number in rounds if min(known) < number <= max(known))[-5:]


def darkness(limits: tuple[float, ...], unit: str) -> tuple[tuple[str, str], ...]:
    """Return the legend of darkness: the largest values are the darkest, however many limits there are."""
    if not limits:
        return (("step-5", unit),)
    words = [f"below {short(limits[0])} {unit}"]
    words += [f"from {short(limit)}" for limit in limits]
    return tuple((f"step-{5 - len(limits) + at}", said) for at, said in enumerate(words))


def methods(report: UsageReport) -> str:
    """Return by what methods what was used is known."""
    return ", ".join(map(printable, report.total.methods)) or "none, nothing was sampled"

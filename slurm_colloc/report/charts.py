# SPDX-License-Identifier: Apache-2.0
"""Charts of a page, in words and rows: each chart with its denominators, its method and a table of the same figures.

How it looks is in vega.py; nothing here needs what draws. Parts that all charts use, titles, rounding, and the reason
for an empty chart, stand first.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, tzinfo
from math import fsum
from operator import attrgetter
from typing import NamedTuple
from zoneinfo import ZoneInfo

from slurm_colloc.core.chart_model import TimeUsage, UtilAgainstSm, WeekHour
from slurm_colloc.core.units import printable
from slurm_colloc.report.usage import METRICS, UsageReport, metric_of

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
    if 0 < size < 0.001:
        return "<0.001" if value > 0 else "just below 0"
    digits = sum(size < bound for bound in (1, 10, 100))
    words = f"{value:,.{digits}f}"
    return words.rstrip("0").rstrip(".") if "." in words else words


def rounded(value: float | None) -> float | None:
    """Return a value for drawing: four digits, so that a page of thousands of users stays small."""
    if value is None:
        return None
    short_value = float(f"{value:.4g}")
    return int(short_value) if short_value.is_integer() else short_value


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
    return "GPU_UTIL is of whole GPUs, and no run of one was sampled" if metric == "util" else "it was not sampled"


def missing(report: UsageReport) -> str:
    """Return why a chart has nothing to draw."""
    return why_not(report) if report.charts else "this report was made without it"


def limits_over_decades(values: Iterable[float]) -> tuple[float, ...]:
    """Return at most five round limits, 1-3-10-30 and so on, that tell apart values which range over decades."""
    sizes = list(values)
    rounds = [digit * 10.0**power for power in range(-6, 12) for digit in (1, 3)]
    return tuple(number for number in rounds if min(sizes) < number <= max(sizes))[-5:]


def darkness(limits: tuple[float, ...], unit: str) -> tuple[tuple[str, str], ...]:
    """Return the legend of darkness: the largest values are the darkest, however many limits there are."""
    if not limits:
        return (("step-5", unit),)
    words = [f"below {short(limits[0])} {unit}"]
    words += [f"from {short(limit)}" for limit in limits]
    return tuple((f"step-{5 - len(limits) + number}", meaning) for number, meaning in enumerate(words))


def methods(report: UsageReport) -> str:
    """Return by what methods what was used is known."""
    return ", ".join(map(printable, report.total.methods)) or "none, nothing was sampled"


_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_PARTS = (("used", "used"), ("idle", "sampled and idle"), ("unseen", "not sampled"))
# More bars than that are noise, and on a phone less than two pixels wide.
_BARS = 122


def figures(report: UsageReport) -> Iterator[Figure]:
    """Yield the charts of a report, in the page's order."""
    yield _over_time(report)
    yield from _week_hours(report)
    yield _util_against_sm(report)


def _when(piece: TimeUsage, zone: tzinfo) -> str:
    begun, ended = (datetime.fromtimestamp(at_s, zone) for at_s in (piece.since_s, piece.until_s))
    days = {begun.timetz(), ended.timetz()} == {begun.timetz().replace(hour=0, minute=0, second=0, microsecond=0)}
    clock = " %H:%M:%S" if begun.second or ended.second else " %H:%M"
    form = "%Y-%m-%d" + ("" if days else clock)
    return f"{begun:{form}}" if days and (ended - begun).days == 1 else f"{begun:{form}} to {ended:{form}}"


def _over_time(report: UsageReport) -> Figure:
    recorded = report.charts.over_time if report.charts else ()
    pieces = coarser(recorded, _BARS, report.since.timestamp(), report.until.timestamp())
    figure = Figure("over-time", "Allocated and really used over time", "over_time")
    if not any(piece.allocated_gpu_hours or piece.installed_gpu_hours for piece in pieces):
        return figure._replace(missing=missing(report))
    zone, metric = zone_of(report), metric_of(report)
    total, word = report.total, METRICS[metric]
    measured, used = (getattr(total, f"{metric}_{name}_gpu_hours") for name in ("measured", "used"))
    installed = any(piece.installed_gpu_hours for piece in pieces)
    beside = f" of {short(report.installed_gpu_hours)} installed" if report.installed_gpu_hours else ""
    sums = f"{short(total.allocated_gpu_hours)} GPU-h{beside} were allocated; {short(measured)} of them were measured, "
    sums += f"{short(used)} used by {word}" if used is not None else f"use is not measured: {why_not(report)}"
    return figure._replace(
        says=f"Bars of GPUs on average over {len(pieces)} pieces of time. In all {sums}.",
        caption="Height: GPUs on average, GPU-hours (whole-GPU equivalents) per hour. Used: measured GPU-hours times "
        f"{word}; idle: measured less used; not sampled: allocated less measured."
        f"{' Dashed: installed, by site.toml, nodes that were down included.' if installed else ''} In all {sums}. "
        f"Method: {methods(report)}. Times in {zone}.",
        legend=(*_PARTS, *((("line", "installed"),) if installed else ())),
        titles=(
            *("time", "GPU-h installed", "allocated"),
            *(f"GPU-h {part} by {word}" for word in METRICS.values() for part in ("measured", "used")),
        ),
        cells=tuple(
            (
                _when(piece, zone),
                "not known" if piece.installed_gpu_hours is None else short(piece.installed_gpu_hours),
                short(piece.allocated_gpu_hours),
                *_used(piece, "GPU-h"),
            )
            for piece in pieces
        ),
        rows=tuple(_bar(piece, metric, zone) for piece in pieces),
    )  # fmt: skip


def _used(piece: TimeUsage | WeekHour, unit: str) -> tuple[str, ...]:
    ending = {"GPU-h": "gpu_hours", "GPUs": "gpus"}[unit]
    return tuple(
        short(getattr(piece, f"{metric}_{part}_{ending}")) for metric in METRICS for part in ("measured", "used")
    )


def _measured_lines(piece: TimeUsage | WeekHour, unit: str) -> Iterator[str]:
    sm_measured, sm, util_measured, util = _used(piece, unit)
    for word, measured, used in ((METRICS["sm"], sm_measured, sm), (METRICS["util"], util_measured, util)):
        words = f"used {used} of {measured} {unit} measured"
        yield f"{word}: {used if used == 'not measured' else words}"


def _bar(piece: TimeUsage, metric: str, zone: tzinfo) -> dict[str, float | str | None]:
    hours = (piece.until_s - piece.since_s) / 3600
    held = piece.allocated_gpu_hours
    # A share may use more than its count: the bar ends where it does, and the words say how much it was.
    measured = min(getattr(piece, f"{metric}_measured_gpu_hours") or 0.0, held)
    used = min(getattr(piece, f"{metric}_used_gpu_hours") or 0.0, measured)
    installed = f" of {short(piece.installed_gpu_hours)} installed" if piece.installed_gpu_hours is not None else ""
    lines = (_when(piece, zone), f"allocated: {short(held)} GPU-h{installed}", *_measured_lines(piece, "GPU-h"))
    return {
        "a": wall_ms(piece.since_s, zone),
        "b": wall_ms(piece.until_s, zone),
        "used": rounded(used / hours),
        "seen": rounded(measured / hours),
        "held": rounded(held / hours),
        "installed": rounded(piece.installed_gpu_hours / hours) if piece.installed_gpu_hours else None,
        "tip": "\n".join(lines),
    }


def _week_hours(report: UsageReport) -> Iterator[Figure]:
    week = report.charts.week if report.charts else ()
    metric = metric_of(report)
    word = METRICS[metric]
    largest = max((cell.allocated_gpus for cell in week), default=0.0)
    zone = printable(report.charts.zone) if report.charts else ""
    limits = tuple(largest * step / 6 for step in range(1, 6)) if largest else ()
    for name, field, title, how in (
        ("week-allocated", "allocated_gpus", "Allocated by hour of the week", "GPUs allocated"),
        ("week-used", f"{metric}_used_gpus", f"Really used by hour of the week, by {word}", f"GPUs used by {word}"),
    ):
        figure = Figure(name, title, "week")
        measured = [cell for cell in week if getattr(cell, field) is not None]
        if not largest or not measured:
            reason = "all that is left of the samples is a row for each day" if largest else ""
            yield figure._replace(missing=reason if largest and report.total.jobs_measured else missing(report))
            continue
        words = {(cell.weekday, cell.hour): short(getattr(cell, field)) for cell in week}
        ends = [pick(measured, key=attrgetter(field)) for pick in (max, min)]
        most, least = (f"{short(getattr(cell, field))}, on {_hour(cell)}" for cell in ends)
        yield figure._replace(
            says=f"{how} on average: most, {most}; least, {least}.",
            caption=f"{how} on average over all such hours of the window, in whole-GPU equivalents; hours of {zone}. "
            + (f"Of what was measured: GPUs times {word}." if field != "allocated_gpus" else "From accounting.")
            + " Both charts have the same colours.",
            legend=(*darkness(limits, "GPUs"), *((("unseen", "not measured"),) if len(measured) < len(week) else ())),
            limits=limits,
            titles=("day", *(f"{hour:02}" for hour in range(24))),
            cells=tuple(
                (name_of_day, *(words.get((day, hour), "-") for hour in range(24)))
                for day, name_of_day in enumerate(_DAYS)
            ),
            rows=tuple(
                {"d": _DAYS[cell.weekday], "h": cell.hour, "v": rounded(getattr(cell, field)), "tip": _tip(cell)}
                for cell in week
            ),
        )  # fmt: skip


def _hour(cell: WeekHour) -> str:
    return f"{_DAYS[cell.weekday]} {cell.hour:02}:00"


def _tip(cell: WeekHour) -> str:
    lines = (f"{_hour(cell)}, {short(cell.hours)} such hours", f"allocated: {short(cell.allocated_gpus)} GPUs")
    return "\n".join((*lines, *_measured_lines(cell, "GPUs")))


def _util_against_sm(report: UsageReport) -> Figure:
    cells = report.charts.util_against_sm if report.charts else ()
    figure = Figure("util-sm", "GPU_UTIL against SM activity", "util_against_sm")
    if not cells:
        return figure._replace(missing="no run of a whole GPU has both metrics" if report.charts else missing(report))
    runs, hours = sum(cell.runs for cell in cells), fsum(cell.allocated_gpu_hours for cell in cells)
    busy = [cell for cell in cells if cell.util_from_pct >= 80 and cell.sm_from_pct + cell.cell_pct <= 40]
    unfilled = fsum(cell.allocated_gpu_hours for cell in busy)
    finding = f"{short(unfilled)} of {short(hours)} GPU-h have GPU_UTIL of 80 % and more and SM activity below 40 %"
    limits = limits_over_decades(cell.allocated_gpu_hours for cell in cells)
    return figure._replace(
        says=f"{runs} runs of whole GPUs by both metrics; {finding}.",
        caption="A GPU can look busy (GPU_UTIL: the time in which any kernel ran) and be nearly empty (SM activity: "
        f"how many of its SMs had work). Here {finding}. Colour: allocated GPU-hours of the {runs} runs of whole GPUs "
        f"that have both, {short(hours)} GPU-h; each metric is the mean over its own covered time.",
        legend=darkness(limits, "GPU-h"),
        limits=limits,
        titles=("GPU_UTIL %", "SM activity %", "runs", "GPU-h allocated"),
        cells=tuple((*_ranges(cell), str(cell.runs), short(cell.allocated_gpu_hours)) for cell in cells),
        rows=tuple(
            {"x": cell.util_from_pct, "x2": cell.util_from_pct + cell.cell_pct,
             "y": cell.sm_from_pct, "y2": cell.sm_from_pct + cell.cell_pct, "v": rounded(cell.allocated_gpu_hours),
             "tip": "GPU_UTIL {} %, SM activity {} %\n".format(*_ranges(cell))
             + f"{cell.runs} runs, {short(cell.allocated_gpu_hours)} of {short(hours)} GPU-h"}
            for cell in cells
        ),
    )  # fmt: skip


def _ranges(cell: UtilAgainstSm) -> tuple[str, str]:
    return tuple(f"{low:g} to {low + cell.cell_pct:g}" for low in (cell.util_from_pct, cell.sm_from_pct))  # type: ignore[return-value]


def coarser(pieces: Iterable[TimeUsage], most: int, since_s: float, until_s: float) -> list[TimeUsage]:
    """Return the pieces joined into at most ``most`` equal parts of the window; sums stay what they were."""
    pieces = list(pieces)
    if len(pieces) <= most:
        return pieces
    part_s = (until_s - since_s) / most
    parts: dict[int, list[TimeUsage]] = {}
    for piece in pieces:
        parts.setdefault(int((piece.since_s - since_s) / part_s), []).append(piece)
    return [
        TimeUsage(since_s + number * part_s, since_s + (number + 1) * part_s,
                  *map(_added, zip(*(piece[2:] for piece in part), strict=True)))  # type: ignore[arg-type]
        for number, part in parts.items()
    ]  # fmt: skip


def _added(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return fsum(numbers) if numbers else None

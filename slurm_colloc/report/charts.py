# SPDX-License-Identifier: Apache-2.0
"""What a page draws, in words and rows: each chart with its denominators, its method and a table of the same figures.

How it looks is in vega.py; nothing here needs what draws.
"""

from collections.abc import Iterator
from math import fsum

from slurm_colloc.charted import UtilAgainstSm
from slurm_colloc.report.charts_of_time import coverage, over_time, week_hours
from slurm_colloc.report.figure import (
    Figure,
    darkness,
    limits_over_decades,
    missing,
    of_total,
    rounded,
    short,
    why_not,
)
from slurm_colloc.report.usage import METRICS, UsageReport, metric_of, percent, saved_gpu_hours
from slurm_colloc.units import printable


def figures(report: UsageReport) -> Iterator[Figure]:
    """Yield the charts of a report, in the page's order."""
    yield over_time(report)
    yield from week_hours(report)
    yield _groups(report)
    yield _util_against_sm(report)
    yield _collocation(report)
    yield _predicted(report)
    yield coverage(report)


def _groups(report: UsageReport) -> Figure:
    metric = metric_of(report)
    word = METRICS[metric]
    figure = Figure("groups", f"Allocated against used, per {report.by}", "groups")
    rows: list[dict[str, float | str | None]] = []
    for group in report.groups:
        used, measured = (of_total(group, metric, part) for part in ("used", "measured"))
        share = percent(used, measured)
        if share is None or not group.allocated_gpu_hours:
            continue
        # More than 100 % can only be of shares that used more than their count; the edge stands for it.
        shown = min(rounded(share) or 0.0, 100.0)
        rows.append(
            {"x": rounded(group.allocated_gpu_hours), "y": shown, "m": rounded(measured), "n": printable(group.name)}
        )
    if not rows:
        return figure._replace(missing=why_not(report, metric))
    mean = percent(of_total(report.total, metric, "used"), of_total(report.total, metric, "measured"))
    rows[0]["mean"] = rounded(mean)
    left = len(report.groups) - len(rows)
    return figure._replace(
        says=f"{len(rows)} points, one for each {report.by}: allocated GPU-hours against percent used by {word}. "
        f"On average over GPU-hours {short(mean, ' %')}.",
        caption=f"Each point is one {report.by}. To the right: more GPU-hours allocated. Upwards: more of the measured "
        f"GPU-hours used by {word}. Dashed: all together, {short(mean, ' %')}. What could be given to others lies "
        f"at the lower right. {f'Not drawn, because not measured: {left} of {len(report.groups)}.' if left else ''}",
        legend=(("rule", "all together"),),
        rows=tuple(rows),
    )


def _util_against_sm(report: UsageReport) -> Figure:
    cells = report.charts.util_against_sm if report.charts else ()
    figure = Figure("util-sm", "GPU_UTIL against SM activity", "util_against_sm")
    if not cells:
        return figure._replace(missing="no run of a whole GPU has both metrics" if report.charts else missing(report))
    runs, hours = sum(cell.runs for cell in cells), fsum(cell.allocated_gpu_hours for cell in cells)
    busy = [cell for cell in cells if cell.util_from_pct >= 80 and cell.sm_from_pct + cell.cell_pct <= 40]
    unfilled = fsum(cell.allocated_gpu_hours for cell in busy)
    said = f"{short(unfilled)} of {short(hours)} GPU-h have GPU_UTIL of 80 % and more and SM activity below 40 %"
    limits = limits_over_decades(cell.allocated_gpu_hours for cell in cells)
    return figure._replace(
        says=f"{runs} runs of whole GPUs by both metrics; {said}.",
        caption="One does not tell the other: GPU_UTIL is the time in which any kernel ran, however small, and SM "
        "activity how many of the SMs had work, so whatever lies far below the diagonal keeps a GPU busy without "
        f"filling it. Colour: allocated GPU-hours of the {runs} runs of whole GPUs that have both, {short(hours)} "
        f"GPU-h; each metric is the mean over its own covered time. Here {said}.",
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


def _collocation(report: UsageReport) -> Figure:
    times = report.collocation
    figure = Figure("collocation", "Collocation: how many jobs shared a GPU or slice", "collocation")
    if not times:
        return figure._replace(missing=why_not(report))
    sampled = fsum(time.gpu_hours for time in times)
    shared = fsum(time.gpu_hours for time in times if time.jobs > 1)
    said = f"{short(shared)} of {short(sampled)} sampled GPU-h had more than one job"
    if saved := saved_gpu_hours(times):
        said += f"; a whole GPU for each job, for as long, would have taken {short(saved)} GPU-h more"
    return figure._replace(
        says=f"{said}.",
        caption="Sampled time of GPUs and slices by how many jobs Slurm had given them to, whether these ran anything "
        f"there or not; a slice counts as its part of a GPU, by slices. {said}.",
        titles=("jobs at a time", "GPUs and slices", "hours of them", "GPU-h", "GPU-h saved"),
        cells=tuple(
            (str(t.jobs), str(t.units), short(t.unit_hours), short(t.gpu_hours), short(max(t.saved_gpu_hours, 0.0)))
            for t in times
        ),
        rows=tuple(
            {"n": _jobs(time.jobs), "v": rounded(time.gpu_hours), "said": short(time.gpu_hours),
             "tip": f"{_jobs(time.jobs)} at a time\n{short(time.gpu_hours)} of {short(sampled)} sampled GPU-h, "
             f"on {time.units} GPUs or slices"}
            for time in times
        ),
    )  # fmt: skip


def _jobs(count: int) -> str:
    return "nobody" if not count else "1 job" if count == 1 else f"{count} jobs"


def _predicted(report: UsageReport) -> Figure:
    cells = report.charts.predicted_against_used if report.charts else ()
    figure = Figure("predicted", "Memory: predicted against used", "predicted")
    if not cells:
        none = "no completed run that csub placed by a footprint has a measured memory peak"
        return figure._replace(missing=none if report.charts else missing(report))
    runs = sum(cell.runs for cell in cells)
    above = sum(cell.runs for cell in cells if cell.ratio_from >= 1)
    last = max(cell.ratio_from for cell in cells)
    rungs = {cell.rung: sum(other.runs for other in cells if other.rung == cell.rung) for cell in cells}

    limits = limits_over_decades(float(cell.runs) for cell in cells)

    def reach(low: float, width: float) -> str:
        return f"above {100 * low:.0f} %" if low == last else f"{100 * low:.0f} to {100 * (low + width):.0f} %"

    return figure._replace(
        says=f"Of {runs} completed runs with a measured peak, {above} used more memory than the q99 predicted.",
        caption="Measured memory peak over the q99 that csub counted on, by what the prediction was from (rung). "
        f"Colour: completed runs, {runs} in all. Right of the line the prediction was too small: {above}. Far to the "
        "left memory was kept that nobody used. The last column has all that is above.",
        legend=darkness(limits, "runs"),
        limits=limits,
        titles=("rung", "peak over q99", "runs", "of the rung's"),
        cells=tuple(
            (printable(cell.rung), reach(cell.ratio_from, cell.cell_ratio), str(cell.runs), str(rungs[cell.rung]))
            for cell in cells
        ),
        rows=tuple(
            {"r": printable(cell.rung), "x": cell.ratio_from, "x2": cell.ratio_from + cell.cell_ratio, "v": cell.runs,
             "tip": f"{printable(cell.rung)}: peak {reach(cell.ratio_from, cell.cell_ratio)} of the q99\n"
             f"{cell.runs} of {rungs[cell.rung]} runs of this rung"}
            for cell in cells
        ),
    )  # fmt: skip

# SPDX-License-Identifier: Apache-2.0
"""What a page draws, in words and rows: each chart with its denominators, its method and a table of the same figures.

How it looks is in vega.py; nothing here needs what draws.
"""

from collections.abc import Iterator
from math import fsum

from slurm_colloc.chart_model import UtilAgainstSm
from slurm_colloc.report.charts_of_time import over_time, week_hours
from slurm_colloc.report.figure import (
    Figure,
    darkness,
    limits_over_decades,
    missing,
    rounded,
    short,
)
from slurm_colloc.report.usage import UsageReport


def figures(report: UsageReport) -> Iterator[Figure]:
    """Yield the charts of a report, in the page's order."""
    yield over_time(report)
    yield from week_hours(report)
    yield _util_against_sm(report)


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

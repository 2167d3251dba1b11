# SPDX-License-Identifier: Apache-2.0
"""The usage report as one page: values for the template, and the data that the page's script reads."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from slurm_colloc.core.chart_model import Fit, GroupDetail, TimeUsage
from slurm_colloc.core.units import printable
from slurm_colloc.core.usage_model import GroupUsage
from slurm_colloc.report.charts import Figure, coarser, figures, rounded, wall_ms, zone_of
from slurm_colloc.report.first_look import heading_of, sentences, to_do_title
from slurm_colloc.report.page import renderer
from slurm_colloc.report.text import short_name
from slurm_colloc.report.usage import METRICS, UsageReport, fits_by_group, metric_of, number, reach
from slurm_colloc.report.usage_notes import footnotes, heading, several_rows
from slurm_colloc.report.usage_text import for_people, meanings, rows_of, without_empty

# Vega is 0.9 MB of the 3 MB that a page may have, the table of 2,000 users 0.5; all details together have this room:
_PIECES, _LEAST_PIECES = 24_000, 4
_IDLEST, _LEAST_IDLEST = 6_000, 1

# Ends by the wall's clock (ms), and the hours between them, which are not always their difference.
_Spans = dict[tuple[int, int, float], int]


def usage_page(report: UsageReport) -> str:
    """Return one self-contained page.

    The page has its charts' figures as tables where altair cannot be imported, and says what to install.

    Raises:
        ConfigError: a site's template that does not render.
    """
    charts_drawn = list(figures(report))
    drawn = all(find_spec(name) for name in ("altair", "vl_convert"))
    library, charts = _drawings(charts_drawn) if drawn else ("", {})
    details = {detail.name: detail for detail in (report.charts.details if report.charts else ())}
    help_of = meanings(report)
    (_, *titles), *rows = without_empty(for_people(rows_of(report, ",")))
    largest = max((group.allocated_gpu_hours or 0.0 for group in report.groups), default=0.0) or 1.0
    return renderer(report.templates, number=number)(
        "report.html.j2",
        report=report,
        heading=heading(report),
        sentences=list(sentences(report)),
        to_do=[(heading_of(todo), todo) for todo in report.to_do],
        to_do_title=to_do_title(report),
        several=several_rows(report),
        footnotes=footnotes(report._replace(several=None), [help_of[title] for title in titles]),
        titles=titles,
        help=help_of,
        table=list(zip((*report.groups, report.total), rows, strict=True)),
        metric_name=METRICS[metric_of(report)],
        bars=lambda group: [100 * hours / largest for hours in reach(group, metric_of(report))],
        figures=charts_drawn,
        library=library,
        detailed=details.keys(),
        data={"charts": charts, "metric": METRICS[metric_of(report)], "by": report.by} | _rows(report, details),
    )


def _drawings(drawn: Sequence[Figure]) -> tuple[str, dict[str, Any]]:
    # Half a second, and only for a page.
    from slurm_colloc.report import vega

    over_time = next(figure for figure in drawn if figure.drawing == "over_time")
    charts = {
        figure.name: {"spec": vega.specification(figure), "rows": figure.rows} for figure in drawn if not figure.missing
    }
    # A user's chart has no line of installed GPUs.
    bare = over_time._replace(rows=tuple(row | {"installed": None} for row in over_time.rows))
    detail = vega.specification(bare) | {"height": 150}
    return vega.library(), {"config": vega.CONFIG, "rows": vega.ROWS, "detail": detail, "figures": charts}


def _rows(report: UsageReport, details: dict[str, GroupDetail]) -> dict[str, Any]:
    """Return what the script says of each row beside what the table has: denominators, methods and details."""
    methods = sorted({method for group in report.groups for method in group.methods})
    fits = fits_by_group(report.fits)
    spans: _Spans = {}
    count = max(len(details), 1)
    most = max(_LEAST_PIECES, _PIECES // count), max(_LEAST_IDLEST, _IDLEST // count)
    rows = [
        [
            rounded(group.util_measured_gpu_hours),
            rounded(group.sm_measured_gpu_hours),
            [methods.index(method) for method in group.methods],
            _detail(report, details[group.name], most, spans) if group.name in details else None,
            _fit(fits[group.name]) if group.name in fits else None,
        ]
        for group in report.groups
    ]
    return {"methods": [printable(method) for method in methods], "spans": list(spans), "rows": rows}


def _detail(report: UsageReport, detail: GroupDetail, most: tuple[int, int], spans: _Spans) -> dict[str, Any]:
    """Return one row's details; ``spans`` gathers when the pieces of all of them begin and end."""
    zone, metric = zone_of(report), metric_of(report)

    def had(group: GroupUsage | TimeUsage) -> list[float | None]:
        fields = ("allocated_gpu_hours", f"{metric}_measured_gpu_hours", f"{metric}_used_gpu_hours")
        return [rounded(getattr(group, field)) for field in fields]

    def span(piece: TimeUsage) -> int:
        hours = (piece.until_s - piece.since_s) / 3600
        return spans.setdefault((wall_ms(piece.since_s, zone), wall_ms(piece.until_s, zone), hours), len(spans))

    pieces = coarser(detail.over_time, most[0], report.since.timestamp(), report.until.timestamp())
    return {
        "time": [[span(piece), *had(piece)] for piece in pieces],
        "kinds": [[printable(kind.name), kind.jobs, *had(kind)] for kind in detail.kinds],
        "idlest": [
            [*(short_name(word) for word in words), rounded(held), rounded(idle)]
            for *words, held, idle in detail.idlest[: most[1]]
        ],
    }


def _fit(fit: Fit) -> list[float | str | None]:
    return [
        *map(rounded, (fit.known_gpu_hours, fit.fits_gpu_hours, fit.freed_gpu_hours)),
        printable(fit.unit),
        rounded(fit.spare_gpu_hours),
    ]

# SPDX-License-Identifier: Apache-2.0
"""How charts look: Vega-Lite made by Altair, and the JavaScript that draws it. Only pages with charts import this.

Colours are variables of the page's style, so that one drawing is right in light, dark and print. No word of a user
passes through here: rows are handed to the page under the name ``rows``, and what a tooltip says is a field of theirs.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import altair as alt
import vl_convert

from slurm_colloc.report.charts import Figure

Spec = dict[str, Any]

ROWS = "rows"
_STEPS = [f"var(--step-{step})" for step in range(6)]
_TIP = alt.Tooltip("tip:N")
_HEIGHT = 240
# More bars than that have no edges, which would be most of what is seen.
_EDGED = 40
# Height that an axis with its title takes of a chart.
_AXES = 45
# Axis labels of Vega are 10 px else.
_LABEL_PX = 12

CONFIG: Spec = {
    "background": "transparent",
    "font": "system-ui, sans-serif",
    "view": {"stroke": None},
    # The page says what a chart shows; a thousand labelled shapes would say it a thousand times.
    "aria": False,
    "axis": {
        "labelColor": "var(--soft)",
        "titleColor": "var(--soft)",
        "titleFontWeight": "normal",
        "labelFontSize": _LABEL_PX,
        "titleFontSize": _LABEL_PX,
        "gridColor": "var(--line)",
        "domainColor": "var(--line)",
        "tickColor": "var(--line)",
        "labelOverlap": True,
    },
    "text": {"color": "var(--ink)", "fontSize": _LABEL_PX},
}


@cache
def library() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script, which leaves ``vegaEmbed`` to others."""
    return vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")


def specification(figure: Figure) -> Spec:
    """Return how a figure is drawn: a specification of Vega-Lite without data."""
    chart: alt.TopLevelMixin = _DRAWINGS[figure.drawing](figure)
    spec: Spec = chart.to_dict()
    # Altair's own look, and the address of the schema, which a page that asks no network should not name.
    return {name: part for name, part in spec.items() if name not in ("config", "$schema")}


def _chart() -> alt.Chart:
    return alt.Chart(alt.NamedData(name=ROWS))


def _time() -> dict[str, Any]:
    x = alt.X("a:T", title=None, scale=alt.Scale(type="utc"))
    return {"x": x, "x2": alt.X2("b:T"), "tooltip": _TIP}


def _over_time(figure: Figure) -> alt.LayerChart:
    y = {"title": "GPUs on average"}
    edge = "var(--soft)" if len(figure.rows) <= _EDGED else "var(--unseen)"
    layers = [
        _chart().mark_rect(fill=f"var(--{part})", stroke=stroke, strokeWidth=0.5).encode(
            **_time(), y=alt.Y(f"{top}:Q", **y), y2=alt.Y2(bottom)
        )
        for part, top, bottom, stroke in (
            ("unseen", "held", "seen", edge),
            ("idle", "seen", "used", "var(--idle)"),
        )
    ]  # fmt: skip
    layers.append(
        _chart()
        .mark_rect(fill="var(--used)", stroke="var(--used)", strokeWidth=0.5)
        .encode(**_time(), y=alt.Y("used:Q", **y), y2=alt.Y2Datum(0))
    )
    if any(row["installed"] is not None for row in figure.rows):
        line = _chart().transform_filter("isValid(datum.installed)").mark_rule(color="var(--ink)", strokeDash=[5, 3])
        layers.append(line.encode(**_time(), y=alt.Y("installed:Q", **y)))
    return alt.layer(*layers).properties(width="container", height=_HEIGHT)


def _week(figure: Figure) -> alt.Chart:
    days = list(dict.fromkeys(row["d"] for row in figure.rows))
    return (
        _chart()
        .mark_rect(stroke="var(--card)", strokeWidth=1, invalid=None)
        .encode(
            x=alt.X("h:O", title="hour", axis=alt.Axis(labelAngle=0, values=[0, 3, 6, 9, 12, 15, 18, 21])),
            y=alt.Y("d:O", title=None, sort=days),
            color=alt.when("!isValid(datum.v)").then(alt.value("var(--unseen)")).otherwise(_dark(figure)),
            tooltip=_TIP,
        )
        .properties(width="container", height=26 * len(days) + _AXES)
    )


def _dark(figure: Figure) -> alt.Color:
    # The legend is the page's own, and right in print as the rest of it.
    scale = alt.Scale(type="threshold", domain=list(figure.limits), range=_STEPS[-len(figure.limits) - 1 :])
    return alt.Color("v:Q", scale=scale, legend=None)


def _util_against_sm(figure: Figure) -> alt.LayerChart:
    whole = alt.Scale(domain=[0, 100])
    cells = (
        _chart()
        .mark_rect(stroke="var(--line)", strokeWidth=0.5)
        .encode(
            x=alt.X("x:Q", title="GPU_UTIL, %", scale=whole),
            x2="x2:Q",
            y=alt.Y("y:Q", title="SM activity, %", scale=whole),
            y2="y2:Q",
            color=_dark(figure),
            tooltip=_TIP,
        )
    )
    diagonal = alt.Chart(alt.InlineData(values=[{"a": 0, "b": 100}])).mark_rule(color="var(--soft)", strokeDash=[5, 3])
    line = diagonal.encode(x="a:Q", x2="b:Q", y="a:Q", y2="b:Q")
    return alt.layer(cells, line).properties(width="container", height=_HEIGHT + 40)


_DRAWINGS: dict[str, Callable[[Figure], Any]] = {
    "over_time": _over_time,
    "week": _week,
    "util_against_sm": _util_against_sm,
}

# SPDX-License-Identifier: Apache-2.0
import csv
import io
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.core.chart_model import SeveralGpus, TimeUsage
from slurm_colloc.core.config import Prices
from slurm_colloc.core.errors import ConfigError
from slurm_colloc.core.sharing_model import Collocation
from slurm_colloc.core.units import printable
from slurm_colloc.core.usage_model import GroupUsage
from slurm_colloc.report.formats import as_csv, as_html, as_json
from slurm_colloc.report.text import inert
from slurm_colloc.report.usage import Money, UsageReport, number
from slurm_colloc.report.usage_text import as_table
from tests.unit.golden import Printed
from tests.unit.made import fit_of
from tests.unit.reports import NOTHING, cells_of, full, group, page, report


def test_unknown_is_a_dash_and_never_zero() -> None:
    row = as_table(report(NOTHING), explained=True).splitlines()[4].split()
    assert row == ["ann", "1", "2.0000", *["-"] * 6, "2.0000", "-", "-"]
    (_, cells) = csv.reader(io.StringIO(as_csv(report(NOTHING))))
    costs = Money._fields
    fields = [
        *GroupUsage._fields,
        *costs,
        *(f"fit_{what}" for what in ("known_gpu_hours", "gpu_hours", "freed_gpu_hours", "unit")),
        *(f"fit_{which}_runs" for which in ("judged", "fitting", "not_judged", "spare")),
        "fit_spare_gpu_hours",
    ]
    named = dict(zip(fields, cells, strict=True))
    assert [named[cost] for cost in costs] == ["", "", ""]
    assert (named["util_used_gpu_hours"], named["util_weighted_pct"], named["coverage_pct"]) == ("", "", "")
    assert (named["allocated_gpu_hours"], named["sm_measured_gpu_hours"]) == ("2.0", "0.0")
    (shown,) = json.loads(as_json(report(NOTHING)))["groups"]
    assert (shown["util_used_gpu_hours"], shown["sm_weighted_pct"], shown["methods"]) == (None, None, [])
    assert cells_of(as_html(report(NOTHING)))["ann"] == ["", *as_table(report(NOTHING)).splitlines()[4].split()[1:]]


def test_true_zero_and_little_are_told_apart() -> None:
    little = report(group(util_used_gpu_hours=0.0, util_weighted_pct=0.0, sm_used_gpu_hours=0.0004))
    row = as_table(little, explained=True).splitlines()[4].split()
    assert row[7:9] == ["0.0000", "0.0004"]
    assert row[5] == "0.0"


def test_json_is_unrounded() -> None:
    shown = json.loads(as_json(report(group(util_weighted_pct=71.85612345), rejected={"why": 3})))
    assert (shown["schema"], shown["by"], shown["cluster"]) == (5, "user", "c")
    assert shown["groups"][0]["util_weighted_pct"] == 71.85612345
    assert (shown["since"], shown["rejected"]) == ("2026-11-01T00:00:00+00:00", {"why": 3})


def test_bars_tell_used_from_idle_from_not_sampled() -> None:
    half = group("half", sm_used_gpu_hours=0.25, sm_idle_gpu_hours=0.25, allocated_gpu_hours=1.0)
    text = as_html(report(half, group("unseen", sm_used_gpu_hours=None, sm_idle_gpu_hours=None)))
    reach = re.findall(r'<rect width="([^"]*)"/>', text)
    assert reach == ["100%", "50%", "25%", "100%", "0%", "0%"]
    assert "used by SM activity</span>" in text
    # One metric in all of the bars: GPU_UTIL where no run has the other.
    whole = report(half)._replace(total=group("total", sm_used_gpu_hours=None))
    text = as_html(whole)
    assert "used by GPU_UTIL</span>" in text
    assert re.findall(r'<rect width="([^"]*)"/>', text)[2] == "50%"


def test_a_little_idle_is_no_negative_idle() -> None:
    assert [number(value, 2) for value in (0.004, -0.004, 0.0, -1.0, None)] == ["<0.01", "-0.00", "0.00", "-1.00", "-"]


def test_a_piece_of_less_than_a_minute_begins_and_ends_at_seconds() -> None:
    whole = full()
    assert whole.charts
    short = TimeUsage(0.0, 30.0, None, 0.01, 0.01, 0.005, 0.01, None)
    text = as_html(whole._replace(charts=whole.charts._replace(over_time=(short,), details=())))
    assert "1970-01-01 01:00:00 to 1970-01-01 01:00:30" in text


def data_of(shown: UsageReport) -> dict[str, Any]:
    """Return what the page's script is handed."""
    found = re.search(r'id="data">(.*?)</script>', as_html(shown), re.DOTALL)
    assert found
    return dict(json.loads(found[1]))


def test_a_group_called_total_has_its_own_fit_on_the_page() -> None:
    whole = fit_of("total", 4.0, 3.0, 2.0, "all")
    for name, of_total in (("total", [1, 0.5, 0.25, "own", 0]), ("another", None)):
        shown = full("total")._replace(fits=(fit_of(name, 1.0, 0.5, 0.25, "own"), whole))
        assert [row[-1] for row in data_of(shown)["rows"]] == [of_total, None]


def test_a_piece_in_which_clocks_are_set_back_has_its_hours() -> None:
    since_s = datetime(2026, 10, 25, 0, tzinfo=UTC).timestamp()
    pieces = tuple(
        TimeUsage(since_s + hour * 3600, since_s + (hour + 1) * 3600, None, 1.0, 1.0, 0.5, 1.0, 0.5)
        for hour in range(2)
    )
    whole = full()
    assert whole.charts
    charts = whole.charts._replace(over_time=pieces, details=(whole.charts.details[0]._replace(over_time=pieces),))
    (first, second) = data_of(whole._replace(charts=charts))["spans"]
    # Both are from 2 to 3 by the wall's clock, the first one to 2 once more.
    assert (first[1] - first[0], first[2], second[1] - second[0], second[2]) == (0, 1.0, 3_600_000, 1.0)


@given(st.text(max_size=30) | st.sampled_from("=+-@\t\r\n＝＋－＠").map("{}1".format))
def test_cells_are_inert(name: str) -> None:
    assert inert(name)[:1] not in tuple("=+-@\t\r\n＝＋－＠")
    assert printable(name).isprintable()
    assert len(printable(name)) == len(name)
    rows = list(csv.reader(io.StringIO(as_csv(report(group(name))))))
    assert (len(rows), rows[1][0]) == (2, inert(name))


def test_page_loads_nothing_and_bars_stay_inside() -> None:
    text = as_html(report(group("big", sm_used_gpu_hours=99.0), group("none", allocated_gpu_hours=0.0)))
    assert not page(text).attributes & {"src", "href", "onload", "onerror", "onclick", "action", "style"}
    assert not {"link", "iframe", "img"} & set(page(text).tags)
    assert "default-src 'none'" in text
    assert "unsafe" not in text.split("</head>")[0]
    assert re.findall(r'<rect width="([^"]*)"/>', text) == ["100%", "100%", "100%", "0%", "0%", "0%"]
    assert list(cells_of(as_html(report())))[-1] == "total"


def hours_of(shown: UsageReport) -> list[str]:
    return [line.split()[2] for line in as_table(shown).splitlines() if line.startswith(("ann", "total"))]


def test_hours_are_shown_with_the_same_digits_in_every_row() -> None:
    small = group(name="ann", allocated_gpu_hours=0.0058)
    shown = report(small)._replace(total=small._replace(name="total", allocated_gpu_hours=12.5))
    assert hours_of(shown) == ["<0.01", "12.50"]
    shown = report(small)._replace(total=small._replace(name="total"))
    assert hours_of(shown) == ["0.0058"] * 2


def test_a_sites_own_page(tmp_path: Path) -> None:
    (tmp_path / "report.html.j2").write_text("{{ heading }} {{ report.total.jobs }}")
    assert as_html(report(group(), templates=str(tmp_path))).endswith("by user 1")
    assert str(tmp_path) not in as_json(report(group(), templates=str(tmp_path)))
    (tmp_path / "report.html.j2").write_text("{{ nothing }}")
    with pytest.raises(ConfigError, match=r"report\.html\.j2"):
        as_html(report(group(), templates=str(tmp_path)))


def test_what_the_cluster_has_is_the_third_denominator(printed: Printed) -> None:
    whole = report(group(), installed_gpu_hours=4.0)
    printed("report", *(line for line in as_table(whole, explained=True).splitlines() if "installed" in line))
    shares = {"allocated_pct": 25.0, "util_at_least_pct": 12.5, "sm_at_least_pct": 6.25}
    assert json.loads(as_json(whole))["of_installed"] == shares
    assert "installed" not in as_table(report(group()), explained=True)
    assert json.loads(as_json(report(group())))["of_installed"] == dict.fromkeys(shares)
    unknown = report(group(), installed_gpu_hours=4.0, total=group(allocated_gpu_hours=None))
    assert "installed" not in as_table(unknown, explained=True)


def test_what_sharing_saved(printed: Printed) -> None:
    times = (Collocation(0, 1, 2.0, 2.0), Collocation(1, 1, 1.0, 1.0), Collocation(3, 1, 0.5, 0.5))

    def said(*times: Collocation) -> str:
        lines = as_table(report(group(), collocation=times), explained=True).splitlines()
        return "".join(line for line in lines if "number of jobs" in line)

    shown = json.loads(as_json(report(group(), collocation=times)))["collocation"]
    assert [time["saved_gpu_hours"] for time in shown] == [0.0, 0.0, 1.0]
    assert said(*times[:2]) == ""  # nobody shared
    noise = (Collocation(1, 7, 1.1, 1.0999999999), Collocation(2, 1, 0.5, 1.0))
    printed("report", said(*times), said(*noise), said(Collocation(1, 7, 7.0, 1.0)))


def test_the_page_has_the_columns_of_the_table() -> None:
    priced = report(group(), prices=Prices(gpu_hour=2.0, currency="EUR"))
    rows = cells_of(as_html(priced))
    lines = as_table(priced).splitlines()
    assert "".join(rows["USER"][1:]).replace(" ", "") == "".join(lines[2].split()[1:])
    assert rows["ann"][1:] == lines[4].split()[1:]
    assert rows["ann"][-1] == "2.00"


def test_the_page_leaves_out_columns_that_nobody_knows_and_parts_thousands() -> None:
    rows = cells_of(as_html(report(group(allocated_gpu_hours=12345.6), total=group("total"), fits=())))
    assert rows["ann"][1:3] == ["1", "12,345.6000"]
    unknown = cells_of(as_html(report(NOTHING, total=NOTHING)))
    assert unknown["USER"][1:] == ["RUNS", "ALLOC GPU-h"]


def test_runs_of_several_gpus_are_rows_of_the_page_and_no_note() -> None:
    several = (SeveralGpus(3, 1800.5, 2, 6, 4, 1, 0.6875), SeveralGpus(3, 1800.5, 2, 6, 4, 1, 0.6875, size=2))
    text = as_html(report(group(), several=several[0], several_by_size=several[1:]))
    assert cells_of(text)["2"][:5] == ["3", "1,800.50", "2", "6", "4"]
    assert "runs of several GPUs:" not in text
    assert "Jobs of several GPUs" not in as_html(report(group()))


def test_without_what_draws_charts_the_page_has_their_tables_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slurm_colloc.report.usage_page.find_spec", lambda name: None)
    text = as_html(full())
    assert "pip install altair vl-convert-python" in text
    assert 'data-figure="' not in text
    assert re.findall('<figure id="([^"]*)"', text) == ["over-time", "week-allocated", "week-used", "util-sm"]
    assert (text.count("<details open>"), text.count('<p class="legend">')) == (3, 1), "the table has a legend"
    assert "SM activity %" in text

# SPDX-License-Identifier: Apache-2.0
"""The usage report on terminals of all widths."""

import re

import pytest
from rich.cells import cell_len

from slurm_colloc.core.units import printable
from slurm_colloc.core.usage_model import GroupUsage
from slurm_colloc.report.layout import Terminal
from slurm_colloc.report.usage import UsageReport, added, shortened
from slurm_colloc.report.usage_text import as_table, columns
from tests.unit.hostile import HOSTILE
from tests.unit.made import fit_of, near
from tests.unit.reports import NOTHING, full, group, report

ESSENTIAL = ["USER", "RUNS", "ALLOC GPU-h", "IDLE GPU-h", "SAMPLED %", "SM %", "█used▒idle░?"]


def holding(name: str, hours: float, **fields: float | None) -> GroupUsage:
    """Return a group whose hours are half sampled, and a quarter of that used."""
    half = {"util_measured_gpu_hours": hours / 2, "sm_measured_gpu_hours": hours / 2}
    used = {"sm_used_gpu_hours": hours / 8, "sm_idle_gpu_hours": 3 * hours / 8, "sm_weighted_pct": 25.0}
    base = {"allocated_gpu_hours": hours, "coverage_pct": 50.0, "coverage_known_gpu_hours": hours}
    return group(name, **{**half, **used, **base, **fields})


def many(count: int) -> UsageReport:
    groups = [holding(f"somebody_no_{number:04}", 100.0 + number) for number in range(count, 0, -1)]
    fits = [fit_of(one.name, 10.0, 5.0, 4.0, "gpu:1g.10gb:1") for one in groups]
    whole = fit_of("total", 10.0 * count, 5.0 * count, 4.0 * count, "gpu:1g.10gb:1")
    return report(*groups, total=added("total", groups), fits=(*fits, whole))


def table_of(text: str) -> list[list[str]]:
    """Return the cells of the titles, and of the rows."""
    lines = text.split("\n\n")[1].splitlines()
    return [re.split(r"  +", line.strip()) for line in lines if set(line) != {"-"}]


@pytest.mark.parametrize("width", range(12, 241, 12))
@pytest.mark.parametrize("name", ["ann", "日本語の利用者" * 4, "e\u0301" * 40, "x" * 70])
def test_no_line_is_wider_than_the_terminal(width: int, name: str) -> None:
    shown = report(*many(3).groups, group(name), fits=many(3).fits, cluster=name, rejected={name: 1})
    assert max(map(cell_len, as_table(shown, Terminal(width)).splitlines())) <= width


def test_eighty_columns_have_what_matters_and_a_bar() -> None:
    titles, *rows = table_of(as_table(many(3), Terminal(80)))
    assert titles == ESSENTIAL
    assert rows[0][:-1] == ["somebody_no_0003", "1", "103.00", "38.62", "50", "25.0"]
    assert re.fullmatch("█+▒+░+", rows[0][-1])
    assert rows[-1][0] == "total"


def test_what_there_is_more_room_for_is_shown() -> None:
    shown = many(3)
    everything = ["USER", *(column.title for column in columns(shown)), "█used ▒idle ░not sampled"]
    assert table_of(as_table(shown, Terminal(300), explained=True))[0] == everything
    for figures in (table_of(as_table(shown, Terminal(300)))[0], table_of(as_table(shown))[0]):
        assert not {"HELD GPU-h", "EMPTY GPU-h", "kWh", "SM GPU-h", "GPU_UTIL GPU-h"} & set(figures)
    assert table_of(as_table(shown, explained=True))[0] == everything[:-1], "where it goes no person looks at a bar"
    seen = [len(table_of(as_table(shown, Terminal(width)))[0]) for width in range(20, 300, 5)]
    assert seen == sorted(seen)
    assert seen[0] < len(ESSENTIAL)


def test_columns_that_a_terminal_has_no_room_for_are_named() -> None:
    narrow, wide, whole = (as_table(many(3), terminal) for terminal in (Terminal(80), Terminal(300), Terminal()))
    (line,) = re.findall(r"^left out for want of width: (.*?); all: --format csv$", narrow.replace("\n  ", " "), re.M)
    *shown, _ = table_of(narrow)[0]
    assert line.split(", ") == [title for title in table_of(wide)[0][:-1] if title not in shown]
    assert "COULD FREE GPU-h" in line
    assert "left out" not in wide + whole
    assert "width: ACCOUNT" not in as_table(many(3)._replace(by="account"), Terminal(18)).replace("\n  ", " ")


def test_without_a_terminal_nothing_is_cut_folded_or_summed() -> None:
    shown = report(*(group("x" * 70 + str(number)) for number in range(30)), rejected={"y " * 100: 1})
    text = as_table(shown)
    assert len([line for line in text.splitlines() if line.startswith("x" * 70)]) == 30
    assert "y " * 100 in text
    assert not re.search("[█▒░…\x1b]", text)


def test_columns_of_what_nobody_knows_are_left_out() -> None:
    bare = many(2)._replace(fits=())
    assert not {"FITS % of hours", "FITS IN", "COULD FREE GPU-h"} & {column.title for column in columns(bare)}
    assert "FITS" not in as_table(bare, Terminal(300))
    priced = {column.title for column in columns(full())}
    assert {"GPU EUR", "kWh EUR", "CO2 kg"} <= priced
    assert "CO2 kg" not in {column.title for column in columns(bare)}


def test_only_columns_that_are_shown_are_explained() -> None:
    narrow, wide = (as_table(many(2), Terminal(columns), explained=True) for columns in (80, 300))
    for words in ("HELD: ", "COULD FREE: "):
        assert words in wide
        assert words not in narrow
    assert "SM %: " in narrow
    assert "HELD: " not in as_table(many(2), Terminal(300))


def test_a_column_of_which_nothing_is_known_is_not_shown_to_a_person() -> None:
    nobody_has_energy = report(holding("ann", 4.0, energy_kwh=None), total=holding("total", 4.0, energy_kwh=None))
    assert "kWh" not in table_of(as_table(nobody_has_energy, Terminal(300), explained=True))[0]
    assert "kWh" in table_of(as_table(nobody_has_energy, explained=True))[0], "each time the same columns"


def test_the_metric_that_was_measured_is_the_one_shown() -> None:
    unknown = dict.fromkeys(("sm_used_gpu_hours", "sm_idle_gpu_hours", "sm_weighted_pct"))
    old = [holding("ann", 4.0, util_used_gpu_hours=1.0, util_idle_gpu_hours=1.0, util_weighted_pct=50.0, **unknown)]
    titles, row, _ = table_of(as_table(report(*old, total=old[0]._replace(name="total")), Terminal(70)))
    assert titles[2:5] == ["IDLE GPU-h", "SAMPLED %", "GPU_UTIL %"]
    assert (row[2], row[4]) == ("1.0000", "50.0")


def test_bars_are_as_long_as_what_was_allocated() -> None:
    groups = [holding("big", 80.0), holding("half", 40.0), holding("tiny", 0.01), NOTHING._replace(name="unseen")]
    shown = report(*groups, total=added("total", groups))
    _, *rows = table_of(as_table(shown, Terminal(76)))
    bars = [row[-1] for row in rows[:4]]
    assert bars[0] == "█" * 2 + "▒" * 8 + "░" * 10
    assert bars[1] == "█" + "▒" * 4 + "░" * 5
    assert bars[2:] == ["░", "░"]
    assert not re.search("[█▒░]", rows[4][-1]), "nobody's is as long as all of them"


def test_letters_and_colours_are_those_of_the_terminal() -> None:
    plain = as_table(many(30), Terminal(80), 20)
    coloured = as_table(many(30), Terminal(80, colour=True), 20)
    assert "\x1b" not in plain
    assert "\x1b[34m█" in coloured
    assert re.sub(r"\x1b\[\d+m", "", coloured) == plain
    assert coloured.count("\x1b[0m") == len(re.findall(r"\x1b\[[1-9]\d*m", coloured))


def test_two_thousand_users_are_twenty_and_the_others() -> None:
    whole = many(2000)
    short = shortened(whole, 20)
    assert [one.name for one in short.groups[18:]] == ["somebody_no_1982", "somebody_no_1981", "(1980 others)"]
    for field in ("jobs", "allocated_gpu_hours", "sm_used_gpu_hours", "sm_idle_gpu_hours", "held_idle_gpu_hours"):
        assert sum(getattr(one, field) for one in short.groups) == near(getattr(whole.total, field))
    assert sum(fit.freed_gpu_hours for fit in short.fits[:-1]) == near(whole.fits[-1].freed_gpu_hours)
    rows = table_of(as_table(whole, Terminal(80), 20))
    assert len(rows) == 23
    assert rows[-2][:4] == ["(1980 others)", "1,980", "2,159,190.00", "809,696.25"]
    assert shortened(many(21), 20) == many(21), "the others of one are that one"


def test_the_others_are_not_known_where_none_of_them_is() -> None:
    others = added("others", [NOTHING, NOTHING])
    assert (others.jobs, others.allocated_gpu_hours, others.methods) == (2, 4.0, ())
    unknown = ("util_used_gpu_hours", "sm_weighted_pct", "coverage_pct", "energy_kwh", "held_idle_gpu_hours")
    assert [getattr(others, field) for field in unknown] == [None] * 5
    # jobstats does not say how much of a job it saw: its hours are no part of the denominator.
    some = added("others", [holding("a", 30.0, coverage_pct=40.0), holding("b", 10.0, coverage_pct=80.0), NOTHING])
    assert some.coverage_pct == near(50.0)
    assert some.sm_weighted_pct == near(25.0)
    assert (some.sm_plain_pct, some.gpu_mem_peak_mib) == (None, 3000)


def test_units_of_others_are_named_where_it_is_one() -> None:
    fits = (fit_of("a", 1.0, 1.0, 0.5, "1g"), fit_of("b", 1.0, 1.0, 0.5, "1g"), fit_of("c", 1.0, 0.0, 0.0, "7g"))
    groups, whole = [holding(name, 1.0) for name in "xabc"], fit_of("total", 3.0, 2.0, 1.0, "1g")
    others = fit_of("(3 others)", 3.0, 2.0, 1.0, "1g", 3, 2, 0)
    assert shortened(report(*groups, fits=(*fits, whole)), 1).fits == (others, whole)
    mixed = (*fits[:2], fit_of("c", 1.0, 1.0, 0.0, "2g"), whole)
    assert shortened(report(*groups, fits=mixed), 1).fits[0].unit == ""


def test_all_together_fit_in_what_each_of_them_does() -> None:
    def fits_in(*units: str) -> str:
        fits = [fit_of(unit, 1.0, 1.0, 0.5, unit) for unit in units]
        groups = [NOTHING._replace(name="empty"), *(holding(unit, 1.0) for unit in units)]
        whole = fit_of("total", 2.0, 2.0, 1.0, "1g")
        return table_of(as_table(report(*groups, by="month", fits=(*fits, whole)), Terminal(120)))[-1][4]

    assert (fits_in("1g"), fits_in("1g", "2g")) == ("1g", "several")


def test_a_bill_of_which_a_part_is_not_known_is_not_known() -> None:
    bills = [holding("a", 1.0, billing_hours=32.0), holding("b", 1.0, billing_hours=None)]
    assert added("others", bills).billing_hours is None
    assert added("others", bills[:1] * 2).billing_hours == 64.0


def test_somebody_called_total_has_figures_of_their_own() -> None:
    mine, whole = holding("total", 1.0), holding("total", 2.0)
    fits = (fit_of("total", 1.0, 0.25, 0.1, "1g"), fit_of("total", 2.0, 1.0, 0.5, "2g"))
    _, row, last = table_of(as_table(report(mine, total=whole, fits=fits), Terminal(80)))
    assert (row[4], last[4]) == ("1g", "2g")


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("width", [None, 40, 80, 200])
def test_no_name_acts_on_a_terminal(name: str, width: int | None) -> None:
    fits = (fit_of(name, 1.0, 0.5, 0.5, name), fit_of("total", 1.0, 0.5, 0.5, name))
    shown = report(group(name), cluster=name, rejected={name: 1}, fits=fits)
    text = as_table(shown, Terminal(width))
    assert [letter for letter in text if not letter.isprintable() and letter != "\n"] == []
    assert len(table_of(text)) == 3
    assert len(name) > 16 or printable(name) in text


def test_a_narrow_terminal_shows_a_figure_rather_than_a_whole_name() -> None:
    titles, first, *_ = table_of(as_table(many(3), Terminal(20)))
    assert titles == ["USER", "ALLOC GPU-h"]
    assert first[1] == "103.00"

# SPDX-License-Identifier: Apache-2.0
"""The sentences that a page begins with, and what to do."""

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.core.chart_model import Charts, TimeUsage, Todo
from slurm_colloc.core.sharing_model import HarmRate
from slurm_colloc.core.usage_model import StrayUse
from slurm_colloc.report.first_look import ADMINISTRATORS, as_lines, sentences, with_to_do
from slurm_colloc.report.formats import as_html
from slurm_colloc.report.text import window_in_words
from slurm_colloc.report.usage import UsageReport
from tests.unit.golden import Printed
from tests.unit.made import fit_of, run
from tests.unit.programs import colloc
from tests.unit.reports import NOTHING, full, group, report
from tests.unit.stored import busy, grouped, stored

COUNTED = {"rows_in": 2, "used": 2, "steps": 0, "rejected": {}}
DAY_S = 86_400.0
WINTER = timezone(timedelta(hours=1))
ANN = Todo("ann", "ask for less", 3.0, 2, "#SBATCH --gres=gpu:1", "colloc job 1")


def days(*allocated: float, day_s: float = DAY_S) -> Charts:
    pieces = (
        TimeUsage(at * day_s, (at + 1) * day_s, 100.0, hours, 0.0, None, 0.0, None)
        for at, hours in enumerate(allocated)
    )
    return Charts(tuple(pieces), (), "UTC", (), ())


def of(total_hours: float, **fields: Any) -> UsageReport:
    total = group("total", jobs=3000, allocated_gpu_hours=total_hours, sm_measured_gpu_hours=1200.0,
                  sm_used_gpu_hours=300.0, held_idle_gpu_hours=250.0)  # fmt: skip
    return report(group(), total=total)._replace(**fields)


def test_what_the_sentences_say(printed: Printed) -> None:
    fits = (fit_of("total", 1000.0, 400.0, 250.0, "mps:25")._replace(spare_runs=1, spare_gpu_hours=20.5),)
    every = of(1500.0, installed_gpu_hours=2000.0, charts=days(50.0, 70.0, 90.0), fits=fits,
               harm=HarmRate("harmed in all", 11, 3100, 11 / 3100, 0.0018, 0.0064))  # fmt: skip
    by_util = report(group(), total=group("total", sm_used_gpu_hours=None, held_idle_gpu_hours=None))
    bare = report(NOTHING, total=NOTHING, of_text=True)
    none = report(total=grouped([])[-1])
    unsized = report(group(), total=group("total", allocated_gpu_hours=None))
    printed("report", *("\n".join(sentences(one)) for one in (every, by_util, bare, none, unsized)))


def test_the_spread_is_over_whole_days_or_weeks() -> None:
    def spread(charts: Charts) -> bool:
        return "between 10 and 20 %" in next(iter(sentences(of(1.0, installed_gpu_hours=2.0, charts=charts))))

    assert spread(days(10.0, 20.0))
    assert spread(days(10.0, 20.0, day_s=7 * DAY_S))
    assert not spread(days(10.0)), "one day has none"
    assert not spread(days(10.0, 20.0, day_s=3600.0)), "nights differ from days"


def test_most_gpu_hours_first_and_at_most_five() -> None:
    users = [ANN._replace(who=f"u{number}", gpu_hours=float(number)) for number in range(9)]
    strays = StrayUse("c", "g1", 1, 7.5, 1.0), StrayUse("c", "g2", 1, 7.4, 1.0)
    found = with_to_do(of(10.0, strays=strays), 20, users, agents=True)
    assert [one.who for one in found.to_do] == ["u8", ADMINISTRATORS, "u7", "u6", "u5"]
    assert found.to_do[1].command == "ssh g1 nvidia-smi"
    assert next(as_lines(found)).startswith("To do, 5 of 21 things, ")
    assert next(as_lines(with_to_do(of(10.0), 1, (ANN,), agents=True))).startswith("To do, by ")


def things(shown: UsageReport, users: tuple[Todo, ...], agents: bool | None) -> tuple[Todo, ...]:
    return with_to_do(shown, len(users), users, agents).to_do


@pytest.mark.parametrize(
    ("agents", "command"),
    [
        (None, "colloc site init"),
        (False, "colloc site render"),
        (True, "colloc site doctor"),
    ],
)
def test_where_too_little_is_measured_that_is_first(agents: bool | None, command: str) -> None:
    (one,) = things(report(NOTHING, total=NOTHING, of_text=True), (), agents)
    assert (one.who, one.gpu_hours) == (ADMINISTRATORS, 2.0)
    assert one.command.startswith(command)
    little = group("total", allocated_gpu_hours=10.0, coverage_pct=59.0)
    assert [one.gpu_hours for one in things(report(total=little), (ANN,), agents)] == [pytest.approx(4.1), 3.0]
    assert things(report(total=little._replace(coverage_pct=60.0)), (ANN,), agents) == (ANN,)
    # Jobstats and the like do not say how much of a job they saw.
    assert things(report(total=little._replace(coverage_pct=None)), (ANN,), agents) == (ANN,)
    assert things(report(total=little, visible="only ann's"), (ANN,), agents) == (ANN,)


def test_what_goes_on_after_its_limit_is_to_be_ended_in_accounting() -> None:
    shown = of(10.0, runs_over_limit=2, over_limit_gpu_hours=4.0)
    assert [(one.gpu_hours, one.command) for one in things(shown, (), None)] == [(4.0, "sacctmgr show runawayjobs")]


def test_what_is_to_do_for_people(printed: Printed) -> None:
    users = (ANN, ANN._replace(who="bob", line="", gpu_hours=1234.5), ANN._replace(who="eve\x1b", command="", runs=0))
    printed("report", "\n".join(as_lines(report(to_do=users))))
    assert list(as_lines(report())) == []


def test_of_samples(tmp_path: Path) -> None:
    """Whose job used nothing is told so, also under a pseudonym."""
    rows = [run("1", user="ann"), run("2", user="bob", node_list="g2")]
    at_s = (900, 1800, 2700, 3600)
    idle = busy(*at_s, job="2", uuid="g2", util=0.0, sm=0.0)
    stored(tmp_path / "store", rows, [*busy(*at_s), *idle]).write_log("a", COUNTED)
    call = ("report", "--store", str(tmp_path / "store"), "--since", "1970-01-01", "--until", "1970-01-02")
    assert colloc(*call) == 0
    line, option, command = colloc.out.splitlines()[-3:]
    assert line.startswith("  1. bob, 1 GPU-h in 1 run: ")
    assert (option, command) == ("     #SBATCH --gres=none", "     $ colloc job 2")
    assert colloc(*call, "--pseudonyms") == 0
    assert (colloc.out.splitlines()[-1], "bob" in colloc.out) == (option, False)


@pytest.mark.parametrize(
    ("since", "until", "words"),
    [
        ("2026-11-02", "2026-11-09", "2 to 8 November 2026 (UTC+01:00)"),
        ("2026-10-01", "2026-11-01", "October 2026 (UTC+01:00)"),
        ("2026-12-01", "2027-01-01", "December 2026 (UTC+01:00)"),
        ("2026-10-29", "2026-11-09", "29 October to 8 November 2026 (UTC+01:00)"),
        ("2025-12-29", "2026-01-09", "29 December 2025 to 8 January 2026 (UTC+01:00)"),
        ("2025-01-01", "2026-02-01", "1 January 2025 to 31 January 2026 (UTC+01:00)"),
        ("2026-01-01", "2026-01-02", "1 January 2026 (UTC+01:00)"),
        ("2026-01-01", "2026-01-02T09:05", "1 January 2026 00:00 to 2 January 2026 09:05 (UTC+01:00)"),
    ],
)
def test_a_window_in_words(since: str, until: str, words: str) -> None:
    assert window_in_words(*(datetime.fromisoformat(at).replace(tzinfo=WINTER) for at in (since, until))) == words


def test_clocks_that_are_set_in_the_window_have_both_offsets() -> None:
    summer = timezone(timedelta(hours=2))
    said = window_in_words(datetime(2026, 10, 1, tzinfo=summer), datetime(2026, 11, 1, tzinfo=WINTER))
    assert said == "October 2026 (UTC+02:00, then UTC+01:00)"


def test_a_centers_name_and_logo(tmp_path: Path) -> None:
    (tmp_path / "center.html.j2").write_text('<p><img alt="" src="data:image/svg+xml,x"> Center</p>')
    shown = full()._replace(templates=str(tmp_path), since=datetime(2026, 11, 1, tzinfo=UTC))
    assert ">\n<p><img alt" in as_html(shown)
    assert "img-src data:;" in as_html(shown)

# SPDX-License-Identifier: Apache-2.0
"""Hours by month: each month as if it was asked for alone."""

import json
from datetime import datetime
from pathlib import Path

import pytest

import slurm_colloc
from slurm_colloc.facts.over_time import months_of
from tests.unit.made import HOUR, MIG_POOL, near, run, site
from tests.unit.programs import colloc
from tests.unit.stored import at, busy, stored
from tests.unit.test_over_time import BERLIN

NOVEMBER, DECEMBER, JANUARY = (at(f"{day}T00:00:00") for day in ("2026-11-01", "2026-12-01", "2027-01-01"))


def test_months_begin_at_local_midnight_and_the_first_is_cut() -> None:
    def at_s(text: str) -> float:
        return datetime.fromisoformat(text).replace(tzinfo=BERLIN).timestamp()

    found = months_of(at_s("2026-09-15T12:00"), at_s("2026-12-01T00:00"), BERLIN)
    ends = [(at_s("2026-09-15T12:00"), "2026-09"), (at_s("2026-10-01"), "2026-10"), (at_s("2026-11-01"), "2026-11")]
    assert found == [*ends, (at_s("2026-12-01"), "")]
    assert months_of(at_s("2026-10-01"), at_s("2026-10-02"), BERLIN)[0] == (at_s("2026-10-01"), "2026-10")


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the command of a report on a run that is in November for two hours and in December for one."""
    monkeypatch.setenv("TZ", "UTC")
    across = run("1", start_s=DECEMBER - 2 * HOUR, end_s=DECEMBER + HOUR)
    later = run("2", user="bob", start_s=DECEMBER + HOUR, end_s=DECEMBER + 3 * HOUR)
    rounds = busy(*(DECEMBER + 900 * number for number in range(-7, 5)), sm=50.0)
    store = stored(tmp_path / "store", [across, later], rounds, site(MIG_POOL))
    store.write_log("a", {"rows_in": 2, "used": 2, "steps": 0, "rejected": {}})
    return ["report", "--store", store.samples.folder, "--since", "2026-11-01", "--until", "2027-01-01"]


def test_a_run_of_two_months_is_in_both_with_the_hours_of_each(report: list[str], tmp_path: Path) -> None:
    assert colloc(*report, "--by", "month", "--format", "json") == 0
    found = json.loads(colloc.out)
    figures = ("name", "jobs", "allocated_gpu_hours", "sm_measured_gpu_hours", "sm_used_gpu_hours", "coverage_pct")
    november, december = ([group[name] for name in figures] for group in found["groups"])
    assert november == ["2026-11", 1, 2.0, 2.0, 1.0, 100.0]
    assert december == ["2026-12", 2, 3.0, 1.0, 0.5, near(100 / 3)]
    # The run counts once in all.
    assert (found["total"]["jobs"], found["total"]["allocated_gpu_hours"]) == (2, 5.0)
    for (since, until), of in zip(
        (("2026-11-01", "2026-12-01"), ("2026-12-01", "2027-01-01")), found["groups"], strict=True
    ):
        assert colloc(*report[:3], "--since", since, "--until", until, "--format", "json") == 0
        assert json.loads(colloc.out)["total"] | {"name": of["name"]} == of, "as if asked for alone"
    frame = slurm_colloc.open(str(tmp_path / "store")).usage("month", "2026-11-01", "2027-01-01")
    assert frame["allocated_gpu_hours"].to_list() == [2.0, 3.0]
    assert frame["month"].to_list() == ["2026-11", "2026-12"]


def test_a_month_without_runs_is_billed_nothing(report: list[str]) -> None:
    report[report.index("2026-11-01")] = "2026-10-01"
    assert colloc(*report, "--by", "month", "--format", "json") == 0
    billed = {group["name"]: group["billing_hours"] for group in json.loads(colloc.out)["groups"]}
    assert billed == {"2026-10": 0.0, "2026-11": None, "2026-12": None}


@pytest.mark.parametrize("form", ["table", "html"])
def test_months_are_shown_in_their_order(report: list[str], form: str, tmp_path: Path) -> None:
    assert colloc(*report, "--by", "month", "--format", form, "-o", str(tmp_path / "out")) == 0
    shown = (tmp_path / "out").read_text()
    assert 0 < shown.index("2026-11 ") < shown.index("2026-12 ") if form == "table" else "2026-12" in shown


def test_a_text_has_months_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    text = tmp_path / "sacct.txt"
    text.write_text(
        "JobID|User|State|Submit|Start|End|AllocTRES\n"
        "1|ann|FAILED|2024-11-30T20:00:00|2024-11-30T22:00:00|2024-12-01T01:00:00|gres/gpu:h100=2\n"
    )
    ends = ["--since", "2024-11-01", "--until", "2025-01-01", "--timezone", "UTC", "--format", "json"]
    for by, expected in (("month", {"2024-11": 4.0, "2024-12": 2.0}), ("state", {"FAILED": 6.0})):
        assert colloc("report", "--sacct-file", str(text), "--by", by, *ends) == 0
        found = json.loads(colloc.out)["groups"]
        assert {group["name"]: group["allocated_gpu_hours"] for group in found} == expected

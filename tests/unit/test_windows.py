# SPDX-License-Identifier: Apache-2.0
"""What becomes of each row, and of each run, when a report looks at a window."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.golden import Printed
from tests.unit.made import near
from tests.unit.programs import colloc
from tests.unit.stored import at

FIELDS = "JobID|JobIDRaw|Cluster|User|State|Submit|Start|End|AllocTRES"
DAYS = ("2026-01-03T00:00:00+00:00", "2026-01-04T00:00:00+00:00", "2026-01-05T00:00:00+00:00")
LEDGER = ("rows_repeated", "rows_not_started", "rows_outside")


def row(job: str, start: str, end: str, state: str = "COMPLETED") -> str:
    submit, start, end = (str(at(time)) if time[0] == "2" else time for time in ("2026-01-01T00:00", start, end))
    return f"{job}|{job}|c|ann|{state}|{submit}|{start}|{end}|gres/gpu=2"


ROWS = (
    row("1", "2026-01-03T01:00", "2026-01-03T03:00"),
    row("1", "2026-01-03T01:00", "2026-01-03T03:00"),
    row("2", "2026-01-03T22:00", "2026-01-04T02:00"),
    row("3", "Unknown", "Unknown", "PENDING"),
    row("4", "Unknown", "2026-01-03T03:00", "CANCELLED"),
    row("5", "2026-01-01T22:00", "2026-01-02T02:00"),
)


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "sacct.txt"
    path.write_text("".join(f"{one}\n" for one in (FIELDS, *ROWS)))
    return path


def reported(since: str, until: str, *argv: str) -> dict[str, Any]:
    assert colloc("report", "--since", since, "--until", until, "--format", "json", *argv) == 0
    shown: dict[str, Any] = json.loads(colloc.out)
    return shown


@pytest.mark.parametrize("stored", [False, True])
def test_each_row_used_is_accounted_for(stored: bool, text: Path, printed: Printed) -> None:
    source = ("--sacct-file", str(text))
    if stored:
        store = ("--store", str(text.parent / "store"))
        assert colloc("ingest", *store, *source) == 0
        source = store
    shown = reported(*DAYS[:2], *source)
    assert (shown["rows_used"], shown["runs"]) == (6, 2)
    assert {name: shown[name] for name in LEDGER} == {"rows_repeated": 1, "rows_not_started": 2, "rows_outside": 1}
    assert shown["rows_used"] == shown["runs"] + sum(shown[name] for name in LEDGER)
    assert colloc("report", "--since", DAYS[0], "--until", DAYS[1], *source, "--explain") == 0
    printed("report", *(line.partition(": ")[2] for line in colloc.out.splitlines() if " 1 repeat" in line))


def test_runs_add_up_over_windows_less_those_that_began_before(text: Path) -> None:
    both = reported(DAYS[0], DAYS[2], "--sacct-file", str(text))
    each = [reported(*window, "--sacct-file", str(text)) for window in (DAYS[:2], DAYS[1:])]
    assert [one["total"]["jobs"] for one in (both, *each)] == [2, 2, 1]
    assert [one["runs_begun_before"] for one in (both, *each)] == [0, 0, 1]
    assert both["total"]["jobs"] == sum(one["total"]["jobs"] - one["runs_begun_before"] for one in each)


@pytest.mark.parametrize("stored", [False, True])
def test_a_run_of_which_no_length_is_known_has_a_line_and_no_hours(stored: bool, text: Path) -> None:
    running = [row("6", start, "Unknown", "RUNNING") for start in ("2025-01-01T00:00", "2026-01-03T05:00")]
    text.write_text("".join(f"{one}\n" for one in (FIELDS, *ROWS, running[0], running[1].replace("6|6", "7|7", 1))))
    source = ("--sacct-file", str(text))
    if stored:
        store = ("--store", str(text.parent / "store"))
        assert colloc("ingest", *store, *source) == 0
        source = store
    shown = reported(*DAYS[:2], *source)
    assert (shown["total"]["allocated_gpu_hours"], shown["runs_without_length"]) == (8.0, 2)
    assert colloc("report", "--since", DAYS[0], "--until", DAYS[1], *source) == 0
    assert "no hours: 2" in colloc.out
    if stored:  # and what knows more counts
        text.write_text(f"{FIELDS}\n{row('6', '2025-01-01T00:00', '2026-01-03T01:00')}\n")
        assert colloc("ingest", *store, "--sacct-file", str(text)) == 0
        shown = reported(*DAYS[:2], *source)
        assert (shown["total"]["allocated_gpu_hours"], shown["runs_without_length"]) == (10.0, 1)


@pytest.mark.parametrize("stored", [False, True])
def test_a_run_that_should_have_ended_long_ago_is_named(stored: bool, text: Path) -> None:
    """62 days of a limit of two hours are said to be so; a day beyond it may be OverTimeLimit, or a limit raised."""

    def running(job: str, limit: str, hours: float) -> str:
        cells = row(job, "2026-01-01T00:00", "Unknown", "RUNNING").replace("=2", "=1")
        return f"{cells}|{limit}|{3600 * hours:.0f}"

    open_runs = [running("4", "120", 62 * 24), running("5", "120", 26), running("6", "UNLIMITED", 62 * 24)]
    open_runs += [running("7", "120", 26.01), f"{row('8', '2026-01-01T00:00', '2026-03-01T00:00')}|120|"]
    text.write_text("".join(f"{one}\n" for one in (f"{FIELDS}|TimelimitRaw|ElapsedRaw", *open_runs)))
    source = ("--sacct-file", str(text))
    if stored:
        assert colloc("ingest", "--store", str(text.parent / "store"), *source) == 0
        source = ("--store", str(text.parent / "store"))
    shown = reported("2026-01-01T00:00:00+00:00", "2026-04-01T00:00:00+00:00", *source)
    assert (shown["runs_over_limit"], shown["over_limit_gpu_hours"]) == (2, near(1488 + 26.01))
    assert colloc("report", "--since", "2026-01-01", "--until", "2026-04-01", *source) == 0
    (line,) = (line for line in colloc.out.splitlines() if "their time limit" in line)
    assert "2, 1514 GPU-h" in line
    assert reported("2026-03-10T00:00:00+00:00", "2026-04-01T00:00:00+00:00", *source)["runs_over_limit"] == 0


def test_types_whose_worth_is_not_known_are_listed(text: Path) -> None:
    kinds = (
        "gres/gpu:1g10gb=1",
        "gres/gpu:8g.80gb=1",
        "gres/gpu:rtx_3090=1",
        "gres/gpu:1g.10gb=7",
        "gres/gpu=1",
        "gres/shard=2",
    )
    rows = [ROWS[0].replace("1|1", f"{job}|{job}", 1).replace("gres/gpu=2", kind) for job, kind in enumerate(kinds)]
    text.write_text("".join(f"{one}\n" for one in (FIELDS, *rows)))
    shown = reported(*DAYS[:2], "--sacct-file", str(text))
    assert (shown["total"]["allocated_gpu_hours"], shown["total"]["jobs_without_size"]) == (near(6.0), 3)
    assert shown["types_without_size"] == ["1g10gb", "8g.80gb", "shard"]
    assert shown["types_taken_for_whole"] == ["rtx_3090", "untyped"]
    assert colloc("report", "--since", DAYS[0], "--until", DAYS[1], "--sacct-file", str(text)) == 0
    said = colloc.out
    assert "not known: 3 (1g10gb, 8g.80gb, shard)" in said
    assert "rtx_3090, untyped" in said
    # Of another day they are none.
    shown = reported(*DAYS[1:], "--sacct-file", str(text))
    assert (shown["types_without_size"], shown["types_taken_for_whole"]) == ([], [])

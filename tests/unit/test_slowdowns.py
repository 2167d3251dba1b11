# SPDX-License-Identifier: Apache-2.0
"""What tests/gpu/slowdowns.py has still to run, and which of its rows count."""

from pathlib import Path

from tests.gpu import slowdowns
from tests.gpu.footprints import read_table


def _row(command: str, limit_pct: int, **more: object) -> dict[str, str]:
    row = {"command": command, "limit_pct": limit_pct, "state": "COMPLETED", "gr_active_pct": 20.0, "steps_per_s": 1.0}
    return {name: str(value) for name, value in (row | more).items()}


def test_what_is_there_or_failed_is_not_run_again() -> None:
    rows = [_row("a", limit, gr_active_pct=99.0) for limit in (100, 70)] + [_row("b", 100, state="GPU_OOM")]
    assert slowdowns.missing(["a", "b", "c"], rows) == [("a", [46, 25, 13]), ("c", [100, 70, 46, 25, 13])]


def test_jobs_that_wait_for_their_host_are_measured_three_times_and_the_fastest_row_counts() -> None:
    rows = [_row("a", limit, steps_per_s=rate) for limit in slowdowns.LIMITS_PCT for rate in (5.0, 6.0)]
    assert slowdowns.missing(["b", "a"], rows) == [("b", [100, 70, 46, 25, 13]), ("a", [100, 70, 46, 25, 13])]
    assert {row["steps_per_s"] for row in slowdowns.best(rows)["a"].values()} == {"6.0"}


def test_rows_are_appended(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    slowdowns.add(table, [{"command": "a", "limit_pct": 100, "state": "COMPLETED", "steps_per_s": 1.23456789}])
    slowdowns.add(table, [{"command": "a", "limit_pct": 70, "state": "FAILED"}])
    rows = read_table(table, slowdowns.COLUMNS)
    assert [(row["limit_pct"], row["steps_per_s"]) for row in rows] == [("100", "1.23457"), ("70", "")]

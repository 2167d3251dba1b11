# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from typing import Any

import pytest

from tests.unit.asked import ask, none, one
from tests.unit.audited_site import DAY, found, sacct_text
from tests.unit.golden import Printed

# A day of a limit of 50 days: 2 %, and 1,176 GPU-h of limit not needed.
FAR_BELOW = {"limit_min": 72_000}


def test_a_limit_far_above_what_runs_take(printed: Printed) -> None:
    answered, (finding,) = ask("COL011", FAR_BELOW, {"user": "bob"})
    assert (answered.judged, finding.gpu_hours, finding.subject) == (2, 1176.0, "ann")
    printed("rules", finding.evidence)


def test_overall_is_by_time_and_mean_and_median_by_run(printed: Printed) -> None:
    # 24 of 1200 h, and four times an hour of ten.
    short = {"limit_min": 600, "end_s": 3600, "to_s": 3600.0, "allocated": 1.0}
    finding = one("COL011", FAR_BELOW, *[short] * 4)
    printed("rules", finding.evidence)
    assert finding.gpu_hours == 1176.0 + 4 * 9
    assert one("COL011", FAR_BELOW | {"gpus": 8.0}).gpu_hours == 8 * 1176.0


@pytest.mark.parametrize(
    ("fields", "settings"),
    [
        ({"limit_min": 61_000}, {}),
        ({}, {"min_unused_gpu_hours": 1176.5}),
        ({}, {"overall_pct": 1.9}),
        ({}, {"mean_pct": 1.9}),
        ({}, {"median_pct": 1.9}),
        ({"gpus": 0.5}, {}),
    ],
)
def test_bounds(fields: dict[str, Any], settings: dict[str, float]) -> None:
    one("COL011", FAR_BELOW)
    assert none("COL011", FAR_BELOW | fields, bounds=settings)


@pytest.mark.parametrize(
    "fields",
    [
        # nobody can say what they would have taken
        *({"state": state} for state in ("TIMEOUT", "CANCELLED", "CANCELLED by 7", "FAILED", "OUT_OF_MEMORY")),
        *({"state": state} for state in ("NODE_FAIL", "PREEMPTED", "REQUEUED", "DEADLINE", "RUNNING")),
        {"end_s": None, "state": "RUNNING"},
        # without a limit
        {"limit_min": None},
        {"limit_min": 0},
        {"gpus": None},
        {"end_s": 0, "to_s": 0.0},
        # it ended after the window, and counts there
        {"end_s": 86_401},
    ],
)
def test_runs_that_say_nothing_of_their_limits(fields: dict[str, Any]) -> None:
    answered, said = ask("COL011", FAR_BELOW | fields)
    assert (answered.judged, said) == (0, [])


def test_a_run_that_took_longer_than_its_limit_is_no_negative_time() -> None:
    # Slurm waits a while before it ends a run (OverTimeLimit), and suspended time is no time of it.
    assert none("COL011", {"limit_min": 1}, bounds={"min_unused_gpu_hours": 0.0, "overall_pct": 100.0})
    finding = one("COL011", FAR_BELOW, {"limit_min": 1}, bounds={"mean_pct": 51.0, "median_pct": 51.0})
    assert (finding.gpu_hours, [line.job_id for line in finding.jobs]) == (1176.0, ["1"])


def test_a_run_that_began_before_the_window_counts_whole() -> None:
    assert one("COL011", FAR_BELOW | {"from_s": 80_000.0, "allocated": 1.0}).gpu_hours == 1176.0


def test_it_needs_no_samples() -> None:
    one(
        "COL011", FAR_BELOW | {"coverage_pct": None, "methods": [], "strong": False, "util_used": None, "sm_used": None}
    )


def test_runs_of_a_store(tmp_path: Path) -> None:
    text = sacct_text(
        {"TimelimitRaw": "72000"},
        {"TimelimitRaw": "72000", "State": "CANCELLED by 7", "User": "bob"},
        {"TimelimitRaw": "UNLIMITED", "User": "eve"},
        {"TimelimitRaw": "72000", "User": "dan", "Submit": "9", "Start": str(DAY - 7200), "End": str(DAY)},
        {"TimelimitRaw": "72000", "User": "kim", "End": str(4 * DAY)},
        {"TimelimitRaw": "72000", "User": "sue", "End": "Unknown", "State": "RUNNING"},
    )
    (finding,) = found(tmp_path, "COL011", text)
    assert (finding.user, finding.gpu_hours) == ("ann", 1176.0)

# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from typing import Any

import pytest

from tests.unit.asked import none, one
from tests.unit.golden import Printed
from tests.unit.made import device, process, run, seen
from tests.unit.stored import stored
from tests.unit.test_audit import audited

LOW: dict[str, Any] = {
    "allocated": 100.0,
    "util_measured": 100.0,
    "sm_measured": 100.0,
    "util_used": 95.0,
    "sm_used": 0.11,
}


def test_both_counters_are_named_for_they_may_say_the_opposite(printed: Printed) -> None:
    found = one("COL003", LOW)
    printed("rules", found.evidence)
    assert "GPU_UTIL" not in one("COL003", LOW | {"util_used": None, "util_measured": 0.0}).evidence


def test_gpu_util_of_runs_without_it_is_not_zero() -> None:
    found = one("COL003", LOW, LOW | {"util_used": None})
    assert "ran 95 % of the time" in found.evidence


def test_runs_that_are_left_out_are_counted_as_runs() -> None:
    # Half of the allocated hours are measured, which is no half of the runs.
    half = LOW | {"sm_measured": 70.0, "util_measured": 70.0, "util_used": 60.0}
    assert "judged" not in one("COL003", half, half).evidence
    assert "1 of 3 judged runs" in one("COL003", half, half, half | {"sm_used": 0.0, "util_used": 0.0}).evidence


# A day of four GPUs of which one was busy.
ONE_OF_FOUR: dict[str, Any] = {
    "shown": "gpu:h100:4",
    "devices": 4,
    "gpus": 4.0,
    "blocked": 4.0,
    "allocated": 96.0,
    "util_measured": 96.0,
    "util_used": 23.0,
    "sm_measured": 96.0,
    "sm_used": 20.0,
    "fit_judged": None,
    "fit_unit": None,
    "fit_gpus": None,
    "idle_units": 3.0,
    "idle_units_hours": 72.0,
    "fewer": True,
}


def test_gpus_that_were_never_used_are_not_used_little() -> None:
    assert none("COL003", ONE_OF_FOUR, bounds={"min_gpu_hours": 1.0})
    little = one("COL003", ONE_OF_FOUR | {"sm_used": 5.0}, bounds={"min_gpu_hours": 1.0})
    assert (little.gpu_hours, "21 %" in little.evidence) == (24.0, True)


@pytest.mark.parametrize(
    ("fields", "helps", "does_not"),
    [
        ({}, "csub", "--gres"),
        ({"csub_there": False}, "--gres=gpu:h100_1g.10gb:1", "csub"),
        ({"fit_unit": None, "fit_gpus": None}, "no piece", "csub"),
        ({"fit_judged": None, "fit_unit": None, "fit_gpus": None}, "colloc job", "csub"),
        (ONE_OF_FOUR | {"fewer": False, "sm_used": 9.0}, "fewer GPUs", "csub"),
    ],
)
def test_what_is_advised_can_work_for_such_jobs(fields: dict[str, Any], helps: str, does_not: str) -> None:
    remedy = one("COL003", LOW | fields, bounds={"min_gpu_hours": 1.0}).remedy
    assert (helps in remedy, does_not in remedy) == (True, False)


@pytest.mark.parametrize("fields", [{"suspended_s": 1}, {"span_s": 599.0}])
def test_edges_and_suspensions_make_nobody_low(fields: dict[str, Any]) -> None:
    assert none("COL003", LOW | fields)
    one("COL003", LOW | {"span_s": 599.0}, bounds={"shortest_min": 9.0})


def test_a_neighbours_load_counts_for_nobody(tmp_path: Path) -> None:
    shared = [device(sm_active_pct=2.0)]
    rounds = [
        seen(at_s, shared, [process("1", 7), process("2", 8)], interval_s=900.0)
        for at_s in (900.0, 1800.0, 2700.0, 3600.0)
    ]
    alone = [seen(one.at_s, shared, [process("1", 7)], interval_s=900.0) for one in rounds]
    low = {"min_gpu_hours": 0.5}
    both = stored(tmp_path / "a", [run("1"), run("2", user="bob")], rounds)
    assert audited(both, "COL003", 0.0, 3600.0, bounds=low) == []
    assert len(audited(stored(tmp_path / "b", [run("1")], alone), "COL003", 0.0, 3600.0, bounds=low)) == 1

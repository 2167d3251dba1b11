# SPDX-License-Identifier: Apache-2.0
"""COL001, and that an idle run is named by one of COL001, COL004, COL005 and COL006."""

from typing import Any

import pytest

from tests.unit.asked import IDLE, none, one

PARKED = IDLE | {"peak_mib": 30_000}


@pytest.mark.parametrize("fields", [{"suspended_s": 1}, {"state": "SUSPENDED"}])
@pytest.mark.parametrize("code", ["COL001", "COL016"])
def test_who_was_suspended_is_not_called_idle(code: str, fields: dict[str, Any]) -> None:
    idle = IDLE | {"end_s": None, "tail_s": 80_000.0}
    one(code, idle)
    assert none(code, idle | fields)


@pytest.mark.parametrize(("code", "peak_mib"), [("COL001", 400), ("COL006", 30_000)])
def test_a_share_is_not_idle_while_its_counters_were_taken_away(code: str, peak_mib: int) -> None:
    # Of a share there is no GPU_UTIL of its own, but the device's says that something ran.
    share = IDLE | {"whole": False, "blocked": None, "util_used": None, "util_measured": 0.0, "peak_mib": peak_mib}
    one(code, share)
    assert none(code, share | {"blackout_s": 3600.0})


def test_idle_and_parked_are_told_apart_by_memory_for_each_gpu_of_a_node() -> None:
    contexts = {"devices": 8, "gpus": 8.0, "peak_mib": 8 * 600}
    one("COL001", IDLE | contexts)
    assert none("COL006", IDLE | contexts)
    one("COL006", IDLE | contexts | {"peak_mib": 8 * 2048})
    # The peak is of one node, the devices are of all.
    one("COL006", IDLE | contexts | {"peak_mib": 4 * 2048, "nodes": 2})
    assert none("COL006", IDLE | contexts | {"peak_mib": 4 * 2048, "nodes": None})
    # Where its memory is not known, a run is still at zero use, and nobody can say that it is parked.
    one("COL001", IDLE | {"peak_mib": None})
    assert none("COL006", IDLE | {"peak_mib": None})


@pytest.mark.parametrize("peak_mib", [None, 0, 2047, 2048, 80_000])
@pytest.mark.parametrize("fields", [{}, {"held_idle_hours": 24.0}, {"tail_s": 80_000.0}])
def test_no_idle_run_is_named_twice(peak_mib: int | None, fields: dict[str, Any]) -> None:
    run = IDLE | fields | {"peak_mib": peak_mib}
    assert sum(not none(code, run) for code in ("COL001", "COL004", "COL005", "COL006")) == 1


def test_an_array_of_short_idle_jobs_adds_up() -> None:
    task = IDLE | {"to_s": 120.0, "span_s": 120.0, "allocated": 1 / 30, "util_measured": 1 / 30, "sm_measured": 1 / 30}
    found = one("COL001", *[task] * 1000)
    assert found.evidence.startswith("33.3 GPU-h in 1000 runs (job ")
    assert len(found.jobs) == 5

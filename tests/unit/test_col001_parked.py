# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from typing import Any

import pytest

from tests.unit.asked import IDLE, ask, harmless, none, one
from tests.unit.made import run
from tests.unit.stored import busy, stored
from tests.unit.test_audit import audited

PARKED: dict[str, Any] = IDLE | {"peak_mib": 30 * 1024}


def test_what_it_says() -> None:
    found = one("COL001", PARKED)
    assert (found.gpu_hours, found.user) == (24.0, "ann")
    assert found.evidence == (
        "24 GPU-h idle in 1 run (job 1) that filled up to 30 GiB of GPU memory and ran hardly a "
        "kernel; sampled for at least 100 % of the time (measured); the site's threshold is 24 GPU-h"
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"util_used": 0.0241},
        {"sm_used": 0.0241},
        {"util_used": None, "sm_used": None},
        {"strong": False},
        {"coverage_pct": 59.0},
        {"coverage_pct": None},
        {"util_measured": 14.0, "sm_measured": 14.0},
        {"allocated": None},
        {"allocated": 0.0},
        {"allocated": 23.9, "util_measured": 23.9, "sm_measured": 23.9},
        {"suspended_s": 1},
        {"peak_mib": None},
    ],
)
def test_nobody_is_named_on_weak_evidence_or_below_a_bound(fields: dict[str, Any]) -> None:
    assert "filled" in one("COL001", PARKED | {"peak_mib": 2048}).evidence
    assert "never used" in one("COL001", PARKED | {"peak_mib": 2047}).evidence
    assert none("COL001", PARKED | fields)


def test_a_run_with_unknown_memory_cannot_be_judged() -> None:
    answered, _ = ask("COL001", PARKED, PARKED | {"peak_mib": None})
    assert (answered.rows, answered.judged) == (2, 1)


def test_bounds_of_zero_name_nobody_without_hours() -> None:
    assert none("COL001", PARKED | {"allocated": 0.0}, bounds={"min_gpu_hours": 0.0})


def test_hostile_names_are_not_in_its_words() -> None:
    assert harmless("COL001", PARKED)


def test_a_store(tmp_path: Path) -> None:
    times = (900.0, 1800.0, 2700.0, 3600.0)
    low = {"min_gpu_hours": 0.5}
    parked = stored(tmp_path / "a", [run("1")], busy(*times, util=0.0, sm=0.0, mib=30_000))
    assert [one.gpu_hours for one in audited(parked, "COL001", 0.0, 3600.0, bounds=low)] == [1.0]
    served = [*busy(*times[:3], util=0.0, sm=0.0, mib=30_000), *busy(times[3], util=1.0, sm=0.1, mib=30_000)]
    assert audited(stored(tmp_path / "b", [run("1")], served), "COL001", 0.0, 3600.0, bounds=low) == []

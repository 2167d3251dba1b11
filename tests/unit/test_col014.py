# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.core.model import Gres
from slurm_colloc.core.usage_model import ProcessKind
from tests.unit.asked import ask, none, one
from tests.unit.golden import Printed
from tests.unit.made import device, process, run, seen
from tests.unit.stored import SHARES, stored
from tests.unit.test_audit import audited

# A day of a quarter of a GPU, two hours of it outside MPS; how its use was split does not matter.
BESIDE: dict[str, Any] = {
    "shown": "mps:25",
    "kind": "mps",
    "whole": False,
    "gpus": 0.25,
    "blocked": None,
    "allocated": 6.0,
    "direct_s": 7200.0,
    "methods": ["split by memory"],
    "strong": False,
}


def test_what_it_says(printed: Printed) -> None:
    found = one("COL014", BESIDE, BESIDE | {"direct_s": 0.0})
    assert (found.gpu_hours, found.user) == (2.0, "ann")
    printed("rules", found.evidence, case="COL014")
    one("COL014", BESIDE | {"shown": "mps:h100:25"})


@pytest.mark.parametrize(
    "fields",
    [
        # no promise of MPS
        {"shown": "gpu:h100:1"},
        {"shown": "shard:2"},
        {"shown": "gpu:mps:1"},
        {"direct_s": 0.0},
        {"direct_s": None},
        {"direct_s": 3599.0},
        {"coverage_pct": None},
        {"coverage_pct": 59.0},
    ],
)
def test_nobody_is_named_on_weak_evidence_or_below_a_bound(fields: dict[str, Any]) -> None:
    one("COL014", BESIDE)
    assert none("COL014", BESIDE | fields)


def test_a_look_at_the_gpu_is_no_harm() -> None:
    look = BESIDE | {"direct_s": 590.0}
    assert none("COL014", *[look] * 100)
    one("COL014", *[look] * 100, bounds={"direct_min": 9.0})
    one("COL014", look, bounds={"direct_min": 9.0, "min_hours": 0.1})
    assert none("COL014", BESIDE | {"direct_s": 0.0}, bounds={"direct_min": 0.0, "min_hours": 0.0})


def test_only_runs_with_mps_are_judged() -> None:
    answered, _ = ask("COL014", BESIDE, {}, BESIDE | {"direct_s": None})
    assert (answered.rows, answered.judged) == (3, 1)


def test_a_store(tmp_path: Path) -> None:
    half = (Gres("mps", "", 50),)
    clients = [process("1", 7, kind=ProcessKind.MPS_CLIENT), process("", 5, kind=ProcessKind.MPS_SERVER)]
    beside = [*clients, process("2", 8)]
    rounds = [seen(at_s, [device()], beside, interval_s=900.0) for at_s in (900.0, 1800.0, 2700.0, 3600.0)]
    store = stored(tmp_path, [run("1", gres=half), run("2", gres=half, user="bob")], rounds, SHARES)
    (found,) = audited(store, "COL014", 0.0, 3600.0)
    assert (found.user, found.gpu_hours) == ("bob", 1.0)

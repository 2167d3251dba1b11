# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from typing import Any

import pytest

from tests.unit.asked import ask, none, one
from tests.unit.audited_site import day_of, found, sacct_text, tres
from tests.unit.golden import Printed

# A day of one GPU and half of a node's memory.
GREEDY = {"mem_given_mib": 512_000, "host_mem_mib": 40_960}


def test_memory_that_was_held_and_never_used(printed: Printed) -> None:
    answered, (finding,) = ask("COL009", GREEDY, {})
    assert (answered.judged, finding.gpu_hours, finding.subject) == (2, 24.0, "ann")
    printed("rules", finding.evidence)


@pytest.mark.parametrize(
    ("fields", "settings"),
    [
        # a node's share and a tenth of it
        ({"mem_given_mib": 137_500}, {}),
        ({"gpus": 4.0, "devices": 4, "allocated": 96.0}, {}),
        ({"allocated": 23.9}, {}),
        ({}, {"min_gpu_hours": 24.1}),
        ({}, {"mem_per_gpu_mib": 512_000.0}),
        ({}, {"over_node_pct": 500.0}),
        ({"host_mem_mib": 409_600}, {}),
        # the fullest of two nodes, as if both were as full
        ({"nodes": 2, "host_mem_mib": 204_800}, {}),
        ({}, {"used_below_pct": 8.0}),
    ],
)
def test_bounds(fields: dict[str, Any], settings: dict[str, float]) -> None:
    one("COL009", GREEDY)
    assert none("COL009", GREEDY | fields, bounds=settings)


@pytest.mark.parametrize(
    "fields",
    [
        {"host_mem_mib": None},
        {"host_pct": 59.0},
        {"host_pct": None},
        {"mem_given_mib": None},
        {"nodes": None},
        {"mem_per_gpu_mib": None},
        {"gpus": None, "allocated": None},
        {"allocated": 0.0},
        {"whole": False, "gpus": 1 / 7},
    ],
)
def test_nobody_is_named_on_weak_evidence(fields: dict[str, Any]) -> None:
    answered, said = ask("COL009", GREEDY | fields)
    assert (answered.judged, said) == (0, [])


@pytest.mark.parametrize("fields", [{"state": "FAILED"}, {"state": "RUNNING", "end_s": None}, {"start_s": -9}])
def test_what_may_have_used_more_before_or_later_is_not_judged(fields: dict[str, Any]) -> None:
    assert none("COL009", GREEDY | fields)
    one("COL009", GREEDY | fields, bounds={"used_below_pct": 100.0})


def test_a_site_may_ask_for_what_was_held_alone(printed: Printed) -> None:
    blind: dict[str, Any] = GREEDY | {
        "host_mem_mib": None,
        "coverage_pct": None,
        "host_pct": None,
        "methods": [],
        "strong": False,
    }
    finding = one("COL009", blind, bounds={"used_below_pct": 100.0, "mem_per_gpu_mib": 256_000.0})
    printed("rules", finding.evidence, case="COL009")


def test_runs_of_a_store(tmp_path: Path, printed: Printed) -> None:
    text = sacct_text({"AllocTRES": tres(12, "512G")}, {"AllocTRES": tres(12, "64G"), "User": "bob"})
    (finding,) = found(tmp_path, "COL009", text, day_of("1", 4.0, 30_000))
    assert (finding.user, finding.gpu_hours) == ("ann", 24.0)
    printed("rules", finding.evidence, case="COL009")
    # Used once, it was needed.
    assert found(tmp_path, "COL009", text, day_of("1", 4.0, 500_000)) == []

# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from typing import Any

import pytest

from tests.unit.asked import ask, none, one
from tests.unit.audited_site import day_of, found, sacct_text, tres
from tests.unit.golden import Printed

# A day of one GPU and half of a node's cores.
GREEDY = {"cpus": 48, "cores": 4.0}


def test_cores_that_were_held_and_left_idle(printed: Printed) -> None:
    answered, (finding,) = ask("COL008", GREEDY, {})
    assert (answered.judged, finding.gpu_hours, finding.subject, finding.about) == (2, 24.0, "ann", "user")
    printed("rules", finding.evidence)


@pytest.mark.parametrize(
    ("fields", "settings"),
    [
        # a node's share and half of it again: 18
        ({"cpus": 18}, {}),
        ({"cpus": 48, "gpus": 4.0, "devices": 4, "allocated": 96.0}, {}),
        ({"allocated": 23.9}, {}),
        ({}, {"min_gpu_hours": 24.1}),
        ({}, {"cores_per_gpu": 48.0}),
        ({}, {"over_node_pct": 400.0}),
        # what was used, and what nobody saw, which may have been
        ({"cores": 38.4}, {}),
        ({"cores": 20.0, "host_pct": 61.0}, {}),
        ({}, {"busy_below_pct": 8.0}),
    ],
)
def test_bounds(fields: dict[str, Any], settings: dict[str, float]) -> None:
    one("COL008", GREEDY)
    assert none("COL008", GREEDY | fields, bounds=settings)


@pytest.mark.parametrize(
    "fields",
    [
        {"cores": None},
        {"host_pct": 59.0},
        # not on each of its nodes
        {"host_pct": None},
        # it has just begun
        {"end_s": None, "span_s": 600.0},
        {"cpus": None},
        {"cpus_per_gpu": None},
        {"gpus": None, "allocated": None},
        {"gpus": 0.0},
        {"allocated": 0.0},
        # a slice needs a core or two whatever its size
        {"whole": False, "gpus": 1 / 7, "cpus": 4},
    ],
)
def test_nobody_is_named_on_weak_evidence(fields: dict[str, Any]) -> None:
    answered, said = ask("COL008", GREEDY | fields)
    assert (answered.judged, said) == (0, [])


def test_a_site_may_ask_for_what_was_held_alone(printed: Printed) -> None:
    blind: dict[str, Any] = GREEDY | {
        "cores": None,
        "host_pct": None,
        "coverage_pct": None,
        "methods": [],
        "strong": False,
    }
    finding = one("COL008", blind, bounds={"busy_below_pct": 100.0})
    printed("rules", finding.evidence, case="COL008")
    assert none("COL008", blind)


def test_a_bound_of_the_site_needs_no_pool(printed: Printed) -> None:
    finding = one("COL008", GREEDY | {"cpus_per_gpu": None}, bounds={"cores_per_gpu": 16.0})
    printed("rules", finding.evidence)


def test_hours_weigh(printed: Printed) -> None:
    # 48 for a day and 24 for three days.
    finding = one("COL008", GREEDY, GREEDY | {"cpus": 24, "cores": 0.0, "allocated": 72.0})
    printed("rules", finding.evidence)


def test_bounds_of_zero_name_nobody_without_hours() -> None:
    assert none("COL008", GREEDY | {"allocated": 0.0}, bounds={"min_gpu_hours": 0.0, "busy_below_pct": 100.0})


def test_cores_of_a_node_that_nobody_looked_at_may_have_been_busy(tmp_path: Path, printed: Printed) -> None:
    text = sacct_text({"AllocTRES": tres(96, "64G", gpus=2, nodes=2), "NodeList": "g[1-2]"})
    first = day_of("1", 4.0, 1000)
    second = [one._replace(node="g2", devices=(one.devices[0]._replace(uuid="GPU-2"),)) for one in first]
    second = [one._replace(processes=(one.processes[0]._replace(uuid="GPU-2"),)) for one in second]
    (finding,) = found(tmp_path / "both", "COL008", text, [*first, *second])
    printed("rules", finding.evidence)
    blind = [one._replace(hosts=()) for one in second]
    assert found(tmp_path / "one", "COL008", text, [*first, *blind]) == []
    # Nor is a node known by the first ten of its hours.
    assert found(tmp_path / "part", "COL008", text, [*first, *second[:20], *blind[20:]]) == []


def test_runs_of_a_store(tmp_path: Path, printed: Printed) -> None:
    text = sacct_text({"AllocTRES": tres(48, "64G")}, {"AllocTRES": tres(12, "64G"), "User": "bob"})
    (finding,) = found(tmp_path, "COL008", text, [*day_of("1", 4.0, 1000), *day_of("2", 4.0, 1000)][:48])
    assert (finding.user, finding.gpu_hours) == ("ann", 24.0)
    printed("rules", finding.evidence, case="COL008")
    assert found(tmp_path, "COL008", text, config=None) == []

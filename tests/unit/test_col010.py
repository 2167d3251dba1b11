# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from typing import Any

import pytest

from tests.unit.asked import ask, none, one
from tests.unit.audited_site import SITE, found, sacct_text, tres
from tests.unit.made import MPS_POOL, site

# A day of eight GPUs, one on each of eight nodes of eight.
SPREAD = {"devices": 8, "gpus": 8.0, "nodes": 8, "cpus": 64, "mem_given_mib": 512_000, "allocated": 192.0}


def test_gpus_on_more_nodes_than_needed() -> None:
    answered, (finding,) = ask("COL010", SPREAD, SPREAD | {"nodes": 1})
    assert (answered.judged, finding.gpu_hours, finding.subject) == (2, 192.0, "ann")
    assert finding.evidence == (
        "192 GPU-h in 1 run (job 1) on 8 nodes in all, where 1 hold as many GPUs, cores and as much memory; the bound "
        "is 24 GPU-h"
    )


@pytest.mark.parametrize(
    ("fields", "settings"),
    [
        ({"nodes": 1}, {}),
        # nine GPUs fit no node of eight
        ({"devices": 9, "gpus": 9.0, "nodes": 2}, {}),
        # cores, or memory, of eight nodes
        ({"cpus": 7 * 96 + 1}, {}),
        ({"mem_given_mib": 7_000_001}, {}),
        ({"allocated": 23.9}, {}),
        ({}, {"min_gpu_hours": 192.5}),
        ({}, {"gpus_per_node": 1.0}),
    ],
)
def test_bounds(fields: dict[str, Any], settings: dict[str, float]) -> None:
    one("COL010", SPREAD)
    assert none("COL010", SPREAD | fields, bounds=settings)


@pytest.mark.parametrize(
    "fields",
    [
        *({name: None} for name in ("node_gpus", "node_cpus", "node_mem_mib", "cpus", "mem_given_mib", "nodes")),
        {"allocated": None},
        {"allocated": 0.0},
        {"whole": False},
    ],
)
def test_nobody_is_named_where_it_is_not_known_what_nodes_hold(fields: dict[str, Any]) -> None:
    answered, said = ask("COL010", SPREAD | fields)
    assert (answered.judged, said) == (0, [])


def test_it_needs_no_samples() -> None:
    one("COL010", SPREAD | {"coverage_pct": None, "methods": [], "strong": False, "util_used": None, "sm_used": None})


def test_names_of_users_stay_what_they_are() -> None:
    name = "=cmd|'<b>\r\n\u202e\x1b[31m"
    finding = one("COL010", SPREAD | {"user": name, "job_name": name})
    assert (finding.subject, finding.user) == (name, name)
    assert name not in finding.evidence


def test_runs_of_a_store(tmp_path: Path) -> None:
    two = tres(24, "128G", gpus=2, nodes=2)
    text = sacct_text(
        {"AllocTRES": two, "NodeList": "g[1-2]"},
        {"AllocTRES": two.replace("node=2", "node=1"), "User": "bob"},
        {"AllocTRES": two, "User": "eve", "Partition": "elsewhere"},
        {"AllocTRES": two, "User": "dan", "Cluster": "d"},
    )
    (finding,) = found(tmp_path, "COL010", text)
    assert (finding.user, finding.gpu_hours) == ("ann", 48.0)
    assert "on 2 nodes in all, where 1 hold as many" in finding.evidence
    assert found(tmp_path, "COL010", text, config=None) == []


def test_of_nodes_that_differ_the_smallest_counts(tmp_path: Path) -> None:
    small = MPS_POOL._replace(name="small", nodes="s1", gpus_per_node=1, cpus_per_node=96, mem_per_node_mib=1_048_576)
    text = sacct_text({"AllocTRES": tres(24, "128G", gpus=2, nodes=2)})
    assert found(tmp_path, "COL010", text, config=site(*SITE.pool, small)) == []
    # What no pool says is not known, and what is of another GPU or partition does not matter.
    for other, expected in ({"cpus_per_node": 0}, 0), ({"gpu_type": "a100"}, 1), ({"partitions": ("far",)}, 1):
        config = site(*SITE.pool, small._replace(**other))
        assert len(found(tmp_path, "COL010", text, config=config)) == expected


def test_what_the_accounting_alone_tells_has_no_coverage() -> None:
    finding = one("COL010", SPREAD)
    assert (finding.coverage_pct, finding.methods) == (None, ())

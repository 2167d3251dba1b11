# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.core.model import Gres
from tests.unit.asked import ask, none, one
from tests.unit.golden import Printed
from tests.unit.made import device, process, run, seen
from tests.unit.stored import SHARES, stored
from tests.unit.test_audit import audited

# A day of a quarter of a GPU of 80,000 MiB, with half of its memory; how its use was split does not matter.
OVER: dict[str, Any] = {
    "shown": "shard:2",
    "kind": "shard",
    "whole": False,
    "gpus": 0.25,
    "blocked": None,
    "allocated": 6.0,
    "peak_mib": 40_960,
    "methods": ["split by shares"],
    "strong": False,
    "coverage_pct": 10.0,
}


def test_what_it_says(printed: Printed) -> None:
    found = one("COL010", OVER | {"peak_mib": 30_000}, OVER, OVER | {"peak_mib": 20_000})
    assert (found.gpu_hours, found.user, found.judged) == (12.0, "ann", 3)
    printed("rules", found.evidence, found.remedy, case="COL010")


@pytest.mark.parametrize(
    "fields",
    [
        # a whole GPU and a slice are nobody else's
        {"shown": "gpu:h100:1"},
        {"shown": "gpu:shard:1"},
        {"gpus": None},
        {"gpu_mem_mib": None},
        {"peak_mib": None},
        {"peak_mib": 22_000},
        {"gpus": 0.5},
    ],
)
def test_nobody_is_named_on_weak_evidence_or_below_a_bound(fields: dict[str, Any]) -> None:
    one("COL010", OVER)
    assert none("COL010", OVER | fields)


def test_bounds() -> None:
    one("COL010", OVER | {"peak_mib": 22_001})
    assert none("COL010", OVER, bounds={"over_pct": 105.0})
    assert none("COL010", OVER, bounds={"min_gpu_hours": 6.1})
    one("COL010", OVER | {"shown": "mps:h100:25"})


def test_only_shares_of_a_known_size_are_judged() -> None:
    answered, _ = ask("COL010", OVER, {}, OVER | {"gpus": None})
    assert (answered.rows, answered.judged) == (3, 1)


@pytest.mark.parametrize("name", ["mps", "shard"])
def test_a_store(tmp_path: Path, name: str) -> None:
    (pool,) = (pool for pool in SHARES.pool if getattr(pool, "mps_per_gpu" if name == "mps" else "shards_per_gpu"))
    half = (Gres(name, "", (pool.mps_per_gpu if name == "mps" else pool.shards_per_gpu) // 2),)
    node = pool.nodes.partition("[")[0]
    rows = [run("1", gres=half, node_list=node), run("2", gres=half, user="bob", node_list=node)]
    assert pool.gpu_mem_mib
    unit = device(mem_total_mib=pool.gpu_mem_mib, gpu_mem_used_mib=pool.gpu_mem_mib)
    processes = [process("1", 7, gpu_mem_used_mib=1000), process("2", 8, gpu_mem_used_mib=pool.gpu_mem_mib - 1000)]
    rounds = [seen(at_s, [unit], processes, interval_s=900.0, node=node) for at_s in (900.0, 1800.0, 2700.0, 3600.0)]
    (found,) = audited(stored(tmp_path, rows, rounds, SHARES), "COL010", 0.0, 3600.0, site=SHARES)
    assert (found.user, found.gpu_hours) == ("bob", 0.5)

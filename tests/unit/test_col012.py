# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.core.usage_model import HostSample
from slurm_colloc.store.ingest import keep_text
from slurm_colloc.store.store import Store
from tests.unit.asked import ask, none, one
from tests.unit.golden import Printed
from tests.unit.made import device, host, process, seen
from tests.unit.stored import sampled
from tests.unit.test_audit import audited

STARVED: dict[str, Any] = {"cores": 7.6, "cpus": 8, "sm_used": 4.8, "util_used": 12.0}


def test_what_it_says(printed: Printed) -> None:
    found = one("COL012", STARVED)
    assert (found.gpu_hours, found.user) == (24.0, "ann")
    reading = {"cores": 1.0, "read_mib": 600.0 * 86_400}
    others = one("COL012", STARVED | reading), one("COL012", STARVED, STARVED | reading)
    printed("rules", *(finding.evidence for finding in (found, *others)), case="COL012")


@pytest.mark.parametrize(
    "fields",
    [
        # neither narrow
        {"cores": 7.1},
        {"cores": None},
        {"cpus": None},
        {"cpus": 0, "cores": 0.0},
        {"cores": 1.0, "read_mib": 499.0 * 86_400},
        {"cores": 1.0, "read_mib": None},
        {"cores": 1.0, "read_mib": 600.0 * 86_400, "nodes": 2},
        {"cores": 1.0, "read_mib": 600.0 * 86_400, "nodes": None},
        # busy
        {"sm_used": 9.6},
        # its GPU was at work, however little of it: a loop that waits for the GPU keeps a core busy, too
        {"util_used": 16.8},
        {"cpus": 1, "cores": 1.0, "util_used": 23.0, "sm_used": 0.02},
        # nothing ran at all: another rule's
        {"sm_used": 0.0, "util_used": 0.0},
        {"strong": False},
        {"coverage_pct": 59.0},
        # the host was not looked at for as long, or not on each node
        {"host_pct": 59.0},
        {"host_pct": None},
        {"coverage_pct": None},
        {"sm_used": None},
        {"util_used": None, "util_measured": 0.0},
        {"sm_measured": 14.0},
        {"util_measured": 14.0},
        {"blackout_s": 10.0},
        {"allocated": None},
        {"suspended_s": 1},
        {"span_s": 599.0},
        {"sm_measured": 23.9},
    ],
)
def test_nobody_is_named_on_weak_evidence_or_below_a_bound(fields: dict[str, Any]) -> None:
    one("COL012", STARVED)
    assert none("COL012", STARVED | fields)


def test_bounds() -> None:
    one("COL012", STARVED | {"cores": 7.1}, bounds={"cores_pct": 88.0})
    one("COL012", STARVED | {"util_used": 20.0}, bounds={"util_below_pct": 90.0})
    one("COL012", STARVED | {"sm_used": 10.0}, bounds={"below_pct": 45.0})
    one("COL012", STARVED | {"cores": 0.0}, bounds={"read_mib_s": 0.01})
    assert none("COL012", STARVED, bounds={"min_gpu_hours": 24.1})
    # A bound of zero finds what there is, and not what there is not.
    assert none("COL012", STARVED | {"cores": 7.1, "read_mib": 0.0}, bounds={"read_mib_s": 0.0})


def test_a_run_whose_host_nobody_knows_cannot_be_judged() -> None:
    answered, _ = ask("COL012", STARVED, STARVED | {"cores": None, "read_mib": None})
    assert (answered.rows, answered.judged) == (2, 1)


def test_a_store(tmp_path: Path, printed: Printed) -> None:
    low = device(gpu_util_pct=40.0, sm_active_pct=10.0)
    times = (900.0, 1800.0, 2700.0, 3600.0)
    names = "JobIDRaw|JobID|Cluster|User|Account|State|Submit|Start|End|AllocTRES|NodeList|JobName"

    def found(name: str, one: HostSample, given: str = "cpu=4,mem=8G,node=1,") -> list[str]:
        text = tmp_path / f"{name}.txt"
        text.write_text(f"{names}\n1|1|c|ann|lab|COMPLETED|0|1|3600|{given}gres/gpu:h100=1,gres/gpu=1|g1|train\n")
        store = Store(str(tmp_path / name))
        keep_text(store, "sacct", str(text), (), None, 1e6, "", "c")
        sampled(store, [seen(at_s, [low], [process("1", 7)], (), [one], 900.0) for at_s in times])
        return [one.evidence for one in audited(store, "COL012", 0.0, 3600.0, bounds={"min_gpu_hours": 0.5})]

    (busy,) = found("a", host("1", cpu_s=3500.0))
    assert found("b", host("1", cpu_s=900.0)) == []
    assert found("c", host("1", cpu_s=3500.0), given="") == []
    (reading,) = found("d", host("1", cpu_s=10.0, read_mib=600.0 * 900))
    printed("rules", busy, reading, case="COL012")

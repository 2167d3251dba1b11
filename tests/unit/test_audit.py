# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.accounting.store import Store
from slurm_colloc.accounting.strays import stray_use
from slurm_colloc.accounting.sweep import Window, sweep
from slurm_colloc.audit.col001_zero_use import find
from slurm_colloc.audit.rules import RULES, run_rules
from slurm_colloc.config import Audit
from slurm_colloc.measured import JobUsage, StrayUse
from tests.unit.made import device, near, process, run, seen, usage
from tests.unit.stored import stored

BOUNDS = Audit(min_coverage_pct=60.0, zero_use_min_gpu_hours=24.0)


def idle(**fields: Any) -> JobUsage:
    zero = usage(allocated_gpu_hours=24.0, util_measured_gpu_hours=24.0, util_used_gpu_hours=0.0)
    return zero._replace(sm_measured_gpu_hours=24.0, sm_used_gpu_hours=0.0)._replace(**fields)


def test_a_finding() -> None:
    found_all = run_rules([idle(job_id="7")], [], BOUNDS)
    assert found_all.runs_judged == 1
    (found,) = found_all.findings
    assert (found.code, found.severity, found.subject, found.reproduce) == ("COL001", "warning", "ann", "colloc job 7")
    assert found.evidence == (
        "24 sampled GPU-h in 1 run (job 7) without one kernel seen, sampled for at least 100 % of the time; "
        "the site's bound is 24 GPU-h"
    )
    assert list(RULES) == ["COL001", "COL002"]


def test_hours_of_a_user_add_up_and_users_stay_apart() -> None:
    half = idle(allocated_gpu_hours=16.0, util_measured_gpu_hours=12.0, sm_measured_gpu_hours=8.0, coverage_pct=75.0)
    runs = [half, half._replace(job_id="2"), half._replace(user="bob")]
    (found,) = find(runs, BOUNDS)
    assert found.subject == "ann"
    assert found.evidence == (
        "24 sampled GPU-h in 2 runs (job 1, 2) without one kernel seen, sampled for at least 75 % of the time; "
        "the site's bound is 24 GPU-h"
    )


def test_many_jobs_are_cut() -> None:
    (found,) = find([idle(job_id=str(number)) for number in range(7)], BOUNDS)
    assert "in 7 runs (job 0, 1, 2, 3, 4, ...)" in found.evidence


@pytest.mark.parametrize(
    "fields",
    [
        {"util_used_gpu_hours": 0.0001},
        {"sm_used_gpu_hours": 0.0001},
        # not measured at all is not zero
        {"util_used_gpu_hours": None, "sm_used_gpu_hours": None, "methods": ()},
        # weaker than a measurement
        {"methods": ("split by memory",)},
        {"methods": ("measured", "split equally")},
        {"methods": ("job mean by source",), "coverage_pct": None},
        # too little seen
        {"util_measured_gpu_hours": 14.0, "sm_measured_gpu_hours": 14.0, "coverage_pct": 58.3},
        # sampled all the time, but the counters were there for a minute of it only
        {
            "util_measured_gpu_hours": 0.5,
            "sm_measured_gpu_hours": 0.0,
            "sm_used_gpu_hours": None,
            "coverage_pct": 100.0,
        },
        # not enough of what was held was sampled to say "24 hours"
        {"allocated_gpu_hours": 25.0, "util_measured_gpu_hours": 23.0, "sm_measured_gpu_hours": 20.0},
        # too little held, or of a size that nobody knows
        {"allocated_gpu_hours": 23.9, "util_measured_gpu_hours": 23.9, "sm_measured_gpu_hours": 23.9},
        {"allocated_gpu_hours": None},
        {"allocated_gpu_hours": 0.0},
    ],
)
def test_nobody_is_named_on_weak_evidence(fields: dict[str, Any]) -> None:
    assert find([idle(**fields)], BOUNDS) == []


def test_one_counter_is_enough() -> None:
    assert len(find([idle(util_used_gpu_hours=None, util_measured_gpu_hours=0.0)], BOUNDS)) == 1
    assert len(find([idle(sm_used_gpu_hours=None, sm_measured_gpu_hours=0.0)], BOUNDS)) == 1


def test_bounds_of_zero_name_nobody_without_hours() -> None:
    assert find([idle(allocated_gpu_hours=0.0)], Audit(0.0, 0.0)) == []


def test_what_can_be_judged_is_counted() -> None:
    busy = idle(util_used_gpu_hours=5.0)
    unseen = idle(methods=(), util_used_gpu_hours=None, sm_used_gpu_hours=None)
    by_mean = idle(methods=("job mean by source",))
    assert run_rules([busy, unseen, by_mean], [], BOUNDS) == ((), 1)


def strays(store: Store, since_s: float) -> list[StrayUse]:
    with store.connect(since_s, 1e6) as database:
        sweep(database, store, Window(since_s, 1e6, 1e6))
        return stray_use(database)


def test_processes_outside_any_job_name_their_node(tmp_path: Path) -> None:
    stranger = [process("", 7, "GPU-1"), process("1", 8)]
    rounds = [seen(at_s, [device(), device("GPU-1")], stranger, interval_s=900.0) for at_s in (900.0, 1800.0, 2700.0)]
    rounds += [seen(3600.0, [device(), device("GPU-1")], [process("1", 8)], interval_s=900.0)]
    store = stored(tmp_path, [run()], rounds)
    (stray,) = strays(store, 450.0)
    assert stray == StrayUse("c", "g1", 1, near((450 + 900 + 900) / 3600), 2700.0)
    assert strays(store, 2700.0) == []
    bounds = BOUNDS._replace(outside_jobs_min_gpu_hours=0.5)
    (found,) = run_rules([], [stray], bounds).findings
    assert (found.code, found.subject) == ("COL002", "g1")
    assert found.evidence == (
        "processes outside any job for 0.625 GPU-h on 1 of its GPUs (slices); the site's bound is 0.5 GPU-h"
    )
    for bound in (0.7, 0.0):
        assert run_rules([], [stray], bounds._replace(outside_jobs_min_gpu_hours=bound)).findings == ()

# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.core.model import Gres
from slurm_colloc.core.usage_model import NodeSample
from tests.unit.asked import ask, none, one
from tests.unit.golden import Printed
from tests.unit.made import device, process, run, seen
from tests.unit.stored import stored
from tests.unit.test_audit import audited

# Of two GPUs of a day one was never opened.
HALF: dict[str, Any] = {
    "devices": 2,
    "gpus": 2.0,
    "blocked": 2.0,
    "allocated": 48.0,
    "util_measured": 48.0,
    "sm_measured": 48.0,
    "held_idle_hours": 24.0,
}


def test_what_it_says(printed: Printed) -> None:
    answered, (found,) = ask("COL001", HALF)
    assert (answered.judged, found.gpu_hours, found.user) == (1, 24.0, "ann")
    printed("rules", found.evidence, case="empty")


@pytest.mark.parametrize(
    "fields",
    [
        {"held_idle_hours": 23.9},
        {"held_idle_hours": 0.0},
        # no list of processes, no statement
        {"held_idle_hours": None},
        {"strong": False},
        {"coverage_pct": 59.0},
        {"coverage_pct": None},
        {"gpus": None, "allocated": None},
        {"allocated": 0.0},
        {"suspended_s": 1},
        {"span_s": 599.0},
        # programs that end between two readings were there, and a neighbour's work hides it
        {"shared_hours": 0.1},
        # a start-up, however long: less than a fifth
        {"held_idle_hours": 24.0, "allocated": 121.0, "util_measured": 121.0, "sm_measured": 121.0},
        # since its last activity is no time before it, and a minute is no tail
        {"tail_s": 60.0},
    ],
)
def test_nobody_is_named_on_weak_evidence_or_below_a_bound(fields: dict[str, Any]) -> None:
    one("COL001", HALF)
    assert none("COL001", HALF | fields)


def test_bounds() -> None:
    one("COL001", HALF | {"held_idle_hours": 5.0}, bounds={"min_gpu_hours": 5.0, "empty_pct": 10.4})
    assert none("COL001", HALF | {"held_idle_hours": 5.0}, bounds={"min_gpu_hours": 5.0, "empty_pct": 11.0})
    one("COL001", HALF | {"span_s": 60.0}, bounds={"shortest_min": 1.0})
    assert none("COL001", {}, bounds={"min_gpu_hours": 0.0, "empty_pct": 0.0})


def test_of_slices_and_shares_the_runs_part_counts() -> None:
    # A day of a seventh: samples know slices by compute slices, the site's convention says an eighth.
    piece = {
        "gpus": 0.125,
        "blocked": 1 / 7,
        "allocated": 3.0,
        "held_idle_hours": 24 / 7,
        "util_used": None,
        "sm_used": None,
    }
    assert one("COL001", piece, bounds={"min_gpu_hours": 3.0}).gpu_hours == pytest.approx(3.0)
    # A day of a quarter of a GPU, half of it without a process: 12 hours of the whole GPU.
    share = {"gpus": 0.25, "blocked": None, "allocated": 6.0, "held_idle_hours": 12.0, "sm_measured": 6.0}
    assert one("COL001", share, bounds={"min_gpu_hours": 3.0}).gpu_hours == 3.0


def test_a_run_at_zero_use_that_counters_cannot_judge_is_named_here(printed: Printed) -> None:
    # A slice has no GPU_UTIL, and its SM activity may not be known.
    blind = {"util_used": None, "sm_used": None, "util_measured": 0.0, "sm_measured": 0.0, "tail_s": None}
    found = one("COL001", blind | {"held_idle_hours": 24.0})
    printed("rules", found.evidence)


def half_used(stray: bool = False, util: float = 0.0) -> list[NodeSample]:
    first, second = device(), device("GPU-1", gpu_util_pct=util, sm_active_pct=util)
    processes = [process("1", 7), *([process("", 9, "GPU-1")] if stray else [])]
    given = [("GPU-0", "1"), ("GPU-1", "1")]
    return [seen(at_s, [first, second], processes, given, interval_s=900.0) for at_s in (900.0, 1800.0, 2700.0, 3600.0)]


def test_a_store(tmp_path: Path, printed: Printed) -> None:
    two = [run("1", gres=(Gres("gpu", "h100", 2),))]
    low = {"min_gpu_hours": 1.0}
    (found,) = audited(stored(tmp_path / "a", two, half_used()), "COL001", 0.0, 3600.0, bounds=low)
    printed("rules", found.evidence, case="empty")
    # A process of nobody's may be its own, and a GPU at work had a process.
    assert audited(stored(tmp_path / "b", two, half_used(stray=True)), "COL001", 0.0, 3600.0, bounds=low) == []
    assert audited(stored(tmp_path / "c", two, half_used(util=9.0)), "COL001", 0.0, 3600.0, bounds=low) == []


# Of four GPUs of a day two had a program that never used them.
SOME: dict[str, Any] = {
    "devices": 4,
    "gpus": 4.0,
    "blocked": 4.0,
    "allocated": 96.0,
    "util_measured": 96.0,
    "sm_measured": 96.0,
    "idle_units": 2.0,
    "idle_units_hours": 48.0,
    "fewer": True,
    "shown": "gpu:h100:4",
}


def test_gpus_that_idle_beside_others_of_their_job(printed: Printed) -> None:
    found = one("COL001", SOME)
    assert found.gpu_hours == 48.0
    # One that was never opened counts once, and in a tail all of them are idle.
    assert one("COL001", SOME | {"held_idle_hours": 24.0}).gpu_hours == 48.0
    assert one("COL001", SOME | {"tail_s": 43_200.0}).gpu_hours == 48.0 + 24.0
    # Who opens one of four has no data to prepare elsewhere.
    empty: tuple[dict[str, Any], ...] = (
        {"idle_units": 3.0, "idle_units_hours": 72.0, "held_idle_hours": 72.0},
        {"held_idle_hours": 60.0},
    )
    for fields in empty:
        told = one("COL001", SOME | fields).remedy
        assert (" in place of gpu:h100:4" in told, "prepare data" in told) == (True, False)
    both = one("COL001", SOME | {"held_idle_hours": 48.0 + 24.0})
    assert (both.gpu_hours, "prepare data" in both.remedy) == (72.0, True)
    for fields in ({"idle_units_hours": 23.9}, {"fewer": False}, {"strong": False}, {"suspended_s": 1}):
        assert none("COL001", SOME | fields)
    running = one("COL001", SOME | {"end_s": None}, about="jobs")
    assert (running.subject, running.gpu_hours, running.idle_since_s) == ("1", 48.0, None)
    printed("rules", found.evidence, running.evidence, running.remedy)
    assert none("COL001", SOME | {"end_s": None, "idle_units_hours": 7.9}, about="jobs")


@pytest.mark.parametrize(("second", "named"), [(0.0, True), (0.05, True), (9.0, False)])
def test_each_gpu_of_a_store_by_itself(tmp_path: Path, second: float, named: bool) -> None:
    devices = [device(), device("GPU-1", gpu_util_pct=second, sm_active_pct=0.0)]
    both = [process("1", 7), process("1", 8, "GPU-1", gpu_mem_used_mib=500)]
    given = [("GPU-0", "1"), ("GPU-1", "1")]
    rounds = [seen(at_s, devices, both, given, interval_s=900.0) for at_s in (900.0, 1800.0, 2700.0, 3600.0)]
    store = stored(tmp_path, [run("1", gres=(Gres("gpu", "h100", 2),))], rounds)
    found = audited(store, "COL001", 0.0, 3600.0, bounds={"min_gpu_hours": 0.5})
    assert [one.gpu_hours for one in found] == ([1.0] if named else [])

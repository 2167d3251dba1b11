# SPDX-License-Identifier: Apache-2.0
"""COL001, and that an idle run is named by one of COL001, COL004, COL005 and COL006."""

from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.model import Gres
from tests.unit.asked import IDLE, ask, none, one
from tests.unit.made import device, process, run, seen
from tests.unit.stored import stored
from tests.unit.test_audit import audited

PARKED = IDLE | {"peak_mib": 30_000}


@pytest.mark.parametrize("fields", [{"suspended_s": 1}, {"state": "SUSPENDED"}, {"state": "NODE_FAIL"}])
@pytest.mark.parametrize("code", ["COL001", "COL016"])
def test_who_was_suspended_or_lost_his_node_is_not_called_idle(code: str, fields: dict[str, Any]) -> None:
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
    # Where its memory is not known, nobody can say which of them it is.
    for unknown in ({"peak_mib": 4 * 2048, "nodes": None}, {"peak_mib": None}):
        for code in ("COL001", "COL006"):
            answered, said = ask(code, IDLE | contexts | unknown)
            assert (answered.judged, said) == (0, [])
    one("COL001", IDLE | {"nodes": None})


@pytest.mark.parametrize("peak_mib", [None, 0, 2047, 2048, 80_000])
@pytest.mark.parametrize("fields", [{}, {"held_idle_hours": 24.0}, {"tail_s": 80_000.0}])
def test_no_idle_run_is_named_twice(peak_mib: int | None, fields: dict[str, Any]) -> None:
    run = IDLE | fields | {"peak_mib": peak_mib}
    named = sum(not none(code, run) for code in ("COL001", "COL004", "COL005", "COL006"))
    assert named == (peak_mib is not None)


@pytest.mark.parametrize(("code", "run"), [("COL001", IDLE), ("COL006", PARKED)])
def test_what_has_just_begun_is_not_called_idle(code: str, run: dict[str, Any]) -> None:
    # A job of 512 GPUs that loads its model: in four minutes it has more hours than the bound.
    young = run | {"end_s": None, "to_s": 240.0, "span_s": 240.0, "allocated": 34.0}
    young |= {"util_measured": 34.0, "sm_measured": 34.0, "devices": 512, "gpus": 512.0, "nodes": 64}
    young["peak_mib"] = run["peak_mib"] * 8
    answered, said = ask(code, young)
    assert (answered.judged, said) == (0, [])
    one(code, young | {"span_s": 3600.0})
    shortest = {"shortest_min": 4.0}
    one(code, young, bounds=shortest | {"running_min": 4.0})
    # One that ended like this did so.
    one(code, young | {"end_s": 240}, bounds=shortest)


@pytest.mark.parametrize("code", ["COL001", "COL006"])
def test_a_zero_that_nothing_vouches_for_is_held_against_nobody(code: str) -> None:
    slice_ = (IDLE if code == "COL001" else PARKED) | {"whole": False, "util_used": None, "util_measured": 0.0}
    answered, said = ask(code, slice_ | {"blackout_s": None})
    assert (answered.judged, said) == (0, [])


def test_slices_that_read_zero_while_their_card_was_profiled(tmp_path: Path) -> None:
    """The readings that a slice of a job at work gives while a profiler holds the card's counters."""
    day = [run(str(number), gres=(Gres("gpu", "h100_1g.10gb", 1),)) for number in (1, 2)]
    card = {"profile": "1g.10gb", "sm_count": 16, "gpu_util_pct": None, "mem_total_mib": 9728}
    times = (900.0, 1800.0, 2700.0, 3600.0)
    rounds = [
        seen(
            at_s,
            [device("MIG-1", sm_active_pct=0.0, **card), device("MIG-2", sm_active_pct=2.0, **card)],
            [process("1", 7, "MIG-1"), process("2", 8, "MIG-2")],
            interval_s=900.0,
        )
        for at_s in times
    ]
    store = stored(tmp_path, day, rounds)
    low = {"min_gpu_hours": 0.01}
    for code in ("COL001", "COL005", "COL006"):
        assert audited(store, code, 0.0, 3600.0, bounds=low) == []
    # What is above 0 is a measurement.
    (found,) = audited(store, "COL003", 0.0, 3600.0, bounds=low)
    assert [line.job_id for line in found.jobs] == ["2"]


def test_the_counters_are_named() -> None:
    util, both = IDLE | {"sm_used": None, "sm_measured": 0.0}, IDLE
    assert "with no kernel seen (GPU_UTIL 0)," in one("COL001", util).evidence
    assert "with no kernel seen (GPU_UTIL 0, SM activity 0 where known)," in one("COL001", util, both).evidence


def test_of_a_requeued_job_the_run_that_idled_is_counted_and_not_the_one_that_worked(tmp_path: Path) -> None:
    runs = [run("1", end_s=3600, state="PREEMPTED"), run("1", start_s=3600, end_s=7200)]
    rounds = [
        seen(
            at_s,
            [device(gpu_util_pct=load, sm_active_pct=load)],
            [process("1", gpu_mem_used_mib=500)],
            interval_s=900.0,
        )
        for load, first_s in ((0.0, 900), (50.0, 4500))
        for at_s in range(first_s, first_s + 2701, 900)
    ]
    (found,) = audited(stored(tmp_path, runs, rounds), "COL001", 0.0, 7200.0, bounds={"min_gpu_hours": 0.1})
    assert (found.gpu_hours, [line.start_s for line in found.jobs], found.judged) == (1.0, [0.0], 2)


@pytest.mark.parametrize(("code", "run"), [("COL001", IDLE), ("COL006", PARKED)])
def test_what_took_less_than_the_shortest_run_is_not_called_idle(code: str, run: dict[str, Any]) -> None:
    answered, said = ask(code, run | {"span_s": 599.0})
    assert (answered.judged, said) == (0, [])
    one(code, run | {"span_s": 600.0})
    one(code, run | {"span_s": 20.0}, bounds={"shortest_min": 0.0})


def test_an_array_of_short_idle_jobs_adds_up_where_the_site_counts_them() -> None:
    task = IDLE | {"to_s": 120.0, "span_s": 120.0, "allocated": 1 / 30, "util_measured": 1 / 30, "sm_measured": 1 / 30}
    found = one("COL001", *[task] * 1000, bounds={"shortest_min": 2.0})
    assert found.evidence.startswith("33.3 GPU-h in 1000 runs (job ")
    assert len(found.jobs) == 5

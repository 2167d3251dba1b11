# SPDX-License-Identifier: Apache-2.0
"""COL001: runs that never used their GPUs, and what holds for each kind of idleness."""

from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.core.model import Gres
from tests.unit.asked import IDLE, PARKED, ask, none, one
from tests.unit.golden import Printed
from tests.unit.made import device, process, run, seen
from tests.unit.stored import busy, stored
from tests.unit.test_audit import audited


@pytest.mark.parametrize("fields", [{"suspended_s": 1}, {"state": "SUSPENDED"}, {"state": "NODE_FAIL"}])
@pytest.mark.parametrize(("about", "end_s"), [("others", 86_400), ("jobs", None)])
def test_who_was_suspended_or_lost_his_node_is_not_called_idle(
    about: str, end_s: int | None, fields: dict[str, Any]
) -> None:
    idle = IDLE | {"end_s": end_s, "tail_s": 80_000.0}
    one("COL001", idle, about=about)
    assert none("COL001", idle | fields, about=about)


@pytest.mark.parametrize("peak_mib", [400, 30_000])
def test_a_share_is_not_idle_while_its_counters_were_taken_away(peak_mib: int) -> None:
    # Of a share there is no GPU_UTIL of its own, but the device's says that something ran.
    share = IDLE | {"whole": False, "blocked": None, "util_used": None, "util_measured": 0.0, "peak_mib": peak_mib}
    one("COL001", share)
    assert none("COL001", share | {"blackout_s": 3600.0})


def test_idle_and_parked_are_told_apart_by_memory_for_each_gpu_of_a_node() -> None:
    contexts = {"devices": 8, "gpus": 8.0, "peak_mib": 8 * 600}

    def said(**fields: Any) -> str:
        return one("COL001", IDLE | contexts | fields).evidence

    assert ("never used" in said(), "filled" in said()) == (True, False)
    assert "filled" in said(peak_mib=8 * 2048)
    # The peak is of one node, the devices are of all.
    assert "filled" in said(peak_mib=4 * 2048, nodes=2)
    # Where its memory is not known, nobody can say which of them it is.
    for unknown in ({"peak_mib": 4 * 2048, "nodes": None}, {"peak_mib": None}):
        answered, found = ask("COL001", IDLE | contexts | unknown)
        assert (answered.judged, found) == (0, [])
    one("COL001", IDLE | {"nodes": None})


@pytest.mark.parametrize("peak_mib", [None, 0, 2047, 2048, 80_000])
@pytest.mark.parametrize("fields", [{}, {"held_idle_hours": 24.0}, {"tail_s": 80_000.0}])
def test_no_idle_hour_counts_twice(peak_mib: int | None, fields: dict[str, Any]) -> None:
    _, found = ask("COL001", IDLE | fields | {"peak_mib": peak_mib})
    assert [one.gpu_hours for one in found] == ([] if peak_mib is None else [24.0])


def test_what_runs_is_asked_about_by_itself() -> None:
    assert none("COL001", IDLE | {"end_s": None})


@pytest.mark.parametrize("run", [IDLE, PARKED])
def test_a_zero_that_nothing_vouches_for_is_held_against_nobody(run: dict[str, Any]) -> None:
    slice_ = run | {"whole": False, "util_used": None, "util_measured": 0.0, "held_idle_hours": None}
    answered, said = ask("COL001", slice_ | {"blackout_s": None})
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
    assert audited(store, "COL001", 0.0, 3600.0, bounds=low) == []
    # What is above 0 is a measurement.
    (found,) = audited(store, "COL003", 0.0, 3600.0, bounds=low)
    assert [line.job_id for line in found.jobs] == ["2"]


def test_the_counters_are_named(printed: Printed) -> None:
    util, both = IDLE | {"sm_used": None, "sm_measured": 0.0}, IDLE
    printed("rules", one("COL001", util).evidence, one("COL001", util, both).evidence)


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


@pytest.mark.parametrize("run", [IDLE, PARKED])
def test_what_took_less_than_the_shortest_run_is_not_called_idle(run: dict[str, Any]) -> None:
    answered, said = ask("COL001", run | {"span_s": 599.0})
    assert (answered.judged, said) == (0, [])
    one("COL001", run | {"span_s": 600.0})
    one("COL001", run | {"span_s": 20.0}, bounds={"shortest_min": 0.0})


def test_an_array_of_short_idle_jobs_adds_up_where_the_site_counts_them(printed: Printed) -> None:
    task = IDLE | {"to_s": 120.0, "span_s": 120.0, "allocated": 1 / 30, "util_measured": 1 / 30, "sm_measured": 1 / 30}
    found = one("COL001", *[task] * 1000, bounds={"shortest_min": 2.0})
    printed("rules", found.evidence)
    assert len(found.jobs) == 5


def test_what_filled_the_memory_and_ran_hardly_a_kernel(printed: Printed) -> None:
    found = one("COL001", PARKED)
    assert (found.gpu_hours, found.user) == (24.0, "ann")
    printed("rules", found.evidence)
    assert "filled" in one("COL001", PARKED | {"peak_mib": 2048}).evidence
    assert "never used" in one("COL001", PARKED | {"peak_mib": 2047}).evidence
    answered, _ = ask("COL001", PARKED, PARKED | {"peak_mib": None})
    assert (answered.rows, answered.judged) == (2, 1)


def test_a_store_in_which_memory_was_filled(tmp_path: Path) -> None:
    times = (900.0, 1800.0, 2700.0, 3600.0)
    low = {"min_gpu_hours": 0.5}
    parked = stored(tmp_path / "a", [run("1")], busy(*times, util=0.0, sm=0.0, mib=30_000))
    assert [one.gpu_hours for one in audited(parked, "COL001", 0.0, 3600.0, bounds=low)] == [1.0]
    served = [*busy(*times[:3], util=0.0, sm=0.0, mib=30_000), *busy(times[3], util=1.0, sm=0.1, mib=30_000)]
    assert audited(stored(tmp_path / "b", [run("1")], served), "COL001", 0.0, 3600.0, bounds=low) == []

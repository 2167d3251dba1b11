# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.core.model import Gres
from slurm_colloc.core.usage_model import NodeSample
from slurm_colloc.facts import judgement
from slurm_colloc.facts.judgement import RunFound, judge
from tests.unit.asked import ask, none, one
from tests.unit.golden import Printed
from tests.unit.made import HOUR, run
from tests.unit.stored import busy, only, stored
from tests.unit.test_audit import audited

# Two days, idle from the end of the first on.
TAIL: dict[str, Any] = {
    "end_s": 172_800,
    "to_s": 172_800.0,
    "span_s": 172_800.0,
    "tail_s": 86_400.0,
    "allocated": 48.0,
    "util_measured": 48.0,
    "sm_measured": 48.0,
}


def test_what_it_says(printed: Printed) -> None:
    found = one("COL001", TAIL)
    assert (found.gpu_hours, found.user) == (24.0, "ann")
    # What helps against other kinds of idleness is not said.
    printed("rules", found.evidence, found.remedy, case="tail")
    # It may go on: while it runs it is asked about by itself.
    assert none("COL001", TAIL | {"end_s": None})


@pytest.mark.parametrize(
    "fields",
    [
        {"tail_s": 86_300.0},
        {"tail_s": 0.0},
        {"tail_s": None, "unseen_s": None},
        {"strong": False},
        {"coverage_pct": 59.0},
        {"coverage_pct": None},
        {"allocated": None},
        {"allocated": 0.0},
        {"suspended_s": 1},
        {"util_used": None, "sm_used": None},
        # a slice, whose one counter may have been taken away
        {"whole": False, "util_used": None, "blackout_s": None},
        # readings, but hardly one with a counter
        {"util_measured": 1.0, "sm_measured": 1.0},
        # a minute of it was not seen, wherever that was
        {"util_measured": 47.98, "sm_measured": 47.98},
    ],
)
def test_nobody_is_named_on_weak_evidence_or_below_a_bound(fields: dict[str, Any]) -> None:
    one("COL001", TAIL)
    assert none("COL001", TAIL | fields)


def test_time_that_nobody_saw_is_not_idle() -> None:
    # A quarter of the two days without a reading: half of the tail may have been work.
    found = one("COL001", TAIL | {"util_measured": 36.0, "sm_measured": 36.0}, bounds={"min_gpu_hours": 12.0})
    assert found.gpu_hours == 12.0
    # Or one of its devices worked in all of it, unseen.
    pair = {"devices": 2, "util_measured": 36.0, "sm_measured": 36.0}
    assert none("COL001", TAIL | pair, bounds={"min_gpu_hours": 0.1})
    # But for what came after the last reading: the tail ends there.
    late = {"util_measured": 36.0, "sm_measured": 36.0, "unseen_s": 43_200.0}
    assert one("COL001", TAIL | late).gpu_hours == 24.0


def test_results_that_are_written_on_cpus_are_not_counted_below_the_bound() -> None:
    # 40 runs of a day with an hour and a half at the end.
    writing = {"tail_s": 5_400.0}
    assert none("COL001", *[writing] * 40)
    assert one("COL001", *[writing] * 40, bounds={"tail_min": 90.0}).gpu_hours == 60.0


def test_bounds_of_zero_name_nobody_without_a_tail() -> None:
    answered, found = ask("COL001", {}, bounds={"min_gpu_hours": 0.0, "tail_min": 0.0})
    assert (answered.judged, found) == (1, [])


def hours(*active: float, of: int = 8, dark: tuple[int, ...] = (), uuid: str = "GPU-0") -> list[NodeSample]:
    """Return an hourly reading of each hour, at work in those that are ``active``, but for the ``dark`` ones."""
    rounds: list[NodeSample] = []
    for hour in range(1, of + 1):
        load = 50.0 if hour in active else 0.0
        if hour not in dark:
            rounds += busy(hour * HOUR, interval_s=HOUR, util=load, sm=load, uuid=uuid)
    return rounds


def test_a_store(tmp_path: Path) -> None:
    eight = [run("1", end_s=8 * HOUR)]
    low = {"min_gpu_hours": 1.0}

    def hours_found(name: str, rounds: list[NodeSample]) -> list[float]:
        store = stored(tmp_path / name, eight, rounds)
        found = [one.gpu_hours for one in audited(store, "COL001", 0.0, 8.0 * HOUR, bounds=low)]
        # The same that colloc me and job tell of the run.
        said = judge(RunFound(only(store, 0.0, 8.0 * HOUR), None, None))
        assert [one.gpu_hours for one in said.remedies if one.code == judgement.TAIL] == found
        return found

    assert hours_found("a", hours(1, 2, 3)) == [pytest.approx(5.0)]
    assert hours_found("b", hours(1, 2, 3, 8)) == []
    # The sampler paused when it may have worked.
    assert hours_found("c", hours(1, 2, 3, 4, dark=(5, 6, 7))) == []
    assert hours_found("d", hours(1, 2, dark=(3, 4))) == [pytest.approx(4.0)]
    # A second GPU of its own that goes on working keeps it awake, one that is idle by design does not count alone.
    # Nobody knows what its second GPU did while a process of nobody's was there: perhaps its own, in a container.
    two = [run("1", end_s=8 * HOUR, gres=(Gres("gpu", "h100", 2),))]
    rounds = [*hours(1, 2), *hours(1, 2, uuid="GPU-1", dark=(3, 4, 5, 6, 7, 8))]
    assert audited(stored(tmp_path / "f", two, rounds), "COL001", 0.0, 8.0 * HOUR, bounds=low) == []
    assert hours_found("e", [*hours(1, 2, 3), *hours(*range(1, 9), uuid="GPU-1")]) == []

# SPDX-License-Identifier: Apache-2.0
"""Which two jobs may take turns on a GPU: the pairs of the field's talks, and what is not known."""

import math

import pytest

from slurm_colloc.model import Footprint, Load, Quantiles
from slurm_colloc.placement.join import (
    Node,
    Times,
    Unit,
    load_of,
    needed_s,
    reason_against,
    reason_of_node,
    reason_of_time,
    step_limit_s,
)

A100 = Unit(40536)
SMALL, LARGE = Load(2500, 17.0), Load(9500, 80.0)
DLRM, RESNET152 = Load(29840, 5.0), Load(8673, 82.0)


def footprint(memory_mib: float | None, active_pct: float | None) -> Footprint:
    memory = None if memory_mib is None else Quantiles(memory_mib, memory_mib, memory_mib)
    active = None if active_pct is None else Quantiles(active_pct, active_pct, active_pct)
    return Footprint(memory, active, None, "", "hint", 0, "nobody measured it")


@pytest.mark.parametrize("pair", [(SMALL, SMALL), (DLRM, RESNET152), (RESNET152, DLRM), (SMALL, LARGE)])
def test_a_light_one_rides_along(pair: tuple[Load, Load]) -> None:
    assert reason_against(*pair, A100) == ""


def test_two_that_keep_the_sms_busy_do_not_join() -> None:
    assert reason_against(LARGE, LARGE, A100) == "their SM activity comes to 160 %, above 100 %"


def test_memory_must_hold_both() -> None:
    assert reason_against(DLRM, Load(12000, 5.0), A100) == "40536 MiB do not hold 41840 MiB"


@pytest.mark.parametrize(("host", "guest", "may"), [(60.0, 60.0, False), (60.0, 40.0, True), (60.0, None, True)])
def test_two_memory_bound_ones_do_not_join_if_that_is_known(host: float, guest: float | None, may: bool) -> None:
    one, other = (SMALL._replace(dram_active_pct=pct) for pct in (host, guest))
    assert (reason_against(one, other, A100) == "") == may


def test_on_a_slice_a_job_keeps_more_of_the_sms_busy_but_no_more_than_all() -> None:
    assert load_of(footprint(1000.2, 20), Unit(9984, 132 / 16), 500) == Load(1501, 100.0)
    assert load_of(footprint(1000, 10), Unit(40448, 132 / 60), 0) == Load(1000, 22.0)


def test_a_slice_has_the_part_of_the_bandwidth_that_it_has_of_the_memory() -> None:
    # 1g.20gb: an eighth of the SMs and a quarter of the memory.
    dram = footprint(1000, 5)._replace(dram_active_pct=Quantiles(10, 10, 10))
    load = load_of(dram, Unit(20096, 132 / 16, 81559 / 20096), 0)
    assert isinstance(load, Load)
    assert load.dram_active_pct == pytest.approx(40.6, abs=0.1)


@pytest.mark.parametrize(("memory", "active"), [(None, 5.0), (1000.0, None)])
def test_what_is_not_known_is_a_reason(memory: float | None, active: float | None) -> None:
    found = load_of(footprint(memory, active), A100, 0)
    assert isinstance(found, str)
    assert "nobody measured it" in found


TIMES = Times(left_s=3600, host_ran_s=600, host_run_s=None, limit_s=1800, run_s=None)


def test_the_guests_time_and_a_slowdown_must_be_left() -> None:
    assert reason_of_time(TIMES) == ""
    assert reason_of_time(TIMES._replace(limit_s=3600)) == "it has 1 h left, and the job may take 1.4 h beside it"
    assert reason_of_time(TIMES._replace(limit_s=3600, run_s=1200)) == ""
    assert reason_of_time(TIMES._replace(left_s=math.inf, limit_s=1e6)) == ""


def test_a_host_that_is_expected_to_end_first_is_not_joined() -> None:
    assert "it is expected to end in 10 min" in reason_of_time(TIMES._replace(host_run_s=1200))
    assert "it is expected to end in 0 s" in reason_of_time(TIMES._replace(host_run_s=300))
    assert reason_of_time(TIMES._replace(host_run_s=3300)) == ""


@pytest.mark.parametrize("limit_s", [None, math.inf])
def test_what_nothing_bounds_does_not_join(limit_s: float | None) -> None:
    times = TIMES._replace(limit_s=limit_s, left_s=math.inf)
    assert needed_s(times) is None
    assert reason_of_time(times) == "how long the job runs is not known; give it a --time"


def test_a_step_may_run_as_long_as_its_user_asked_for_not_as_long_as_earlier_runs_took() -> None:
    times = TIMES._replace(limit_s=18000, run_s=600)
    assert needed_s(times) == pytest.approx(840)
    assert step_limit_s(times) == pytest.approx(25200)
    assert step_limit_s(TIMES._replace(limit_s=None, run_s=600)) is None
    assert step_limit_s(TIMES._replace(limit_s=math.inf, run_s=600)) is None


NODE = Node(cpus=8, mem_mib=10000, used_mib=4000, cpus_asked=8, mem_asked_mib=5000)


def test_cores_and_host_memory_must_suffice() -> None:
    assert reason_of_node(NODE) == ""
    assert reason_of_node(NODE._replace(cpus_asked=9)) == "it has 8 cores, and the job asks for 9"
    assert "5000 MiB do not hold 5001" in reason_of_node(NODE._replace(mem_asked_mib=5001))
    assert "0 MiB do not hold" in reason_of_node(NODE._replace(used_mib=9999))
    assert "give it a --mem" in reason_of_node(NODE._replace(mem_asked_mib=None))
    assert "not measured" in reason_of_node(NODE._replace(used_mib=None))

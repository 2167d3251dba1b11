# SPDX-License-Identifier: Apache-2.0
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.core.config import MigSlice, Pool, Sharing
from slurm_colloc.core.errors import InputError
from slurm_colloc.core.model import Footprint, Load, Quantiles, Reason, Room, because
from slurm_colloc.placement.packing import (
    MAX_SM_PCT,
    MPS_SERVER_MIB,
    Packing,
    jobs_needed,
    may_share,
    of_equal,
    tasks_at_a_time,
    time_needed_min,
)
from slurm_colloc.placement.speed import beside
from tests.unit.golden import Printed
from tests.unit.made import H100, RECORDED, footprint, near

WHOLE = Pool("g", "g1", ("gpu",), "h100", H100, gpus_per_node=2, gpu_mem_mib=80_100, sm_count=132)
# The card of the seed's talks: usable MiB of an A100 with 40 GB.
A100 = Pool("a", "a1", ("gpu",), "a100", "", gpus_per_node=1, gpu_mem_mib=40_192, sm_count=108)
SLICE = MigSlice("h100_1g.10gb", "1g.10gb", 9_984, 16, 7)
HALF = MigSlice("h100_3g.40gb", "3g.40gb", 40_448, 60, 2)
SITE = Sharing()


def packed(found: Packing | Reason) -> Packing:
    assert isinstance(found, Packing), found
    return found


def refused(found: Packing | Reason) -> Reason:
    assert isinstance(found, Reason), found
    return found


# --- how many at a time ---


def test_seven_small_trainings_share_an_h100() -> None:
    found = packed(tasks_at_a_time(footprint(2_000, 16.7), WHOLE, SITE, None))
    assert (found.at_once, found.load, found.room) == (7, Load(2_256, 16.7), Room(80_000, 120.0, 7))
    assert found.slowdown == pytest.approx((1.169, 1.78), abs=0.01)
    assert found.reasons == (
        because("tasks-fill-sms", sm_pct=16.7, max_pct=120.0),
        because("task-slowdown", **found.slowdown._asdict()),
    )


def test_memory_rounds_up_and_leaves_room_for_the_server() -> None:
    # 9,744 MiB and 256 are 10,000: eight of them are the card without what the MPS server takes.
    assert packed(tasks_at_a_time(footprint(9_744, 1), WHOLE, SITE, None)).at_once == 8
    found = packed(tasks_at_a_time(footprint(9_744.01, 1), WHOLE, SITE, None))
    assert (found.at_once, found.load.memory_mib) == (7, 10_001)
    assert found.reasons[0] == because("memory-holds-tasks", mem_mib=80_000, held=7, each_mib=10_001)
    assert packed(tasks_at_a_time(footprint(9_744, 1), WHOLE._replace(gpu_mem_mib=80_099), SITE, None)).at_once == 7


@pytest.mark.parametrize(("sm", "at_once"), [(60, 2), (40, 3), (24, 5), (12, 10), (2.5, 48), (0, 48), (0.001, 48)])
def test_sms_bound_it_and_mps_takes_no_more_than_48(sm: float, at_once: int) -> None:
    assert packed(tasks_at_a_time(footprint(100, sm), WHOLE, SITE, None)).at_once == at_once


# --- the user's own number ---


def test_a_wanted_number_is_taken_below_what_would_fit() -> None:
    found = packed(tasks_at_a_time(footprint(2_000, 10), WHOLE, SITE, 4))
    assert (found.at_once, found.reasons[0]) == (4, because("tasks-asked-for", asked=4))
    for few in (1, 0):
        assert refused(tasks_at_a_time(footprint(2_000, 10), WHOLE, SITE, few)) == because("tasks-asked-for", asked=few)


def test_a_wanted_number_that_memory_does_not_hold_is_refused() -> None:
    memory = {"mem_mib": 80_000, "held": 3, "each_mib": 20_256, "tasks": 4, "headroom_mib": 256}
    assert refused(tasks_at_a_time(footprint(20_000, 10), WHOLE, SITE, 4)) == Reason("tasks-exceed-memory", memory)


def test_a_wanted_number_above_what_the_sms_hold_is_allowed_and_said() -> None:
    found = packed(tasks_at_a_time(footprint(2_000, 80), WHOLE, SITE, 4))
    assert (found.at_once, found.room.sm_active_pct) == (4, 320)
    assert because("sms-above-bound", sum_pct=320, max_pct=120) in found.reasons
    assert found.slowdown.expected == pytest.approx(3.2)
    assert may_share([found.load] * 4, found.room.memory_mib, found.room.sm_active_pct)


# --- what is not known ---


@pytest.mark.parametrize(
    ("need", "said"),
    [
        (footprint(None, None, provenance=(because("no-earlier-run"),)), because("no-earlier-run")),
        (footprint(9_000, None), because("task-sm-unknown")),
        (
            footprint(gpu_model="NVIDIA A30"),
            because("other-gpu-model", measured_on="NVIDIA A30", pool_has=H100),
        ),
    ],
)
def test_what_is_not_known_is_no_pack_unless_a_number_is_wanted(need: Footprint, said: Reason) -> None:
    assert refused(tasks_at_a_time(need, WHOLE, SITE, None)) == said
    found = packed(tasks_at_a_time(need, WHOLE, SITE, 4))
    assert found.reasons[1:3] == (said, because("equal-parts", tasks=4))
    assert found.load.sm_active_pct == 25
    known = need.gpu_mem_peak_mib is not None and not need.gpu_model
    assert found.load.memory_mib == (9_256 if known else 20_000)
    assert found.room == Room(80_000, 120, 4)


def test_a_part_that_is_known_still_counts() -> None:
    said = refused(tasks_at_a_time(footprint(9_000, None), WHOLE, SITE, 9))
    assert (said.code, said.params["held"], said.params["tasks"]) == ("tasks-exceed-memory", 8, 9)


def test_a_pool_of_unknown_memory() -> None:
    unsized, uncounted = WHOLE._replace(gpu_mem_mib=None), WHOLE._replace(sm_count=None)
    assert refused(tasks_at_a_time(footprint(), unsized, SITE, 4)) == because("site-lacks", key="gpu_mem_mib", pool="g")
    found = refused(tasks_at_a_time(footprint(), uncounted, SITE, None, part=SLICE))
    assert found == because("site-lacks", key="sm_count", pool="g")
    assert packed(tasks_at_a_time(footprint(), WHOLE._replace(sm_count=None), SITE, None)).at_once == 8
    tiny = refused(tasks_at_a_time(footprint(None), WHOLE._replace(gpu_mem_mib=MPS_SERVER_MIB + 1), SITE, 2))
    assert tiny == because("tasks-exceed-memory", mem_mib=1, held=0, tasks=2)


# --- memory bandwidth ---


def test_two_that_keep_the_memory_busy_are_not_paired() -> None:
    found = packed(tasks_at_a_time(moving(50), WHOLE, SITE, None))
    assert (found.at_once, found.load.dram_active_pct) == (12, 50)
    said = refused(tasks_at_a_time(moving(50.6), WHOLE, SITE, None))
    assert said == because("one-task-fills-memory-bandwidth", dram_pct=50.6)
    assert packed(tasks_at_a_time(footprint(1_000, 10), WHOLE, SITE, None)).load.dram_active_pct is None


def test_the_users_own_number_goes_before_a_busy_memory() -> None:
    found = packed(tasks_at_a_time(moving(90), WHOLE, SITE, 2))
    assert (found.at_once, found.load.dram_active_pct) == (2, None)
    assert because("tasks-busy-memory", dram_pct=90) in found.reasons
    assert may_share([found.load] * 2, found.room.memory_mib, found.room.sm_active_pct)


def test_a_slice_moves_less_data_than_the_whole_gpu() -> None:
    # 3g.40gb has half of the memory, and half of its bandwidth.
    assert packed(tasks_at_a_time(moving(20), WHOLE, SITE, None, part=HALF)).load.dram_active_pct == pytest.approx(
        39.6, abs=0.1
    )
    said = refused(tasks_at_a_time(moving(30), WHOLE, SITE, None, part=HALF))
    assert said.code == "one-task-fills-memory-bandwidth"
    assert said.params["dram_pct"] == near(59.4, 0.1)
    unsized = WHOLE._replace(gpu_mem_mib=None)
    assert packed(tasks_at_a_time(moving(20), unsized, SITE, None, part=HALF)).load.dram_active_pct == pytest.approx(44)


def test_one_that_keeps_the_memory_busy_rides_along_with_others_that_do_not() -> None:
    busy, light, unknown = Load(1_000, 10.0, 80.0), Load(1_000, 10.0, 50.0), Load(1_000, 10.0)
    assert may_share([busy, light, unknown], 80_000, 120.0)
    assert not may_share([busy, light, busy], 80_000, 120.0)


def moving(dram_pct: float) -> Footprint:
    return footprint(1_000, 10, dram_active_pct=Quantiles(dram_pct, dram_pct, dram_pct))


# --- slices ---


def test_a_slice_has_fewer_sms_and_clients() -> None:
    # 5 % of 132 SMs are 41 % of 16.
    found = packed(tasks_at_a_time(footprint(1_000, 5), WHOLE, SITE, None, part=SLICE))
    assert (found.at_once, found.room.memory_mib) == (2, 9_884)
    assert found.load.sm_active_pct == pytest.approx(41.25)
    # MPS takes 48 x 16 / 132 clients there.
    assert packed(tasks_at_a_time(footprint(100, 0.1), WHOLE, SITE, None, part=SLICE)).at_once == 5
    assert packed(tasks_at_a_time(footprint(100, 0.1), WHOLE, SITE, 9, part=SLICE)).at_once == 5
    # A task that has too few SMs in a slice keeps all of them busy, and not more.
    crowded = packed(tasks_at_a_time(footprint(1_000, 50), WHOLE, SITE, 2, part=HALF))
    assert crowded.load.sm_active_pct == 100
    assert crowded.slowdown.expected == pytest.approx(2.0)


# --- the seed's cases ---


def test_small_trainings_are_packed_up_medium_less_and_large_not_at_all() -> None:
    small, medium, large = footprint(2_800, 17), footprint(8_000, 45), footprint(8_470, 80)
    assert packed(tasks_at_a_time(small, A100, SITE, None)).at_once == 7
    assert packed(tasks_at_a_time(medium, A100, SITE, None)).at_once == 2
    said = refused(tasks_at_a_time(large, A100, SITE, None))
    assert said == because("tasks-fill-sms", sm_pct=80, max_pct=120)
    # Medium does not fit the smallest slice of that card at all.
    little = MigSlice("a100_1g.5gb", "1g.5gb", 4_864, 14, 7)
    assert refused(tasks_at_a_time(medium, A100, SITE, None, part=little)).code == "tasks-exceed-memory"
    assert refused(tasks_at_a_time(footprint(30_000, 10), A100, SITE, None)) == because(
        "memory-holds-tasks", mem_mib=40_092, held=1, each_mib=30_256
    )


def test_a_light_task_rides_along_with_a_large_one_and_two_large_ones_do_not() -> None:
    held = 40_192 - MPS_SERVER_MIB
    # As NVML gave them: GiB.
    dlrm, resnet152 = Load(math.ceil(29.14 * 1024), 5.0), Load(math.ceil(8.47 * 1024), 82.0)
    assert may_share([dlrm, resnet152], held, MAX_SM_PCT)
    assert not may_share([resnet152, resnet152], held, MAX_SM_PCT)
    assert not may_share([dlrm, dlrm], held, MAX_SM_PCT)


def test_one_task_may_always_keep_all_sms_busy() -> None:
    assert may_share([Load(10, 100.0)], 10, 80.0)
    assert may_share([], 10, 80.0)
    assert not may_share([Load(11, 1.0)], 10, 80.0)
    # 0.1 + 0.2 is above 0.3 to a computer.
    assert may_share([Load(1, 0.1), Load(1, 0.2)], 10, 0.3)


# --- how long ---


def test_the_slowdowns_measured_on_an_h100_are_foretold() -> None:
    seen = json.loads((RECORDED / "h100-mps-slowdowns.json").read_text())["seen"]
    off = [beside(one["sm_active_pct"], one["others_pct"]).expected / one["slowdown"] - 1 for one in seen]
    assert max(map(abs, off)) < 0.13, dict(zip((one["name"] for one in seen), off, strict=True))
    assert math.hypot(*off) / math.sqrt(len(off)) < 0.055


def test_nothing_becomes_faster_by_sharing() -> None:
    assert of_equal(1, 100) == (1.0, 1.0)
    expected, upper = zip(of_equal(2, 10), of_equal(3, 10), of_equal(3, 20), of_equal(3, 40), strict=True)
    assert list(expected) == sorted(set(expected))
    assert list(upper) == sorted(upper)
    assert all(1 < one <= most for one, most in zip(expected, upper, strict=True))


@pytest.mark.parametrize(
    ("tasks", "limit", "slower", "minutes"),
    [
        (8, 60, 1.25, 150),
        (7, 60, 1.25, 150),
        (5, 60, 1.25, 150),
        (4, 60, 1.25, 75),
        # Fewer than fit at a time slow each other less: two neighbours do 2/3 of what three do.
        (3, 60, 1.6, 84),
        (3, 60, 1.3, 72),
        (1, 60, 1.3, 60),
        (4, 10, 1.01, 11),
    ],
)
def test_time_is_rounds_of_slowed_tasks(tasks: int, limit: float, slower: float, minutes: int) -> None:
    assert time_needed_min(tasks, 4, limit, slower) == minutes


@pytest.mark.parametrize("limit", [math.inf, 0, -1, math.nan])
def test_a_task_without_a_time_limit_bounds_no_pack(limit: float, printed: Printed) -> None:
    with pytest.raises(InputError) as raised:
        time_needed_min(4, 2, limit, 1.0)
    printed("pack", str(raised.value).replace(f" {limit:g} ", " LIMIT "))


def test_jobs_are_split_where_one_would_take_too_long() -> None:
    assert jobs_needed(100, 4, 60, 1.5, None) == 1
    # 90 min a round, 25 rounds.
    assert jobs_needed(100, 4, 60, 1.5, 2250) == 1
    assert jobs_needed(100, 4, 60, 1.5, 2249) == 2
    assert jobs_needed(100, 4, 60, 1.5, 90) == 25
    assert jobs_needed(100, 4, 60, 1.5, math.inf) == 1
    said = jobs_needed(100, 4, 60, 1.5, 89)
    assert said == because("tasks-take-too-long", tasks=4, slowdown=1.5, needed_min=90, most_min=89, limit_min=60)


@given(
    tasks=st.integers(1, 60),
    at_once=st.integers(2, 8),
    limit=st.floats(0.5, 100),
    slower=st.floats(1.0, 4.0),
    most=st.floats(1, 2000),
)
def test_the_number_of_jobs_is_the_least_that_ends_in_time(
    tasks: int, at_once: int, limit: float, slower: float, most: float
) -> None:
    def ends_in_time(jobs: int) -> bool:
        # The first job is dealt the most.
        return time_needed_min(len(range(0, tasks, jobs)), at_once, limit, slower) <= most

    found = jobs_needed(tasks, at_once, limit, slower, most)
    if isinstance(found, Reason):
        assert time_needed_min(at_once, at_once, limit, slower) > most
    else:
        assert ends_in_time(found)
        assert not any(ends_in_time(jobs) for jobs in range(1, found))


@given(
    memory=st.floats(0, 90_000),
    sm=st.floats(0, 100),
    wanted=st.none() | st.integers(1, 60),
    part=st.sampled_from([None, SLICE, HALF]),
)
def test_whatever_is_packed_fits(memory: float, sm: float, wanted: int | None, part: MigSlice | None) -> None:
    found = tasks_at_a_time(footprint(memory, sm), WHOLE, SITE, wanted, part=part)
    if isinstance(found, Packing):
        assert 2 <= found.at_once <= min(48, wanted or 48)
        assert found.room.tasks == found.at_once
        assert may_share([found.load] * found.at_once, found.room.memory_mib, found.room.sm_active_pct)
        assert 1 <= found.slowdown.expected <= found.slowdown.upper

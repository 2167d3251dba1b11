# SPDX-License-Identifier: Apache-2.0
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.core.usage_model import ADDITIVE, AttributedUse, DeviceAllocation, DeviceSample, ProcessSample
from slurm_colloc.observe.attribute import attribute_device as attribute
from slurm_colloc.observe.attribute import attribute_sample, balanced
from tests.unit.made import device, process, seen


def attribute_device(
    whole: DeviceSample, processes: Sequence[ProcessSample], holders: Sequence[str]
) -> tuple[AttributedUse, ...]:
    return attribute(whole, processes, [DeviceAllocation(whole.uuid, job, None) for job in holders])


Split = dict[str, tuple[float | None, float | None, int | None, str]]


def split(shares: tuple[AttributedUse, ...]) -> Split:
    """Return what each job has; the rest only where somebody did something with it."""
    found = {one.job_id: (one.gpu_util_pct, one.sm_active_pct, one.gpu_mem_used_mib, one.method) for one in shares}
    assert len(found) == len(shares)
    assert shares[-1].job_id == ""
    if not (shares[-1].gpu_util_pct or shares[-1].sm_active_pct):
        del found[""]
    return found


QUIET = device(gpu_util_pct=0.0, gr_active_pct=0.0, sm_active_pct=0.0)


BLANK = device(gpu_util_pct=None, sm_active_pct=None, gpu_mem_used_mib=None)
ALL, HALF = (40.0, 20.0), (20.0, 10.0)


@pytest.mark.parametrize(
    ("whole", "processes", "holders", "parts"),
    [
        # One job has all of it, before its process shows, too, and where no process says what it holds.
        (device(), [process("1", 5), process("1", 6, gpu_mem_used_mib=100)], "1", {"1": (*ALL, 3100, "measured")}),
        (device(), [], "1", {"1": (*ALL, 0, "measured")}),
        (device(), [process("1", gpu_mem_used_mib=None)], "", {"1": (*ALL, 3000, "measured")}),
        # Several have it by the best that is known of each.
        (
            device(),
            [process("1", 5, sm_util_pct=30.0), process("2", 6, sm_util_pct=10.0)],
            "",
            {"1": (30.0, 15.0, 3000, "split by GPU time"), "2": (10.0, 5.0, 3000, "split by GPU time")},
        ),
        (
            device(),
            [process("1", 5, sm_util_pct=30.0), process("2", 6, gpu_mem_used_mib=1000)],
            "",
            {"1": (30.0, 15.0, 3000, "split by memory"), "2": (10.0, 5.0, 1000, "split by memory")},
        ),
        (
            device(),
            [process("1", 5, sm_util_pct=0.0), process("2", 6, sm_util_pct=0.0)],
            "",
            dict.fromkeys("12", (*HALF, 3000, "split by memory")),
        ),
        (
            device(),
            [process("1", 5, gpu_mem_used_mib=None), process("2", 6)],
            "",
            {"1": (*HALF, None, "split equally"), "2": (*HALF, 3000, "split equally")},
        ),
        # A stranger's part is nobody's.
        (
            device(),
            [process("", 5), process("2", 6)],
            "2",
            {"": (*HALF, 0, "unattributed"), "2": (*HALF, 3000, "split by memory")},
        ),
        (BLANK, [process("1", 5), process("2", 6)], "", dict.fromkeys("12", (None, None, 3000, "split by memory"))),
    ],
)
def test_who_has_what_of_a_reading(
    whole: DeviceSample, processes: list[ProcessSample], holders: str, parts: Split
) -> None:
    assert split(attribute_device(whole, processes, list(holders))) == parts


def test_holder_without_a_process_is_idle_not_missing() -> None:
    shares = attribute_device(device(), [process("1")], ["1", "2"])
    assert split(shares)["2"] == (0.0, 0.0, 0, "measured")
    lone = attribute_device(device(gpu_util_pct=None, sm_active_pct=None), [process("1")], ["1", "2"])
    assert split(lone)["2"] == (None, None, 0, "measured")


def test_nobody_there() -> None:
    assert split(attribute_device(device(), [], [])) == {"": (40.0, 20.0, 3000, "unattributed")}
    (rest,) = attribute_device(QUIET, [], [])
    assert (rest.job_id, rest.sm_active_pct, rest.gpu_mem_used_mib, rest.process_count) == ("", 0.0, 3000, 0)
    assert split(attribute_device(device(), [], ["1", "2"])) == {
        "": (40.0, 20.0, 3000, "unattributed"),
    }
    quiet = split(attribute_device(QUIET, [], ["1", "2"]))
    assert quiet == dict.fromkeys("12", (0.0, 0.0, 0, "measured"))


def test_a_holder_beside_a_stray_process_may_own_it_and_is_not_called_idle() -> None:
    assert set(split(attribute_device(device(), [process("")], ["1"]))) == {""}
    assert set(split(attribute_device(device(), [process(""), process("2", 7)], ["1"]))) == {"", "2"}


def test_round_keeps_devices_apart() -> None:
    passed = seen(10, [device("A"), device("B")], [process("1", uuid="A"), process("2", uuid="B")], [("B", "3")])
    found = {(one.uuid, one.job_id): one.gpu_util_pct for one in attribute_sample(passed) if one.job_id}
    assert found == {("A", "1"): 40.0, ("B", "2"): 40.0, ("B", "3"): 0.0}


@pytest.mark.parametrize(
    ("kinds", "direct"),
    [(["client", "client"], 0), (["client", "compute"], 1), (["client", "unknown"], None), (["server", "client"], 0)],
)
def test_processes_that_are_no_clients_of_mps(kinds: list[str], direct: int | None) -> None:
    running = [process("1", 5 + number, kind=kind) for number, kind in enumerate(kinds)]
    mine, _ = attribute_device(device(), running, ["1"])
    assert (mine.process_count, mine.direct_count) == (2 - kinds.count("server"), direct)
    mine, _ = attribute_device(device(process_list=False), running, ["1"])
    assert (mine.process_count, mine.direct_count) == (None, None)
    idle, _ = attribute_device(QUIET, [], ["1"])
    assert (idle.process_count, idle.direct_count) == (0, 0)


def test_the_server_of_mps_is_nobodys() -> None:
    clients = [
        process("1", 5, kind="client", gpu_mem_used_mib=1000),
        process("2", 6, kind="client", gpu_mem_used_mib=500),
        process("1", 7, kind="server", gpu_mem_used_mib=66),
    ]
    shares = attribute_device(device(sm_active_pct=30.0, gpu_mem_used_mib=1580), clients, ["1", "2", "3"])
    assert {one.job_id: (one.sm_active_pct, one.gpu_mem_used_mib, one.process_count) for one in shares} == {
        "1": (pytest.approx(20.0), 1000, 1),
        "2": (pytest.approx(10.0), 500, 1),
        "3": (0.0, 0, 0),
        "": (0.0, 80, 0),
    }


WEIGHTED = [DeviceAllocation("GPU-0", "1", 25.0), DeviceAllocation("GPU-0", "2", 75.0)]


def test_without_a_list_of_processes_the_allocation_is_all_that_is_known() -> None:
    blind = device(process_list=False)
    assert split(attribute(blind, [], WEIGHTED[:1])) == {"1": (40.0, 20.0, 3000, "whole device")}
    assert split(attribute(blind, [], WEIGHTED)) == {
        "1": (10.0, 5.0, None, "split by shares"),
        "2": (30.0, 15.0, None, "split by shares"),
    }
    unknown = [WEIGHTED[0], DeviceAllocation("GPU-0", "2", None)]
    assert {one[3] for one in split(attribute(blind, [], unknown)).values()} == {"split equally"}
    assert {one.process_count for one in attribute(blind, [], WEIGHTED)} == {None}


def test_every_additive_figure_is_split_alike() -> None:
    shares = attribute_device(device(), [process("1", gpu_mem_used_mib=100), process("2", 6, gpu_mem_used_mib=300)], [])
    for name in ADDITIVE:
        assert getattr(shares[0], name) == pytest.approx(getattr(device(), name) / 4), name


def test_parts_that_do_not_add_up_are_noticed() -> None:
    shares = attribute_device(device(), [process("1")], [])
    assert balanced(device(), shares)
    assert not balanced(device(), [shares[0]._replace(energy_j=1.0), shares[1]])
    assert not balanced(device(), [shares[0]._replace(sm_active_pct=None), shares[1]])
    assert not balanced(device(dram_active_pct=None), shares)


PCT = st.none() | st.floats(0, 100)
JOBS = st.sampled_from(["", "1", "2", "3", "4"])
KINDS = st.sampled_from(["compute", "client", "server"])
PROCESSES = st.lists(
    st.builds(
        ProcessSample,
        *[st.just("GPU-0"), st.integers(1, 99), st.just(1), KINDS, JOBS, st.none() | st.integers(0, 10**5), PCT],
    ),
    max_size=6,
)
DEVICES = st.builds(
    lambda lists, memory, figures: device(
        process_list=lists, gpu_mem_used_mib=memory, **dict(zip(ADDITIVE, figures, strict=True))
    ),
    st.booleans(),
    st.none() | st.integers(0, 10**5),
    st.tuples(*[PCT] * len(ADDITIVE)),
)
HOLDERS = st.lists(
    st.builds(DeviceAllocation, st.just("GPU-0"), JOBS.filter(bool), st.none() | st.floats(1, 100)),
    max_size=4,
    unique_by=lambda one: one.job_id,
)


@given(DEVICES, PROCESSES, HOLDERS)
def test_parts_add_up_to_the_device(
    whole: DeviceSample, processes: list[ProcessSample], holders: list[DeviceAllocation]
) -> None:
    if not whole.process_list:
        processes = []
    shares = attribute(whole, processes, holders)
    for name in ADDITIVE:
        parts, value = [getattr(one, name) for one in shares], getattr(whole, name)
        if value is None:
            assert set(parts) <= {None}
        else:
            assert None not in parts
            assert sum(parts) == pytest.approx(value, abs=1e-9)  # a rest below that is taken for rounding
            assert all(0 <= part <= value * (1 + 1e-12) for part in parts)
    jobs = [one.job_id for one in shares]
    assert len(jobs) == len(set(jobs))
    held = {one.job_id for one in holders}
    running = {one.job_id for one in processes if one.kind != "server"} - {""}
    assert running <= set(jobs) - {""} <= running | held
    assert all((one.method == "unattributed") == (one.job_id == "") for one in shares)
    sizes = [one.gpu_mem_used_mib for one in shares if one.gpu_mem_used_mib is not None]
    if whole.gpu_mem_used_mib is not None and len(sizes) == len(shares):
        # Processes may say more than the device does; the rest is never less than nothing.
        assert sum(sizes) >= whole.gpu_mem_used_mib
        assert shares[-1].gpu_mem_used_mib in (0, whole.gpu_mem_used_mib - sum(sizes[:-1]))


@given(DEVICES, PROCESSES, HOLDERS)
def test_order_and_repetition_of_holders_change_nothing(
    whole: DeviceSample, processes: list[ProcessSample], holders: list[DeviceAllocation]
) -> None:
    again = [*reversed(holders), *holders]
    first = split(attribute(whole, processes, holders))
    second = split(attribute(whole, processes[::-1], again))
    assert first.keys() == second.keys()
    for job, (util, active, memory, method) in first.items():
        assert second[job] == (
            None if util is None else pytest.approx(util),
            None if active is None else pytest.approx(active),
            memory,
            method,
        )

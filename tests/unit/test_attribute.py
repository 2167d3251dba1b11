# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.model import DeviceSample, JobShare, ProcessSample
from slurm_colloc.observe.attribute import attribute_device, attribute_round
from tests.unit.made import device, process, seen

Split = dict[str, tuple[float | None, float | None, int | None, str]]


def split(shares: tuple[JobShare, ...]) -> Split:
    found = {one.job_id: (one.gpu_util_pct, one.sm_active_pct, one.gpu_mem_used_mib, one.method) for one in shares}
    assert len(found) == len(shares)
    return found


def test_one_job_has_all() -> None:
    shares = attribute_device(device(), [process("1", 5), process("1", 6, gpu_mem_used_mib=100)], ["1"])
    assert split(shares) == {"1": (40.0, 20.0, 3100, "measured")}


def test_by_sm_of_each_process() -> None:
    busy = [process("1", 5, sm_util_pct=30.0), process("2", 6, sm_util_pct=10.0)]
    assert split(attribute_device(device(), busy, [])) == {
        "1": (30.0, 15.0, 3000, "split by GPU time"),
        "2": (10.0, 5.0, 3000, "split by GPU time"),
    }


def test_by_memory_when_one_sm_is_missing() -> None:
    mixed = [process("1", 5, sm_util_pct=30.0), process("2", 6, gpu_mem_used_mib=1000)]
    assert split(attribute_device(device(), mixed, [])) == {
        "1": (30.0, 15.0, 3000, "split by memory"),
        "2": (10.0, 5.0, 1000, "split by memory"),
    }


def test_equally_when_nothing_is_known() -> None:
    blind = [process("1", 5, gpu_mem_used_mib=None), process("2", 6)]
    assert split(attribute_device(device(), blind, [])) == {
        "1": (20.0, 10.0, None, "split equally"),
        "2": (20.0, 10.0, 3000, "split equally"),
    }


def test_jobs_without_activity_are_split_by_memory() -> None:
    idle = [process("1", 5, sm_util_pct=0.0), process("2", 6, sm_util_pct=0.0)]
    found = split(attribute_device(device(), idle, []))
    assert found["1"] == (20.0, 10.0, 3000, "split by memory")


def test_strangers_are_unattributed() -> None:
    shares = attribute_device(device(), [process("", 5), process("2", 6)], ["2"])
    assert split(shares) == {
        "": (20.0, 10.0, 3000, "unattributed"),
        "2": (20.0, 10.0, 3000, "split by memory"),
    }


def test_holder_without_a_process_is_idle_not_missing() -> None:
    shares = attribute_device(device(), [process("1")], ["1", "2"])
    assert split(shares)["2"] == (0.0, 0.0, 0, "measured")
    lone = attribute_device(device(gpu_util_pct=None, sm_active_pct=None), [process("1")], ["1", "2"])
    assert split(lone)["2"] == (None, None, 0, "measured")


def test_only_holder_before_its_process_shows() -> None:
    assert split(attribute_device(device(), [], ["1"])) == {"1": (40.0, 20.0, 0, "measured")}


def test_nobody_there() -> None:
    assert split(attribute_device(device(), [], [])) == {"": (40.0, 20.0, None, "unattributed")}
    assert attribute_device(device(gpu_util_pct=0.0, sm_active_pct=0.0), [], []) == ()
    assert split(attribute_device(device(), [], ["1", "2"])) == {
        "": (40.0, 20.0, None, "unattributed"),
    }
    quiet = split(attribute_device(device(gpu_util_pct=0.0, sm_active_pct=0.0), [], ["1", "2"]))
    assert quiet == dict.fromkeys("12", (0.0, 0.0, 0, "measured"))


def test_a_holder_beside_a_stray_process_may_own_it_and_is_not_called_idle() -> None:
    assert set(split(attribute_device(device(), [process("")], ["1"]))) == {""}
    assert set(split(attribute_device(device(), [process(""), process("2", 7)], ["1"]))) == {"", "2"}


def test_memory_of_a_lone_job_falls_back_to_the_device() -> None:
    blind = [process("1", gpu_mem_used_mib=None)]
    assert split(attribute_device(device(), blind, [])) == {"1": (40.0, 20.0, 3000, "measured")}


def test_missing_counters_stay_missing() -> None:
    blank = device(gpu_util_pct=None, sm_active_pct=None, gpu_mem_used_mib=None)
    shares = attribute_device(blank, [process("1", 5), process("2", 6)], [])
    assert split(shares) == {"1": (None, None, 3000, "split by memory"), "2": (None, None, 3000, "split by memory")}


def test_round_keeps_devices_apart() -> None:
    passed = seen(10, [device("A"), device("B")], [process("1", uuid="A"), process("2", uuid="B")], [("B", "3")])
    found = {(one.uuid, one.job_id): one.gpu_util_pct for one in attribute_round(passed)}
    assert found == {("A", "1"): 40.0, ("B", "2"): 40.0, ("B", "3"): 0.0}


PCT = st.none() | st.floats(0, 100)
JOBS = st.sampled_from(["", "1", "2", "3", "4"])
PROCESSES = st.lists(
    st.builds(ProcessSample, st.just("GPU-0"), st.integers(1, 99), JOBS, st.none() | st.integers(0, 10**5), PCT),
    max_size=6,
)
DEVICES = st.builds(lambda util, sm: device(gpu_util_pct=util, sm_active_pct=sm), PCT, PCT)


@given(DEVICES, PROCESSES, st.lists(JOBS.filter(bool), max_size=4))
def test_parts_add_up_to_the_device(whole: DeviceSample, processes: list[ProcessSample], holders: list[str]) -> None:
    shares = attribute_device(whole, processes, holders)
    for name in ("gpu_util_pct", "sm_active_pct"):
        parts, value = [getattr(one, name) for one in shares], getattr(whole, name)
        if value is None:
            assert set(parts) <= {None}
        else:
            assert None not in parts
            assert sum(parts) == pytest.approx(value)
            assert all(0 <= part <= value * (1 + 1e-12) for part in parts)
    jobs = [one.job_id for one in shares]
    assert len(jobs) == len(set(jobs))
    running = {one.job_id for one in processes} - {""}
    assert running <= set(jobs) - {""} <= running | set(holders)
    if "" not in jobs:
        assert set(jobs) == running | set(holders)
    assert all((one.method == "unattributed") == (one.job_id == "") for one in shares)


@given(DEVICES, PROCESSES, st.lists(JOBS.filter(bool), max_size=4))
def test_order_and_repetition_of_holders_change_nothing(
    whole: DeviceSample, processes: list[ProcessSample], holders: list[str]
) -> None:
    again = [*reversed(holders), *holders]
    first = split(attribute_device(whole, processes, holders))
    second = split(attribute_device(whole, processes[::-1], again))
    assert first.keys() == second.keys()
    for job, (util, active, memory, method) in first.items():
        assert second[job] == (
            None if util is None else pytest.approx(util),
            None if active is None else pytest.approx(active),
            memory,
            method,
        )

# SPDX-License-Identifier: Apache-2.0
"""The NVML reader on a made-up driver: every counter in every way of sharing, and every fault."""

import inspect
import math
import re
from threading import Event
from typing import Any

import pynvml
import pytest

from slurm_colloc.core import clock
from slurm_colloc.core.errors import DeadlineError, GpuError
from slurm_colloc.gpu import nvml
from slurm_colloc.gpu.nvml import NvmlReader
from slurm_colloc.gpu.reader import GpuProcess, UnitReading, activity_pct
from tests.fakes.devices import IDLE, Load, Process, gpus, recorded
from tests.fakes.driver import ANSWERS, ANY, Driver
from tests.unit.made import H100, near
from tests.unit.made import RECORDED as RECORDED_FILES

BUSY = Load(98.0, 97.0, 90.0, 40.0, 60.0, 30.0, 20000.0, 500.0)
HALF = Load(40.0, 39.0, 33.0, 5.0, 32.0, 11.0, 900.0, 460.0)
COUNTED = ("gr_active_pct", "sm_active_pct", "sm_occupancy_pct", "tensor_active_pct", "dram_active_pct")
ALL = ("gpu_util_pct", *COUNTED, "gpu_mem_used_mib", "power_w")
RECORDED = list(recorded())


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(gpus(2)).install(monkeypatch)


class Seen(dict[str, UnitReading]):
    """Readings by uuid, and the processes."""

    processes: tuple[GpuProcess, ...]


def after(driver: Driver, reader: NvmlReader, lasting_s: float = 10.0) -> Seen:
    """Let time pass and read."""
    driver.now_s += lasting_s
    readings, processes = reader.read()
    seen = Seen({reading.uuid: reading for reading in readings})
    seen.processes = processes
    return seen


def twice(driver: Driver, reader: NvmlReader | None = None) -> Seen:
    """Read twice: most of it is counted from one reading to the next."""
    reader = reader or NvmlReader()
    after(driver, reader)
    return after(driver, reader)


def figures(reading: UnitReading | Load) -> dict[str, Any]:
    return {name: getattr(reading, name) for name in ALL}


# What is counted


@pytest.mark.parametrize(("load", "processes"), [one[1:] for one in RECORDED], ids=[one[0] for one in RECORDED])
def test_counters_come_through_as_recorded(driver: Driver, load: Load, processes: list[Process]) -> None:
    driver.gpus[0].does(load, *processes)
    seen = twice(driver)
    reading = seen["GPU-0"]
    assert figures(reading) == near(figures(load))
    assert reading.process_list
    assert reading.energy_j == near((load.power_w or 0) * 10)
    ran = any(process.sm_pct for process in processes)
    assert seen.processes == tuple(
        # Where one process is alone there is nothing to split, and the driver is not asked.
        GpuProcess(
            "GPU-0", pid, kind, mib, None if kind == "client" or not ran or len(processes) == 1 else float(sm_pct)
        )
        for pid, mib, sm_pct, kind in processes
    )


def test_units(driver: Driver) -> None:
    driver.gpus[0].minor, driver.gpus[1].minor = 3, 1
    assert [one[:7] for one in NvmlReader().units()] == [
        ("GPU-0", 3, H100, "", 81559, 132, 132),
        ("GPU-1", 1, H100, "", 81559, 132, 132),
    ]


def test_a_mean_is_of_the_whole_interval(driver: Driver) -> None:
    driver.gpus[0].script = [(-math.inf, IDLE), (driver.now_s + 16.0, BUSY)]
    seen = twice(driver)["GPU-0"]
    assert seen.sm_active_pct == near(0.4 * 90.0)
    assert seen.gpu_util_pct == near(0.4 * 98.0), "of the driver's buffer, not of its last second"
    assert seen.energy_j == near(6 * 71.0 + 4 * 500.0)
    assert seen.power_w == 500.0


def test_the_first_reading_knows_nothing_of_the_time_before(driver: Driver) -> None:
    driver.gpus[0].does(BUSY, Process(7, sm_pct=80))
    reader = NvmlReader()
    driver.now_s += 10.0
    readings, processes = reader.read()
    assert {getattr(readings[0], name) for name in (*COUNTED, "energy_j")} == {None}
    assert processes[0].sm_util_pct is None, "the driver would give a mean over all that it kept"
    assert (readings[0].gpu_util_pct, readings[0].power_w) == (98.0, 500.0)


def test_an_interval_too_short_says_nothing(driver: Driver) -> None:
    driver.gpus[0].does(BUSY)
    reader = NvmlReader()
    after(driver, reader)
    assert after(driver, reader, 0.05)["GPU-0"].sm_active_pct is None
    assert after(driver, reader, 1.0)["GPU-0"].sm_active_pct == near(90.0)


def test_a_card_without_gpm(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver(gpus(gpm=False)).install(monkeypatch)
    driver.gpus[0].does(HALF)
    seen = twice(driver)["GPU-0"]
    assert [getattr(seen, name) for name in ("gpu_util_pct", *COUNTED)] == [40.0, *[None] * 5]
    assert driver.counts.get("nvmlGpmSampleGet") is None


# Sharing


def test_time_slicing(driver: Driver) -> None:
    driver.gpus[0].does(
        HALF, Process(7, 500, 30), Process(8, 600, 0), Process(9, None, 5, "both"), Process(10, 20, 0, "graphics")
    )
    assert twice(driver).processes == (
        GpuProcess("GPU-0", 7, "compute", 500, 30.0),
        GpuProcess("GPU-0", 8, "compute", 600, 0.0),
        GpuProcess("GPU-0", 9, "compute", None, 5.0),
        GpuProcess("GPU-0", 10, "compute", 20, 0.0),
    )


def test_nothing_ran_so_nothing_is_known_of_each(driver: Driver) -> None:
    driver.gpus[0].does(IDLE, Process(7), Process(8))
    assert {one.sm_util_pct for one in twice(driver).processes} == {None}


def test_mps(driver: Driver) -> None:
    driver.gpus[0].does(
        HALF, Process(6, 66, 77, "server"), Process(7, 500, 30, "client"), Process(8, 600, 10, "client")
    )
    seen = twice(driver)
    assert figures(seen["GPU-0"]) == near(figures(HALF))
    assert [one[1:] for one in seen.processes] == [
        (6, "compute", 66, None),  # the sampler knows it by its name
        (7, "client", 500, None),
        (8, "client", 600, None),
    ]


def test_slices(driver: Driver) -> None:
    first, second, *_ = driver.cut(driver.gpus[0], "3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb")
    first.does(HALF, Process(7, 500, 30))
    second.does(BUSY, Process(8, 600, 10, "client"), Process(9, 66, 50, "server"))
    driver.gpus[1].does(HALF)
    reader = NvmlReader()
    assert [one[1:] for one in reader.units()] == [
        (0, H100, "3g.40gb", 40448, 60, 132, "GPU-0", 1),
        (1, H100, "2g.20gb", 20090, 32, 132, "GPU-0", 3),
        (2, H100, "1g.10gb", 9984, 16, 132, "GPU-0", 9),
        (3, H100, "1g.10gb", 9984, 16, 132, "GPU-0", 10),
        (4, H100, "", 81559, 132, 132, "", None),
    ]
    seen = twice(driver, reader)
    for part, load in ((first, HALF), (second, BUSY)):
        got = seen[part.uuid]
        assert [getattr(got, name) for name in COUNTED] == near([getattr(load, name) for name in COUNTED])
        assert got.gpu_mem_used_mib == load.gpu_mem_used_mib
        assert (got.gpu_util_pct, got.power_w, got.energy_j) == (None, None, None)
    assert figures(seen["GPU-1"]) == near(figures(HALF))
    assert seen.processes == (
        GpuProcess(first.uuid, 7, "compute", 500, None),
        GpuProcess(second.uuid, 8, "client", 600, None),
        GpuProcess(second.uuid, 9, "compute", 66, None),
    )


def test_two_compute_instances_in_one_gpu_instance(driver: Driver) -> None:
    first, second, _ = driver.cut(driver.gpus[0], "1c.3g.40gb", "2c.3g.40gb", "2g.20gb")
    for part in (first, second):
        part.does(BUSY, Process(7, 500))
    reader = NvmlReader()
    assert [(one.profile, one.sm_count, one.gpu_instance) for one in reader.units()[:3]] == [
        ("1c.3g.40gb", 20, 1),
        ("2c.3g.40gb", 40, 1),
        ("2g.20gb", 32, 3),
    ]
    seen = twice(driver, reader)
    assert seen[first.uuid] == UnitReading(first.uuid, True), "what both did is neither's"
    assert {one.gpu_mem_used_mib for one in seen.processes} == {500}


def test_mig_without_any_slice(driver: Driver) -> None:
    driver.cut(driver.gpus[0])
    assert [one.uuid for one in NvmlReader().units()] == ["GPU-1"]


# Not offered, not allowed, not a value

GPM_CALLS = ("nvmlGpmQueryDeviceSupport", "nvmlGpmSampleGet", "nvmlGpmMetricsGet")
OPTIONAL = {
    "nvmlDeviceGetSamples": (),  # GPU_UTIL is then that of the last second
    "nvmlDeviceGetMemoryInfo": ("gpu_mem_used_mib",),
    "nvmlDeviceGetPowerUsage": ("power_w",),
    "nvmlDeviceGetTotalEnergyConsumption": ("energy_j",),
    "nvmlDeviceGetComputeRunningProcesses": ("process_list",),
    "nvmlDeviceGetGraphicsRunningProcesses": (),
    "nvmlDeviceGetMPSComputeRunningProcesses": (),
    "nvmlDeviceGetProcessUtilization": (),
    "nvmlDeviceGetMigMode": (),
    "nvmlDeviceGetAttributes": (),
    "nvmlDeviceGetGpuInstanceProfileInfo": (),
    **dict.fromkeys(GPM_CALLS, COUNTED),
}


@pytest.mark.parametrize("code", sorted(nvml._NOT_OFFERED))
@pytest.mark.parametrize("call", OPTIONAL)
def test_what_is_not_offered_is_none(driver: Driver, call: str, code: int) -> None:
    driver.gpus[0].does(HALF, Process(7, 500, 30))
    reader = NvmlReader()
    full = twice(driver, reader)["GPU-0"]
    if call == "nvmlDeviceGetMemoryInfo":
        driver.says[call, "GPU-0"] = ANSWERS[call](driver, driver.gpus[0])
        driver.says[call, "GPU-0"].used = 2**64 - 1
    else:
        driver.faults[call, "GPU-0"] = code
        reader = NvmlReader()
        after(driver, reader)
    seen = after(driver, reader)
    missing: tuple[str, ...] = OPTIONAL[call]
    lacking: dict[str, Any] = {name: False if name == "process_list" else None for name in missing}
    assert seen["GPU-0"] == full._replace(**lacking)
    assert seen["GPU-1"].sm_active_pct == 0.0, "the other GPU has all"
    kinds = ["unknown" if call == "nvmlDeviceGetMPSComputeRunningProcesses" else "compute"]
    assert [process.kind for process in seen.processes] == ([] if "process_list" in missing else kinds)


def test_gpm_for_root_alone_until_it_is_allowed(driver: Driver) -> None:
    driver.gpus[0].does(HALF)
    driver.faults["nvmlGpmSampleGet", ANY] = pynvml.NVML_ERROR_NO_PERMISSION
    reader = NvmlReader()
    seen = twice(driver, reader)["GPU-0"]
    assert (seen.gpu_util_pct, seen.sm_active_pct) == (40.0, None)
    driver.faults.clear()
    assert after(driver, reader)["GPU-0"].sm_active_pct is None, "counted since an unknown time"
    assert after(driver, reader)["GPU-0"].sm_active_pct == near(33.0)


@pytest.mark.parametrize(
    ("call", "answer", "field"),
    [
        ("nvmlDeviceGetPowerUsage", 0xFFFFFFFF, "power_w"),
        ("nvmlDeviceGetTotalEnergyConsumption", 2**64 - 1, "energy_j"),
    ],
)
def test_all_ones_is_no_value(driver: Driver, call: str, answer: int, field: str) -> None:
    reader = NvmlReader()
    assert getattr(twice(driver, reader)["GPU-0"], field) is not None
    driver.says[call, "GPU-0"] = answer
    assert getattr(after(driver, reader)["GPU-0"], field) is None


@pytest.mark.parametrize(("value", "known"), [(math.nan, None), (-0.5, None), (129.4, 100.0), (9.2e18, None)])
def test_gpm_values_outside_their_range(driver: Driver, value: float, known: float | None) -> None:
    driver.gpus[0].does(HALF._replace(sm_active_pct=value))
    assert twice(driver)["GPU-0"].sm_active_pct == known
    assert activity_pct(value) == known


def test_buffered_readings_outside_their_range(driver: Driver) -> None:
    reader = NvmlReader()
    after(driver, reader)
    driver.gpus[0].does(HALF._replace(gpu_util_pct=0xFFFFFFFF))
    assert after(driver, reader)["GPU-0"].gpu_util_pct is None
    driver.gpus[0].does(HALF)
    assert after(driver, reader)["GPU-0"].gpu_util_pct == 40.0


def test_counters_that_stand_still_on_a_busy_gpu_are_not_zeros(driver: Driver) -> None:
    driver.gpus[0].does(Load(gpu_util_pct=99.0, gpu_mem_used_mib=900.0, power_w=480.0))
    driver.gpus[1].does(Load(gpu_util_pct=38.0, power_w=126.0))
    seen = twice(driver)
    assert {getattr(seen["GPU-0"], name) for name in COUNTED} == {None}
    assert {getattr(seen["GPU-1"], name) for name in COUNTED} == {0.0}


def test_a_process_without_a_pid_or_a_value(driver: Driver) -> None:
    driver.gpus[0].does(HALF, Process(0xFFFFFFFF, 5), Process(7, 500, 30), Process(8, 500, 4_000_000))
    assert [(one.pid, one.sm_util_pct) for one in twice(driver).processes] == [(7, 30.0), (8, None)]


def test_pids_of_another_namespace_are_not_ours(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nvml, "sees_host_pids", lambda: False)
    driver.gpus[0].does(HALF, Process(7, 500), Process(8, 600))
    assert [(one.pid, one.gpu_mem_used_mib) for one in NvmlReader().read()[1]] == [(0, 500), (0, 600)]


@pytest.mark.parametrize(
    ("cores", "capability", "sm_count"),
    [(3584, (6, 0), 56), (3840, (6, 1), 30), (5120, (7, 0), 80), (3584, (8, 0), 56), (10752, (8, 6), 84)],
    ids=["P100", "P40", "V100", "A30", "A40"],
)
def test_sms_without_mig(driver: Driver, cores: int, capability: tuple[int, int], sm_count: int) -> None:
    driver.faults["nvmlDeviceGetAttributes", ANY] = pynvml.NVML_ERROR_NOT_SUPPORTED
    driver.says["nvmlDeviceGetNumGpuCores", "GPU-0"] = cores
    driver.says["nvmlDeviceGetCudaComputeCapability", "GPU-0"] = capability
    assert NvmlReader().units()[0].sm_count == sm_count


# Gone, and back

READ_CALLS = [call for call in OPTIONAL if OPTIONAL[call] and call != "nvmlGpmQueryDeviceSupport"]
LOST = [pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED, pynvml.NVML_ERROR_UNKNOWN]


@pytest.mark.parametrize("code", LOST)
@pytest.mark.parametrize("call", READ_CALLS)
def test_a_sick_gpu_leaves_the_others_alone(driver: Driver, call: str, code: int) -> None:
    driver.gpus[1].does(HALF)
    reader = NvmlReader()
    after(driver, reader)
    driver.faults[call, "GPU-0"] = code
    seen = after(driver, reader)
    assert set(seen) == {"GPU-1"}, "a gap and never an idle GPU"
    assert (seen["GPU-1"].sm_active_pct, seen["GPU-1"].energy_j) == near((33.0, 4600.0))
    driver.faults.clear()
    assert set(after(driver, reader)) == {"GPU-0", "GPU-1"}


def test_a_lost_gpu_comes_back_within_a_minute(driver: Driver) -> None:
    driver.gpus[1].does(HALF)
    reader = NvmlReader()
    after(driver, reader)
    driver.faults[ANY, "GPU-0"] = pynvml.NVML_ERROR_GPU_IS_LOST
    seen = [after(driver, reader) for _ in range(30)]
    assert all(set(one) == {"GPU-1"} for one in seen)
    assert sum(one["GPU-1"].sm_active_pct is None for one in seen) == 1, "the driver was opened anew once"
    driver.faults.clear()
    assert set([after(driver, reader) for _ in range(6)][-1]) == {"GPU-0", "GPU-1"}
    assert after(driver, reader)["GPU-0"].energy_j == near(710.0)


def test_a_lost_gpu_that_still_tells_its_name(driver: Driver) -> None:
    reader = NvmlReader()
    for call in (*READ_CALLS, "nvmlDeviceGetMemoryInfo"):
        driver.faults[call, "GPU-0"] = pynvml.NVML_ERROR_GPU_IS_LOST
    seen = [after(driver, reader) for _ in range(60)]
    assert sum(one["GPU-1"].sm_active_pct is None for one in seen) == 2, "at first, and opened anew once"


def test_all_gpus_lost(driver: Driver) -> None:
    reader = NvmlReader()
    driver.faults["nvmlDeviceGetHandleByIndex", ANY] = pynvml.NVML_ERROR_GPU_IS_LOST
    driver.faults["nvmlDeviceGetMemoryInfo", ANY] = pynvml.NVML_ERROR_GPU_IS_LOST
    for said in ("stopped answering", "does not answer", "does not answer"):
        with pytest.raises(GpuError, match=said):
            reader.read()
    driver.faults.clear()
    assert len(reader.read()[0]) == 2


GONE = [
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    pynvml.NVML_ERROR_UNKNOWN,
]


@pytest.mark.parametrize("code", GONE)
def test_the_driver_is_loaded_anew(driver: Driver, code: int) -> None:
    for gpu in driver.gpus:
        gpu.does(HALF, Process(7, 500, 30), Process(8, 100, 3))
    reader = NvmlReader()
    twice(driver, reader)
    driver.unload(code)
    for said in ("stopped answering", "does not answer", "does not answer"):
        with pytest.raises(GpuError, match=said):
            after(driver, reader)
    driver.load()
    seen = after(driver, reader)
    assert figures(seen["GPU-0"]) == near({**figures(HALF), **dict.fromkeys(COUNTED)})
    assert (seen["GPU-0"].energy_j, seen.processes[0].sm_util_pct) == (None, None)
    seen = after(driver, reader)
    assert (seen["GPU-1"].sm_active_pct, seen["GPU-1"].energy_j) == near((33.0, 4600.0))
    assert seen.processes[0].sm_util_pct == 30.0
    assert driver.allocated == 4, "what was taken was given back"


def test_an_energy_counter_that_began_anew(driver: Driver) -> None:
    reader = NvmlReader()
    after(driver, reader)
    driver._loaded_s = driver.now_s + 8.0
    assert after(driver, reader)["GPU-0"].energy_j is None
    assert after(driver, reader)["GPU-0"].energy_j == near(710.0)


def test_no_driver_at_all(driver: Driver) -> None:
    driver.unload(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    with pytest.raises(GpuError, match="is this a GPU node"):
        NvmlReader()


def test_what_was_opened_is_closed(driver: Driver) -> None:
    driver.faults["nvmlDeviceGetCount", ANY] = pynvml.NVML_ERROR_UNKNOWN
    with pytest.raises(GpuError, match="does not answer"):
        NvmlReader()
    assert driver._open == 0
    driver.faults.clear()
    reader = NvmlReader()
    reader.close()
    assert (driver._open, driver.allocated) == (0, 0)


def test_a_call_that_hangs_can_be_left_behind(driver: Driver) -> None:
    reader = NvmlReader()
    back = driver.faults["nvmlDeviceGetPowerUsage", "GPU-1"] = Event()
    try:
        with pytest.raises(DeadlineError):
            clock.with_timeout(0.01, "reading the GPUs", reader.read)
    finally:
        back.set()


def test_a_gpu_is_cut_anew(driver: Driver) -> None:
    driver.cut(driver.gpus[0], "3g.40gb", "4g.40gb")
    reader = NvmlReader()
    after(driver, reader)
    driver.now_s += 5.0
    new = driver.cut(driver.gpus[0], "7g.80gb")
    new[0].does(HALF, Process(7, 500))
    assert set(after(driver, reader, 5.0)) == {"GPU-1"}, "slices that are no more are no readings"
    seen = after(driver, reader)
    assert set(seen) == {new[0].uuid, "GPU-1"}
    assert [one.gres_index for one in reader.units()] == [0, 1]
    assert after(driver, reader)[new[0].uuid].sm_active_pct == near(33.0)


def test_a_slice_is_added(driver: Driver) -> None:
    driver.cut(driver.gpus[0], "1g.10gb")
    reader = NvmlReader()
    driver.gpus[0].slices = [*(driver.gpus[0].slices or []), *driver.cut(driver.gpus[0], "3g.40gb")]
    seen = [after(driver, reader) for _ in range(7)]
    assert [len(one) for one in seen] == [2, 2, 2, 2, 2, 3, 3]


def test_numbers_of_slices_stay_when_a_gpu_is_lost(driver: Driver) -> None:
    driver.cut(driver.gpus[0], "3g.40gb", "4g.40gb")
    driver.cut(driver.gpus[1], "3g.40gb", "4g.40gb")
    reader = NvmlReader()
    before = {one.uuid: one.gres_index for one in reader.units()}
    driver.faults[ANY, "GPU-0"] = pynvml.NVML_ERROR_GPU_IS_LOST
    twice(driver, reader)
    assert [(one.uuid, one.gres_index) for one in reader.units()] == list(before.items())[2:]
    driver.faults.clear()
    after(driver, reader, 60.0)
    assert {one.uuid: one.gres_index for one in reader.units()} == before


def test_a_clock_that_is_set_back(driver: Driver) -> None:
    driver.gpus[0].does(HALF, Process(7, 500, 30), Process(8, 100, 3))
    reader = NvmlReader()
    after(driver, reader)
    driver.epoch_s -= 3600.0
    seen = twice(driver, reader)
    assert (seen["GPU-0"].gpu_util_pct, seen.processes[0].sm_util_pct) == (40.0, 30.0)


def test_the_binding_takes_a_growing_list_for_an_error(driver: Driver) -> None:
    driver.gpus[0].does(HALF, Process(7, 500, 30))
    reader = NvmlReader()
    after(driver, reader)
    driver.faults["nvmlDeviceGetComputeRunningProcesses", "GPU-0"] = pynvml.NVML_ERROR_INSUFFICIENT_SIZE
    seen = after(driver, reader)
    assert (seen["GPU-0"].process_list, seen["GPU-0"].sm_active_pct, seen.processes) == (False, near(33.0), ())


def test_the_oldest_binding_has_all_that_is_used() -> None:
    names = (RECORDED_FILES / "nvidia-ml-py-12.560.30/names.txt").read_text().split()
    used = set(re.findall(r"pynvml\.(\w+)", inspect.getsource(nvml)))
    assert used <= set(names)
    assert len(used) > 30


def test_a_gpu_that_was_away_does_not_book_the_time_on_who_comes_next(driver: Driver) -> None:
    for gpu in driver.gpus:
        gpu.does(HALF, Process(7, 500, 30))
    reader = NvmlReader()
    twice(driver, reader)
    driver.faults["*", "GPU-0"] = pynvml.NVML_ERROR_TIMEOUT
    for _ in range(3):
        after(driver, reader)
    del driver.faults["*", "GPU-0"]
    back = after(driver, reader)["GPU-0"]
    assert (back.energy_j, back.sm_active_pct) == (None, None)
    assert after(driver, reader)["GPU-0"].energy_j == near(4600.0)

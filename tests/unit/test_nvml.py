# SPDX-License-Identifier: Apache-2.0
"""The NVML reader against a driver that answers with readings recorded on an H100, and one that stops answering."""

import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from slurm_colloc.errors import GpuError
from slurm_colloc.gpu import nvml
from slurm_colloc.gpu.nvml import NvmlReader
from slurm_colloc.gpu.reader import UnitReading
from slurm_colloc.observe.sampler import Sampler
from tests.unit.made import RECORDED

MIB = 1024 * 1024
LINES = [json.loads(line) for line in (RECORDED / "nvml-h100/loads.jsonl").read_text().splitlines()]
UUID, _, MODEL, _, TOTAL_MIB, SM_COUNT, _ = LINES[0]["units"][0]
LOADS = {line["load"]: line for line in LINES[1:]}


class Driver:
    """What the recorded loads look like through pynvml's functions; ``fail`` gives one of them an error."""

    def __init__(self, load: str) -> None:
        self.load = LOADS[load]
        self.medians = self.load["medians"]
        self.fail: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        answer: Callable[..., Any] | None = ANSWERS.get(name)
        if answer is None:
            return getattr(pynvml, name)

        def call(*arguments: Any, **options: Any) -> Any:
            if name in self.fail:
                raise pynvml.NVMLError(self.fail[name])
            return answer(self, *arguments, **options)

        return call


def metrics(driver: Driver, request: Any) -> Any:
    for position, name in enumerate(nvml._GPM):
        known = name in driver.medians
        request.metrics[position].value = driver.medians.get(name, 0)
        request.metrics[position].nvmlReturn = 0 if known else pynvml.NVML_ERROR_NOT_SUPPORTED
    return request


def not_offered(*_: Any) -> Any:
    raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


def processes(driver: Driver, _: Any) -> list[Any]:
    found = enumerate(driver.load["processes"], 100)
    return [SimpleNamespace(pid=pid, usedGpuMemory=mib * MIB) for pid, (_, mib, _) in found]


ANSWERS: dict[str, Callable[..., Any]] = {
    "nvmlInit": lambda driver: None,
    "nvmlShutdown": lambda driver: None,
    "nvmlDeviceGetCount": lambda driver: 1,
    "nvmlDeviceGetHandleByIndex": lambda driver, index: f"handle {index}",
    "nvmlDeviceGetMinorNumber": lambda driver, handle: 0,
    "nvmlDeviceGetSamples": not_offered,
    "nvmlDeviceGetTotalEnergyConsumption": not_offered,
    "nvmlGpmSampleFree": lambda driver, sample: None,
    "nvmlDeviceGetName": lambda driver, handle: MODEL,
    "nvmlDeviceGetUUID": lambda driver, handle: UUID,
    "nvmlDeviceGetAttributes": lambda driver, handle: SimpleNamespace(multiprocessorCount=SM_COUNT),
    "nvmlDeviceGetMigMode": lambda driver, handle: [0, 0],
    "nvmlDeviceGetMemoryInfo": lambda driver, handle, version=None: SimpleNamespace(
        total=TOTAL_MIB * MIB, used=int(driver.medians["gpu_mem_used_mib"]) * MIB
    ),
    "nvmlGpmQueryDeviceSupport": lambda driver, handle: SimpleNamespace(isSupportedDevice=1),
    "nvmlGpmSampleAlloc": lambda driver: pynvml.c_nvmlGpmSample_t(),
    "nvmlGpmSampleGet": lambda driver, handle, sample: None,
    "nvmlGpmMetricsGet": metrics,
    "nvmlDeviceGetUtilizationRates": lambda driver, handle: SimpleNamespace(gpu=int(driver.medians["gpu_util_pct"])),
    "nvmlDeviceGetPowerUsage": lambda driver, handle: driver.medians["power_w"] * 1000,
    "nvmlDeviceGetComputeRunningProcesses": processes,
    "nvmlDeviceGetGraphicsRunningProcesses": lambda driver, handle: [],
    "nvmlDeviceGetMPSComputeRunningProcesses": lambda driver, handle: [],
    "nvmlDeviceGetProcessUtilization": lambda driver, handle, since: [
        SimpleNamespace(pid=pid, smUtil=int(share), timeStamp=1)
        for pid, (_, _, share) in enumerate(driver.load["processes"], 100)
        if share
    ],
}


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    made = Driver("half")
    monkeypatch.setattr(nvml, "pynvml", made)
    monkeypatch.setattr(nvml, "_LEAST_GPM_S", 0.0)
    return made


@pytest.mark.parametrize("load", ["idle", "resident", "tiny", "half", "matmul"])
def test_counters_come_through_as_recorded(driver: Driver, load: str) -> None:
    driver.load, driver.medians = LOADS[load], LOADS[load]["medians"]
    reader = NvmlReader()
    ((unit,), (readings, found)) = reader.units(), reader.read()
    assert (unit.uuid, unit.model, unit.mem_total_mib, unit.sm_count) == (UUID, MODEL, TOTAL_MIB, SM_COUNT)
    (reading,) = readings
    assert reading == UnitReading(UUID, process_list=True, **driver.medians)
    assert [(one.gpu_mem_used_mib, one.sm_util_pct) for one in found] == [
        (mib, share or None) for _, mib, share in LOADS[load]["processes"]
    ]


OPTIONAL = {
    "nvmlDeviceGetUtilizationRates": "gpu_util_pct",
    "nvmlGpmMetricsGet": "sm_active_pct",
    "nvmlDeviceGetPowerUsage": "power_w",
}


@pytest.mark.parametrize("call", OPTIONAL)
def test_what_a_card_does_not_offer_is_none(driver: Driver, call: str) -> None:
    driver.fail[call] = pynvml.NVML_ERROR_NOT_SUPPORTED
    ((reading,), _) = NvmlReader().read()
    assert getattr(reading, OPTIONAL[call]) is None
    assert reading.gpu_mem_used_mib == driver.medians["gpu_mem_used_mib"]


GONE = [pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_UNINITIALIZED, pynvml.NVML_ERROR_UNKNOWN]


@pytest.mark.parametrize("code", GONE)
@pytest.mark.parametrize("call", [*OPTIONAL, "nvmlDeviceGetComputeRunningProcesses", "nvmlGpmSampleGet"])
def test_a_lost_driver_is_a_gap_and_never_a_job_at_zero(driver: Driver, call: str, code: int) -> None:
    sampler = Sampler(NvmlReader(), "g1", 10.0)
    sampler.sample(0.0)
    driver.fail[call] = code
    with pytest.raises(GpuError, match="stopped answering"):
        sampler.sample(10.0)
    del driver.fail[call]
    assert len(sampler.sample(20.0).devices) == 1, "it comes back by itself"


def test_no_driver_at_all(driver: Driver) -> None:
    driver.fail["nvmlInit"] = pynvml.NVML_ERROR_DRIVER_NOT_LOADED
    with pytest.raises(GpuError, match="is this a GPU node"):
        NvmlReader()

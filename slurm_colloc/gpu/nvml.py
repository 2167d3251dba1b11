# SPDX-License-Identifier: Apache-2.0
"""The driver's own library, and the only import of pynvml (package nvidia-ml-py).

Each counter is asked for separately and is None when the driver has none: GPM exists from Hopper on, GPU_UTIL not on
MIG, per-process SM not under MPS. Field meanings: docs/explanation/metrics.md.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pynvml

from slurm_colloc.errors import GpuError
from slurm_colloc.gpu.reader import GpuProcess, GpuUnit, UnitReading
from slurm_colloc.units import capacity_mib, used_mib, watts

_GPM_SM_UTIL, _GPM_DRAM_BW_UTIL = 2, 10
# PIDs that struct mismatches between binding and driver are known to give.
_NO_PID = 0xFFFFFFFF
_NO_VALUE = 0xFFFFFFFFFFFFFFFF


# "Not here, not for you, nothing to say" is an answer: missing, never 0. Any other error is a driver that is gone.
_NOT_OFFERED = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_NOT_FOUND,
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_NO_DATA,
        pynvml.NVML_ERROR_NOT_READY,
    }
)


def _or_none(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except pynvml.NVMLError as error:
        if error.value in _NOT_OFFERED:
            return None
        raise


class _Unit:
    """A GPU or a MIG slice with the driver's handles and the previous GPM sample."""

    def __init__(self, unit: GpuUnit, handle: Any, parent: Any, instance_id: int | None) -> None:
        self.unit = unit
        self.handle = handle
        self._parent = parent
        self._instance_id = instance_id
        self._samples = self._allocate() if self._gpm_supported() else None
        self._last_seen_us = 0

    def _gpm_supported(self) -> bool:
        support = _or_none(lambda: pynvml.nvmlGpmQueryDeviceSupport(self._parent))
        return bool(support is not None and support.isSupportedDevice)

    def _allocate(self) -> list[Any] | None:
        samples = [pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()]
        return samples if self._take(samples[0]) else None

    def _take(self, sample: Any) -> bool:
        try:
            if self._instance_id is None:
                pynvml.nvmlGpmSampleGet(self._parent, sample)
            else:
                pynvml.nvmlGpmMigSampleGet(self._parent, self._instance_id, sample)
        except pynvml.NVMLError as error:
            if error.value in _NOT_OFFERED:
                return False
            raise
        return True

    def gpm(self) -> tuple[float | None, float | None]:
        """Return (SM active, DRAM active) in percent since the previous call."""
        if self._samples is None or not self._take(self._samples[1]):
            return None, None
        request = pynvml.c_nvmlGpmMetricsGet_t()
        request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = 2
        request.sample1, request.sample2 = self._samples
        request.metrics[0].metricId = _GPM_SM_UTIL
        request.metrics[1].metricId = _GPM_DRAM_BW_UTIL
        self._samples.reverse()
        if _or_none(lambda: pynvml.nvmlGpmMetricsGet(request)) is None:
            return None, None
        values = [request.metrics[i].value if request.metrics[i].nvmlReturn == 0 else None for i in range(2)]
        # A slice has been seen above 100 %.
        first, second = (None if value is None else min(100.0, float(value)) for value in values)
        return first, second

    def process_sm_util(self) -> dict[int, float]:
        """Return SM percent by PID since the previous call; empty when nothing ran or the driver has none."""
        found = _or_none(lambda: pynvml.nvmlDeviceGetProcessUtilization(self.handle, self._last_seen_us)) or []
        for item in found:
            self._last_seen_us = max(self._last_seen_us, item.timeStamp)
        return {item.pid: float(item.smUtil) for item in found if item.smUtil <= 100}


class NvmlReader:
    """A GpuReader over the driver of this node."""

    def __init__(self) -> None:
        self._units = _open_all()
        self._lost = False

    def units(self) -> tuple[GpuUnit, ...]:
        """Return the GPUs, and the slices of those that are cut."""
        return tuple(opened.unit for opened in self._units)

    def read(self) -> tuple[tuple[UnitReading, ...], tuple[GpuProcess, ...]]:
        """Return counters and processes.

        Raises:
            GpuError: the driver or a GPU is gone; the next call opens the driver anew.
        """
        if self._lost:
            self.close()
            self._units, self._lost = _open_all(), False
        readings, processes = [], []
        try:
            for opened in self._units:
                readings.append(_reading(opened))
                processes += _processes(opened)
        except pynvml.NVMLError as error:
            self._lost = True
            raise GpuError(f"the NVIDIA driver stopped answering: {error}") from error
        return tuple(readings), tuple(processes)

    def close(self) -> None:
        """Shut the library down."""
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _open_all() -> list[_Unit]:
    try:
        pynvml.nvmlInit()
        units = [unit for index in range(pynvml.nvmlDeviceGetCount()) for unit in _open(index)]
    except pynvml.NVMLError as error:
        raise GpuError(f"the NVIDIA driver does not answer: {error}; is this a GPU node?") from error
    # Slurm numbers what it hands out: cut GPUs count by their slices.
    for position, opened in enumerate(units):
        opened.unit = opened.unit._replace(gres_index=position)
    return units


def _open(index: int) -> list[_Unit]:
    device = pynvml.nvmlDeviceGetHandleByIndex(index)
    model = pynvml.nvmlDeviceGetName(device)
    sm_count = _or_none(lambda: pynvml.nvmlDeviceGetAttributes(device).multiprocessorCount) or _sm_count(device)
    mode = _or_none(lambda: pynvml.nvmlDeviceGetMigMode(device)) or [0, 0]
    if mode[0] == 0:
        unit = GpuUnit(pynvml.nvmlDeviceGetUUID(device), index, model, "", _total(device), sm_count, sm_count)
        return [_Unit(unit, device, device, None)]
    slices = []
    for position in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(device)):
        handle = _or_none(partial(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, device, position))
        if handle is not None:
            slices.append(_open_slice(handle, device, model, sm_count))
    return slices


def _open_slice(handle: Any, device: Any, model: str, whole_sm_count: int) -> _Unit:
    attributes = pynvml.nvmlDeviceGetAttributes(handle)
    name = pynvml.nvmlDeviceGetName(handle)
    unit = GpuUnit(
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        gres_index=0,
        model=model,
        profile=name.rpartition("MIG ")[2],
        mem_total_mib=_total(handle),
        sm_count=attributes.multiprocessorCount,
        whole_sm_count=whole_sm_count,
    )
    return _Unit(unit, handle, device, pynvml.nvmlDeviceGetGpuInstanceId(handle))


def _sm_count(device: Any) -> int:
    """Return the SMs of a whole GPU: that of its largest MIG profile where MIG exists, else cores over cores per SM."""
    info = _or_none(
        lambda: pynvml.nvmlDeviceGetGpuInstanceProfileInfo(device, pynvml.NVML_GPU_INSTANCE_PROFILE_7_SLICE)
    )
    if info is not None:
        return int(info.multiprocessorCount)
    cores = _or_none(lambda: pynvml.nvmlDeviceGetNumGpuCores(device))
    major = (_or_none(lambda: pynvml.nvmlDeviceGetCudaComputeCapability(device)) or (0, 0))[0]
    return int(cores) // (64 if major in (6, 7) else 128) if cores else 0


def _total(handle: Any) -> int:
    return capacity_mib(int(pynvml.nvmlDeviceGetMemoryInfo(handle).total))


def _reading(opened: _Unit) -> UnitReading:
    # Version 2 reports the driver's reserve apart; version 1 calls an empty GPU 0.6 % full.
    memory = _or_none(lambda: pynvml.nvmlDeviceGetMemoryInfo(opened.handle, version=pynvml.nvmlMemory_v2))
    utilization = _or_none(lambda: pynvml.nvmlDeviceGetUtilizationRates(opened.handle))
    power = None if opened.unit.profile else _or_none(lambda: pynvml.nvmlDeviceGetPowerUsage(opened.handle))
    sm_active, dram_active = opened.gpm()
    return UnitReading(
        uuid=opened.unit.uuid,
        gpu_util_pct=None if utilization is None or utilization.gpu > 100 else float(utilization.gpu),
        sm_active_pct=sm_active,
        dram_active_pct=dram_active,
        gpu_mem_used_mib=None if memory is None or memory.used == _NO_VALUE else used_mib(int(memory.used)),
        power_w=None if power is None else watts(power),
    )


def _processes(opened: _Unit) -> list[GpuProcess]:
    running = _or_none(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(opened.handle)) or []
    graphics = _or_none(lambda: pynvml.nvmlDeviceGetGraphicsRunningProcesses(opened.handle)) or []
    clients = {
        item.pid for item in _or_none(lambda: pynvml.nvmlDeviceGetMPSComputeRunningProcesses(opened.handle)) or []
    }
    # A PID can be in both lists. Under MPS the compute list also has the server, which is no job's process.
    found = {item.pid: item for item in [*graphics, *running] if item.pid != _NO_PID}
    if clients:
        found = {pid: item for pid, item in found.items() if pid in clients}
    sm_util = {} if clients or opened.unit.profile else opened.process_sm_util()
    # The driver lists only processes that ran kernels; a resident process beside them used none.
    known = bool(sm_util)
    return [
        GpuProcess(opened.unit.uuid, pid, _memory(item), sm_util.get(pid, 0.0) if known else None)
        for pid, item in sorted(found.items())
    ]


def _memory(item: Any) -> int | None:
    size = item.usedGpuMemory
    return None if size is None or size == _NO_VALUE else used_mib(int(size))

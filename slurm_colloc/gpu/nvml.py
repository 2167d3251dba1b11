# SPDX-License-Identifier: Apache-2.0
"""The driver's own library, and the only import of pynvml (package nvidia-ml-py).

Each counter is asked for separately and is None when the driver has none: GPM exists from Hopper on, GPU_UTIL not on
MIG, per-process SM not under MPS. Field meanings: docs/explanation/metrics.md.
"""

import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pynvml

from slurm_colloc.core import clock
from slurm_colloc.core.errors import GpuError
from slurm_colloc.core.units import capacity_mib, joules, used_mib, watts
from slurm_colloc.core.usage_model import ProcessKind
from slurm_colloc.gpu.proc import sees_host_pids
from slurm_colloc.gpu.reader import GpuProcess, GpuUnit, UnitReading, activity_pct, numbered, stands_still

# GPM's own numbers (nvml.h, nvmlGpmMetricId_t) of our names; all are percentages.
_GPM = {
    "gr_active_pct": 1,
    "sm_active_pct": 2,
    "sm_occupancy_pct": 3,
    "tensor_active_pct": 5,
    "dram_active_pct": 10,
}
# Counters read closer together than this say nothing.
_LEAST_GPM_S = 0.1
# These stand for "no value" in 32 and 64 bits; one comes as a PID of a mismatch between binding and driver.
_NO_PID = _NO_VALUE_32 = 0xFFFFFFFF
_NO_VALUE = 0xFFFFFFFFFFFFFFFF
# How often the driver is asked whether GPUs were cut anew or have come back.
_LOOK_ANEW_S = 60.0

# Such an answer is a missing value, never 0.
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
        # The list grew between the binding's two calls, or was empty at the first (which it raises as an error).
        pynvml.NVML_ERROR_INSUFFICIENT_SIZE,
        pynvml.NVML_SUCCESS,
    }
)
# Any other error is one GPU's: the others go on, for a sick GPU must not blind the node.
_DRIVER_GONE = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }
)


def _or_none(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    try:
        return call(*args, **options)
    except pynvml.NVMLError as error:
        if error.value in _NOT_OFFERED:
            return None
        raise


class _Unit:
    """A GPU or a MIG slice with the driver's handles and what was read of it before."""

    def __init__(self, unit: GpuUnit, handle: Any, parent: Any) -> None:
        self.unit = unit
        self.handle = handle
        self._parent = parent
        # Two compute instances in one GPU instance have its counters and memory in common, and neither has its own.
        self.is_alone = True
        # Nothing is known of the time before: the first reading of what is counted since the previous one is None.
        support = _or_none(pynvml.nvmlGpmQueryDeviceSupport, parent)
        has_gpm = support is not None and support.isSupportedDevice
        self._samples = [pynvml.nvmlGpmSampleAlloc() for _ in range(2)] if has_gpm else None
        self._sampled_s: float | None = None
        self._energy_mj: int | None = None
        self._util_seen_us = 0
        self._processes_seen_us = 0

    def _take(self, sample: Any) -> Any:
        if self.unit.gpu_instance is None:
            return pynvml.nvmlGpmSampleGet(self._parent, sample)
        return pynvml.nvmlGpmMigSampleGet(self._parent, self.unit.gpu_instance, sample)

    def gpm(self) -> dict[str, float | None]:
        """Return GPM's figures since the previous call, by our names; nothing where the driver has none."""
        samples, before_s, self._sampled_s = self._samples, self._sampled_s, None
        if samples is None or not self.is_alone or _or_none(self._take, samples[1]) is None:
            return {}
        samples.reverse()
        self._sampled_s = time.monotonic()
        if before_s is None or self._sampled_s - before_s < _LEAST_GPM_S:
            return {}
        request = pynvml.c_nvmlGpmMetricsGet_t()
        request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(_GPM)
        request.sample2, request.sample1 = samples
        for position, number in enumerate(_GPM.values()):
            request.metrics[position].metricId = number
        if _or_none(pynvml.nvmlGpmMetricsGet, request) is None:
            return {}
        return {
            name: None if (metric := request.metrics[position]).nvmlReturn else activity_pct(metric.value)
            for position, name in enumerate(_GPM)
        }

    def gpu_util(self) -> float | None:
        """Return GPU_UTIL since the previous call, in percent.

        The plain reading is that of the driver's last second or less. The driver also keeps some 70 readings of about
        0.2 s, and their mean covers the whole interval of a sampler that comes round within their time.
        """
        if self.unit.profile:
            return None
        since_us = self._util_seen_us = _not_ahead(self._util_seen_us)
        samples = _or_none(pynvml.nvmlDeviceGetSamples, self.handle, pynvml.NVML_GPU_UTILIZATION_SAMPLES, since_us)
        values = [(int(item.timeStamp), int(item.sampleValue.uiVal)) for item in (samples[1] if samples else ())]
        new = [value for at_us, value in values if since_us < at_us < _NO_VALUE and value <= 100]
        self._util_seen_us = max([since_us, *(at_us for at_us, _ in values if at_us < _NO_VALUE)])
        if new and since_us:
            return sum(new) / len(new)
        now = _or_none(pynvml.nvmlDeviceGetUtilizationRates, self.handle)
        return None if now is None or now.gpu > 100 else float(now.gpu)

    def energy_j(self) -> float | None:
        """Return the energy taken since the previous call; None after the counter began anew with the driver."""
        if self.unit.profile:  # it is the card's, not the slice's
            return None
        now_mj = _or_none(pynvml.nvmlDeviceGetTotalEnergyConsumption, self.handle)
        before, self._energy_mj = self._energy_mj, None if now_mj is None or now_mj >= _NO_VALUE else int(now_mj)
        if before is None or self._energy_mj is None or self._energy_mj < before:
            return None
        return joules(self._energy_mj - before)

    def process_sm_util(self, *, split: bool = True) -> dict[int, float | None]:
        """Return SM percent by PID since the previous call; empty when nothing ran or the driver has none.

        The first call returns nothing: the driver would answer with a mean over all that it has kept. So does one that
        finds nothing to ``split``, and the next is then a first one.
        """
        if not split:
            self._processes_seen_us = 0
            return {}
        since_us = self._processes_seen_us = _not_ahead(self._processes_seen_us)
        items = _or_none(pynvml.nvmlDeviceGetProcessUtilization, self.handle, since_us) or []
        self._processes_seen_us = max([since_us, *(item.timeStamp for item in items if item.timeStamp < _NO_VALUE)])
        return {item.pid: float(item.smUtil) if item.smUtil <= 100 else None for item in items} if since_us else {}

    def forget(self) -> None:
        """Let the next reading be a first one: counts of meanwhile are of a time that nobody looked at."""
        self._sampled_s = self._energy_mj = None
        self._util_seen_us = self._processes_seen_us = 0

    def free(self) -> None:
        """Give the samples back to the library."""
        for sample in self._samples or ():
            with suppress(pynvml.NVMLError):
                pynvml.nvmlGpmSampleFree(sample)
        self._samples = None


def _not_ahead(seen_us: int) -> int:
    """Return when the newest value was seen, but not a time that the wall clock, set back, has yet to reach again."""
    return min(seen_us, int(clock.now() * 1e6))


class NvmlReader:
    """A GpuReader over the driver of this node; a ``patient`` one lets the driver come later."""

    complaint = ""

    def __init__(self, *, patient: bool = False) -> None:
        self._units = [] if patient else _open_all({})
        self._looked_s = time.monotonic()
        self._lost = patient
        self._host_pids = sees_host_pids()

    def units(self) -> tuple[GpuUnit, ...]:
        """Return the GPUs, and the slices of those that are cut."""
        return tuple(opened.unit for opened in self._units)

    def read(self) -> tuple[tuple[UnitReading, ...], tuple[GpuProcess, ...]]:
        """Return counters and processes; a GPU that fell off the bus is left out.

        Raises:
            GpuError: the driver or all GPUs are gone; the next call opens the driver anew.
        """
        self._open_anew_where_needed()
        readings: list[UnitReading] = []
        processes: list[GpuProcess] = []
        lost: pynvml.NVMLError | None = None
        for opened in self._units:
            try:
                unit_processes = _processes(opened, self._host_pids)
                readings.append(_reading(opened, unit_processes is not None))
                processes += unit_processes or []
            except pynvml.NVMLError as error:
                lost = error
                opened.forget()
                if error.value in _DRIVER_GONE:
                    readings.clear()
                    break
        if lost and not readings:
            self._lost = True
            raise GpuError(f"the NVIDIA driver stopped answering: {lost}") from lost
        if lost and any(opened.unit.profile for opened in self._units):
            self._looked_s = -_LOOK_ANEW_S  # a slice may be gone because its GPU was cut anew
        return tuple(readings), tuple(processes)

    def _open_anew_where_needed(self) -> None:
        now_s = time.monotonic()
        if not self._lost and now_s - self._looked_s >= _LOOK_ANEW_S:
            self._looked_s = now_s
            with suppress(pynvml.NVMLError):
                self._lost = _identities() != {opened.unit.uuid for opened in self._units}
        if self._lost:
            self.close()
            numbers = {opened.unit.uuid: opened.unit.gres_index for opened in self._units}
            self._units, self._lost, self._looked_s = _open_all(numbers), False, now_s

    def close(self) -> None:
        """Shut the library down."""
        for opened in self._units:
            opened.free()
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _open_all(numbers: dict[str, int]) -> list[_Unit]:
    """Open the driver; ``numbers`` are those that the units had before."""
    units: list[_Unit] = []
    failed = []
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        for index in range(count):
            try:
                units += _open(index)
            except pynvml.NVMLError as error:
                failed.append(error)
                if error.value in _DRIVER_GONE or len(failed) == count:
                    raise
        minors = [_or_none(pynvml.nvmlDeviceGetMinorNumber, opened.handle) for opened in units]
    except pynvml.NVMLError as error:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()
        raise GpuError(f"the NVIDIA driver does not answer: {error}; is this a GPU node?") from error
    for opened, unit in zip(units, numbered([opened.unit for opened in units], minors, numbers), strict=True):
        opened.unit = unit
    shared = Counter((opened.unit.parent_uuid, opened.unit.gpu_instance) for opened in units if opened.unit.profile)
    for opened in units:
        opened.is_alone = shared[opened.unit.parent_uuid, opened.unit.gpu_instance] <= 1
    return units


def _identities() -> set[str]:
    """Return the uuids of what is there now."""
    uuids = set()
    for index in range(pynvml.nvmlDeviceGetCount()):
        # A GPU that does not answer is not there, as it was not when the driver was opened.
        with suppress(pynvml.NVMLError):
            device = pynvml.nvmlDeviceGetHandleByIndex(index)
            slices = _slices(device)
            handles = [device] if slices is None else slices
            _total(device)  # some GPUs still tell their uuid when they are lost
            uuids |= {pynvml.nvmlDeviceGetUUID(handle) for handle in handles}
    return uuids


def _slices(device: Any) -> list[Any] | None:
    """Return the handles of a GPU's MIG devices, None when it is not cut."""
    mode = _or_none(pynvml.nvmlDeviceGetMigMode, device) or [0, 0]
    if mode[0] == 0:
        return None
    handles = (
        _or_none(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, device, position)
        for position in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(device))
    )
    return [handle for handle in handles if handle is not None]


def _open(index: int) -> list[_Unit]:
    device = pynvml.nvmlDeviceGetHandleByIndex(index)
    model = pynvml.nvmlDeviceGetName(device)
    uuid = pynvml.nvmlDeviceGetUUID(device)
    sm_count = _or_none(lambda: pynvml.nvmlDeviceGetAttributes(device).multiprocessorCount) or _sm_count(device)
    slices = _slices(device)
    if slices is None:
        return [_Unit(GpuUnit(uuid, index, model, "", _total(device), sm_count, sm_count), device, device)]
    return [_open_slice(handle, device, uuid, model, sm_count) for handle in slices]


def _open_slice(handle: Any, device: Any, parent_uuid: str, model: str, whole_sm_count: int) -> _Unit:
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
        parent_uuid=parent_uuid,
        gpu_instance=pynvml.nvmlDeviceGetGpuInstanceId(handle),
    )
    return _Unit(unit, handle, device)


def _sm_count(device: Any) -> int:
    """Return the SMs of a whole GPU: that of its largest MIG profile where MIG exists, else cores over cores per SM."""
    info = _or_none(pynvml.nvmlDeviceGetGpuInstanceProfileInfo, device, pynvml.NVML_GPU_INSTANCE_PROFILE_7_SLICE)
    if info is not None:
        return int(info.multiprocessorCount)
    cores = _or_none(pynvml.nvmlDeviceGetNumGpuCores, device)
    major, minor = _or_none(pynvml.nvmlDeviceGetCudaComputeCapability, device) or (0, 0)
    # P100, Volta and Turing, A100 and A30; the others have twice as many.
    per_sm = 64 if major == 7 or (major, minor) in ((6, 0), (8, 0)) else 128
    return int(cores) // per_sm if cores else 0


def _total(handle: Any) -> int:
    return capacity_mib(int(pynvml.nvmlDeviceGetMemoryInfo(handle).total))


def _reading(opened: _Unit, process_list: bool) -> UnitReading:
    # Version 2 reports the driver's reserve apart; version 1 calls an empty GPU 0.6 % full.
    memory = _or_none(pynvml.nvmlDeviceGetMemoryInfo, opened.handle, version=pynvml.nvmlMemory_v2)
    if memory is None:
        _total(opened.handle)  # raises for a slice that is no more; an old driver has version 1
    used = None if memory is None or memory.used >= _NO_VALUE or not opened.is_alone else used_mib(int(memory.used))
    power = None if opened.unit.profile else _or_none(pynvml.nvmlDeviceGetPowerUsage, opened.handle)
    gpu_util, gpm = opened.gpu_util(), opened.gpm()
    return UnitReading(
        uuid=opened.unit.uuid,
        process_list=process_list,
        gpu_util_pct=gpu_util,
        **({} if stands_still(gpu_util, gpm) else gpm),
        gpu_mem_used_mib=used,
        power_w=None if power is None or power >= _NO_VALUE_32 else watts(power),
        energy_j=opened.energy_j(),
    )


def _processes(opened: _Unit, host_pids: bool) -> list[GpuProcess] | None:
    """Return the processes on a unit, None where the driver does not tell."""
    running = _or_none(pynvml.nvmlDeviceGetComputeRunningProcesses, opened.handle)
    if running is None:
        return None
    graphics = _or_none(pynvml.nvmlDeviceGetGraphicsRunningProcesses, opened.handle) or []
    served = _or_none(pynvml.nvmlDeviceGetMPSComputeRunningProcesses, opened.handle)
    clients = {item.pid for item in served or ()}
    other_kind = ProcessKind.UNKNOWN if served is None else ProcessKind.COMPUTE
    # A PID can be in both lists. The compute list also has the server of MPS.
    items = {item.pid: item for item in [*graphics, *running] if item.pid != _NO_PID}
    # Only where there is something to split: the call takes the driver 2 ms.
    split = len(items) > 1 and not clients and not opened.unit.profile
    sm_util = opened.process_sm_util(split=split)
    # The driver lists only processes that ran kernels; a resident process beside them used none.
    has_sm_util = bool(sm_util)
    return [
        GpuProcess(
            uuid=opened.unit.uuid,
            pid=pid if host_pids else 0,
            kind=ProcessKind.MPS_CLIENT if pid in clients else other_kind,
            gpu_mem_used_mib=_memory(item),
            sm_util_pct=sm_util.get(pid, 0.0) if has_sm_util else None,
        )
        for pid, item in sorted(items.items())
    ]


def _memory(item: Any) -> int | None:
    size = item.usedGpuMemory
    return None if size is None or size == _NO_VALUE else used_mib(int(size))

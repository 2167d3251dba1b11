# SPDX-License-Identifier: Apache-2.0
"""A made-up NVIDIA driver at the level of pynvml's functions, on which gpu/nvml.py runs as it is.

What a real driver does not offer in a mode is not offered here, with the real error; constants and structs are
pynvml's own. Loads follow a script over time and are counted as the driver counts them: GPM and energy as integrals,
GPU_UTIL as a buffer of 71 readings of 0.2 s. Faults are set by function and device.
"""

import ctypes
import time
from collections.abc import Callable, Sequence
from threading import Event
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

import pynvml

from slurm_colloc.gpu import nvml
from tests.fakes.devices import Device, slices_of

if TYPE_CHECKING:
    import pytest

MIB = 1024 * 1024
ANY = "*"
# nvml.h, nvmlGpmMetricId_t
GPM = {1: "gr_active_pct", 2: "sm_active_pct", 3: "sm_occupancy_pct", 5: "tensor_active_pct", 10: "dram_active_pct"}
BUFFER_READINGS, BUFFER_PERIOD_S = 71, 0.2
# CPU time of the calls on an H100 with four processes, in ms, by `python -m tests.gpu.cost`: the driver waits busily.
COST_MS = {
    "nvmlGpmSampleGet": 0.30,
    "nvmlGpmMigSampleGet": 0.30,
    "nvmlGpmMetricsGet": 1.50,
    "nvmlDeviceGetUtilizationRates": 0.01,
    "nvmlDeviceGetSamples": 2.06,
    "nvmlDeviceGetMemoryInfo": 0.04,
    "nvmlDeviceGetPowerUsage": 0.01,
    "nvmlDeviceGetTotalEnergyConsumption": 6.06,
    "nvmlDeviceGetComputeRunningProcesses": 0.34,
    "nvmlDeviceGetGraphicsRunningProcesses": 0.12,
    "nvmlDeviceGetMPSComputeRunningProcesses": 0.06,
    "nvmlDeviceGetProcessUtilization": 2.03,
}


class Handle(NamedTuple):
    """What the driver calls a device by, until the library is shut down."""

    device: Device
    opened: int


class Driver:
    """Stands in for the module pynvml.

    ``faults`` maps (function, uuid), either of them ANY, to an error code, or to an Event that the call waits for;
    a GPU's are its slices' too. ``says`` maps (function, uuid) to what is answered instead. ``counts`` are calls. With
    ``costs`` each call takes the CPU time that the real one takes; ``spent_s`` is all that was spent here.
    """

    def __init__(self, gpus: Sequence[Device], clock: Callable[[], float] | None = None, costs: bool = False) -> None:
        self.gpus = list(gpus)
        self.faults: dict[tuple[str, str], int | Event] = {}
        self.says: dict[tuple[str, str], Any] = {}
        self.counts: dict[str, int] = {}
        self.now_s = 1000.0
        self.epoch_s = 1.7e9
        self.spent_s = 0.0
        self._clock = clock or (lambda: self.now_s)
        self._costs = costs
        self._open = 0
        self._opened = 0
        self._cuts = 0
        self._loaded_s = 0.0
        self._down: int | None = None
        self._samples: dict[int, tuple[Device, float] | None] = {}
        self._made: dict[str, Callable[..., Any]] = {}

    def install(self, monkeypatch: "pytest.MonkeyPatch") -> "Driver":
        """Put this driver and its clock under gpu/nvml.py, seen from the PID namespace of the kernel."""
        monkeypatch.setattr(nvml, "pynvml", self)
        monkeypatch.setattr(nvml, "time", SimpleNamespace(monotonic=self._clock))
        monkeypatch.setattr(nvml, "clock", SimpleNamespace(now=lambda: self._clock() + self.epoch_s))
        monkeypatch.setattr(nvml, "sees_host_pids", lambda: True)
        return self

    def unload(self, code: int) -> None:
        """Take the driver away: from now on every call gives ``code``."""
        self._down = self.faults["nvmlInit", ANY] = code

    def load(self) -> None:
        """Bring it back: nvmlInit works again, and energy is counted from now on."""
        del self.faults["nvmlInit", ANY]
        self._loaded_s = self._clock()

    def cut(self, gpu: Device, *profiles: str) -> list[Device]:
        """Cut a GPU into new slices, in this order; no profile: MIG is on and there is nothing."""
        self._cuts += 1
        gpu.slices = slices_of(gpu, profiles, self._cuts)
        return gpu.slices

    def __getattr__(self, name: str) -> Any:
        answer = ANSWERS.get(name)
        if answer is None:
            found = getattr(pynvml, name)
            assert not callable(found) or isinstance(found, type), f"this driver has no {name}"
            return found
        if name not in self._made:
            self._made[name] = lambda *arguments, **options: self._call(name, answer, *arguments, **options)
        return self._made[name]

    def _call(self, name: str, answer: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        self.counts[name] = self.counts.get(name, 0) + 1
        began_s, began_cpu_s = time.perf_counter(), time.thread_time()
        if self._costs:
            while time.perf_counter() - began_s < COST_MS.get(name, 0.0) / 1000:
                pass
        if name not in ("nvmlInit", "nvmlShutdown"):
            self._fail(self._down)
        self._fail(None if self._open or name == "nvmlInit" else pynvml.NVML_ERROR_UNINITIALIZED)
        device: Device | None = None
        if arguments and isinstance(arguments[0], Handle):
            device, opened = arguments[0]
            assert opened == self._opened, f"{name} with a handle of a library that was shut down"
            gone = device.parent is not None and device not in (device.parent.slices or ())
            self._fail(pynvml.NVML_ERROR_NOT_FOUND if gone else None)
            arguments = (device, *arguments[1:])
        elif name == "nvmlDeviceGetHandleByIndex":
            device = self.gpus[arguments[0]]
        elif name == "nvmlGpmMetricsGet":
            device = (self._samples[_number(arguments[0].sample2)] or (None, 0.0))[0]
        for uuid in (ANY, *([] if device is None else [device.uuid, (device.parent or device).uuid])):
            self._fail(self.faults.get((name, uuid)))
            self._fail(self.faults.get((ANY, uuid)))
        said = self.says.get((name, device.uuid if device else ANY), self)
        found = answer(self, *arguments, **options) if said is self else said
        self.spent_s += time.thread_time() - began_cpu_s
        return found

    @staticmethod
    def _fail(fault: int | Event | None) -> None:
        if isinstance(fault, Event):
            fault.wait()
        elif fault is not None:
            raise pynvml.NVMLError(fault)

    # What the table below cannot say in a line.

    def initialise(self) -> None:
        """Begin anew where nobody had the library open."""
        self._down = None
        self._open += 1
        if self._open == 1:
            self._opened += 1
            self._samples.clear()

    def shut_down(self) -> None:
        """Close what was opened once."""
        self._open -= 1

    def handle(self, device: Device) -> Handle:
        """Return a handle that is good until the library is shut down."""
        return Handle(device, self._opened)

    def allocate(self) -> Any:
        """Return a sample, a pointer that the binding's structs can hold."""
        number = len(self._samples) + 1
        self._samples[number] = None
        return ctypes.cast(ctypes.c_void_p(number), pynvml.c_nvmlGpmSample_t)

    def free(self, sample: Any) -> None:
        """Forget a sample, which must be there."""
        del self._samples[_number(sample)]

    @property
    def allocated(self) -> int:
        """Return how many samples were not given back."""
        return len(self._samples)

    def take(self, device: Device, sample: Any) -> Any:
        """Fill a sample."""
        if not device.gpm:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        assert _number(sample) in self._samples, "a sample that was given back"
        self._samples[_number(sample)] = device, self._clock()
        return sample

    def take_of_slice(self, gpu: Device, number: int, sample: Any) -> Any:
        """Fill a sample of a GPU instance."""
        instances = [one for one in gpu.slices or () if one.gpu_instance == number]
        if not instances:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return self.take(instances[0], sample)

    def metrics(self, request: Any) -> Any:
        """Fill a request from its two samples."""
        first, last = (self._samples[_number(sample)] for sample in (request.sample1, request.sample2))
        assert first, "a sample that was never taken"
        assert last, "a sample that was never taken"
        assert (first[0], first[1] < last[1]) == (last[0], True), "samples of two devices, or out of order"
        for metric in request.metrics[: request.numMetrics]:
            value = last[0].mean(GPM[metric.metricId], first[1], last[1])
            metric.nvmlReturn = 0 if value is not None else pynvml.NVML_ERROR_NOT_SUPPORTED
            metric.value = value or 0.0
        return request

    def energy(self, device: Device) -> int:
        """Return mJ since the driver was loaded."""
        now_s = self._clock()
        power_w = _offered(None if device.parent else device.mean("power_w", self._loaded_s, now_s))
        return int(power_w * (now_s - self._loaded_s) * 1000 + 0.5)

    def last(self, device: Device, name: str, lasting_s: float) -> Any:
        """Return a counter's mean over the last while."""
        return _offered(device.mean(name, self._clock() - lasting_s, self._clock()))

    def kept_util(self, device: Device, since_us: int) -> list[Any]:
        """Return the buffered readings of GPU_UTIL that are newer."""
        ticks = int(self._clock() / BUFFER_PERIOD_S)
        found = []
        for tick in range(ticks - BUFFER_READINGS + 1, ticks + 1):
            at_us = round((tick * BUFFER_PERIOD_S + self.epoch_s) * 1e6)
            value = device.mean("gpu_util_pct", (tick - 1) * BUFFER_PERIOD_S, tick * BUFFER_PERIOD_S)
            if at_us > since_us:
                found.append(SimpleNamespace(timeStamp=at_us, sampleValue=SimpleNamespace(uiVal=int(_offered(value)))))
        return found

    def process_util(self, device: Device, since_us: int) -> list[Any]:
        """Return SM percent of the processes that ran kernels; all of it is the server's under MPS."""
        served = any(one.kind == "server" for one in device.processes)
        active = [one for one in device.processes if one.sm_pct and (one.kind == "server" or not served)]
        now_us = int((self._clock() + self.epoch_s) * 1e6)
        if not active or now_us <= since_us:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return [SimpleNamespace(pid=one.pid, smUtil=one.sm_pct, timeStamp=now_us) for one in active]


def _number(sample: Any) -> int:
    return int(ctypes.cast(sample, ctypes.c_void_p).value or 0)


def _offered(value: Any) -> Any:
    if value is None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
    return value


def _whole(device: Device, answer: Callable[[], Any]) -> Any:
    return answer() if not device.cut else _offered(None)


def _listed(device: Device, *kinds: str) -> list[Any]:
    found = [one for one in device.processes if one.kind in kinds]
    return [SimpleNamespace(pid=one.pid, usedGpuMemory=None if one.mib is None else one.mib * MIB) for one in found]


def _slice_at(device: Device, index: int) -> Device:
    if index >= len(device.slices or ()):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
    return (device.slices or [])[index]


def _power_mw(driver: Driver, device: Device) -> int:
    return int(_offered(None if device.parent else driver.last(device, "power_w", 0.1)) * 1000)


def _memory(driver: Driver, device: Device, version: int | None = None) -> Any:
    reserve = 0 if version else 480 * MIB
    used = int(driver.last(device, "gpu_mem_used_mib", 0.1)) * MIB
    return SimpleNamespace(total=device.total_mib * MIB, used=used + reserve)


ANSWERS: dict[str, Callable[..., Any]] = {
    "nvmlInit": Driver.initialise,
    "nvmlShutdown": Driver.shut_down,
    "nvmlDeviceGetCount": lambda driver: len(driver.gpus),
    "nvmlDeviceGetHandleByIndex": lambda driver, index: driver.handle(driver.gpus[index]),
    "nvmlDeviceGetMinorNumber": lambda driver, device: _offered(None if device.parent else device.minor),
    "nvmlDeviceGetName": lambda driver, device: device.name,
    "nvmlDeviceGetUUID": lambda driver, device: device.uuid,
    "nvmlDeviceGetAttributes": lambda driver, device: SimpleNamespace(multiprocessorCount=device.sm_count),
    "nvmlDeviceGetGpuInstanceProfileInfo": lambda driver, device, profile: _offered(None),
    "nvmlDeviceGetNumGpuCores": lambda driver, device: device.sm_count * 128,
    "nvmlDeviceGetCudaComputeCapability": lambda driver, device: (9, 0),
    "nvmlDeviceGetMigMode": lambda driver, device: [int(device.slices is not None)] * 2,
    "nvmlDeviceGetMaxMigDeviceCount": lambda driver, device: 0 if device.slices is None else 7,
    "nvmlDeviceGetMigDeviceHandleByIndex": lambda driver, device, index: driver.handle(_slice_at(device, index)),
    "nvmlDeviceGetGpuInstanceId": lambda driver, device: device.gpu_instance,
    "nvmlDeviceGetMemoryInfo": _memory,
    "nvmlDeviceGetPowerUsage": _power_mw,
    "nvmlDeviceGetTotalEnergyConsumption": Driver.energy,
    "nvmlDeviceGetUtilizationRates": lambda driver, device: _whole(
        device, lambda: SimpleNamespace(gpu=int(driver.last(device, "gpu_util_pct", 1.0)))
    ),
    "nvmlDeviceGetSamples": lambda driver, device, kind, since_us: _whole(
        device, lambda: (1, driver.kept_util(device, since_us))
    ),
    "nvmlDeviceGetProcessUtilization": lambda driver, device, since_us: _whole(
        device, lambda: driver.process_util(device, since_us)
    ),
    "nvmlDeviceGetComputeRunningProcesses": lambda driver, device: _listed(
        device, "compute", "both", "client", "server"
    ),
    "nvmlDeviceGetGraphicsRunningProcesses": lambda driver, device: _listed(device, "graphics", "both"),
    "nvmlDeviceGetMPSComputeRunningProcesses": lambda driver, device: _listed(device, "client"),
    "nvmlGpmQueryDeviceSupport": lambda driver, device: SimpleNamespace(isSupportedDevice=int(device.gpm)),
    "nvmlGpmSampleAlloc": Driver.allocate,
    "nvmlGpmSampleFree": Driver.free,
    "nvmlGpmSampleGet": Driver.take,
    "nvmlGpmMigSampleGet": Driver.take_of_slice,
    "nvmlGpmMetricsGet": Driver.metrics,
}

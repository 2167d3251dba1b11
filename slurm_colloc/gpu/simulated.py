# SPDX-License-Identifier: Apache-2.0
"""A GPU that exists only on paper, for test clusters and the demo.

Its devices come from a file; its load comes from real processes, found through /proc as a driver finds them, that say
in ``COLLOC_SIMULATED_GPU_LOAD`` what they would do to a GPU: ``mem=3000M,util=41,sm=17,dram=3``. Figures that the
real driver does not have in a sharing mode are None here too: GPU_UTIL and per-process SM in a MIG slice, per-process
SM under MPS.
"""

import json
import time
from typing import Any, NamedTuple

from slurm_colloc.core.errors import GpuError, InputError
from slurm_colloc.core.units import demand_mib, device_indices
from slurm_colloc.core.usage_model import ProcessKind
from slurm_colloc.gpu.proc import ProcessTable
from slurm_colloc.gpu.reader import GpuProcess, GpuUnit, UnitReading

LOAD_VARIABLE = "COLLOC_SIMULATED_GPU_LOAD"
# Idle and full power of an H100 80GB HBM3, as measured.
_IDLE_W, _FULL_W = 71.0, 699.0


class Load(NamedTuple):
    """The load of a process on a whole GPU."""

    gpu_mem_mib: int
    gpu_util_pct: float
    sm_active_pct: float
    dram_active_pct: float


def parse_load(text: str) -> Load:
    """Return the load that ``text`` describes; absent parts are 0.

    Raises:
        InputError: an unknown part or a value that is not a number.
    """
    parts = dict.fromkeys(("util", "sm", "dram"), 0.0)
    memory = 0
    for item in text.split(","):
        name, _, value = item.partition("=")
        try:
            if name == "mem":
                memory = demand_mib(value)
            elif name in parts:
                parts[name] = float(value)
            else:
                raise InputError(f"'{name}' in {LOAD_VARIABLE} is none of mem, util, sm, dram")
        except ValueError:
            raise InputError(f"'{item}' in {LOAD_VARIABLE} is not a number") from None
    return Load(memory, parts["util"], parts["sm"], parts["dram"])


def parse_devices(text: str) -> tuple[GpuUnit, ...]:
    """Return the units that a device file describes: a GPU, or each slice of a GPU that is cut.

    Raises:
        GpuError: the text is not the expected JSON.
    """
    try:
        units: list[GpuUnit] = []
        for device in json.loads(text)["devices"]:
            for part in device["slices"] or [device]:
                units.append(_unit(device, part, len(units)))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise GpuError(f"simulated devices are not of the expected form: {error!r}") from error
    return tuple(units)


def _unit(device: dict[str, Any], part: dict[str, Any], index: int) -> GpuUnit:
    return GpuUnit(
        uuid=part["uuid"],
        gres_index=index,
        model=device["model"],
        profile=part.get("profile", ""),
        mem_total_mib=part["mem_total_mib"],
        sm_count=part["sm_count"],
        whole_sm_count=device["sm_count"],
        parent_uuid="" if part is device else device["uuid"],
        gpu_instance=part.get("gi_id"),
    )


class SimulatedReader:
    """A GpuReader over made-up devices and real processes."""

    complaint = ""

    def __init__(self, path: str, node: str, table: ProcessTable | None = None, cluster: str = "") -> None:
        try:
            with open(path) as stream:
                self._units = parse_devices(stream.read())
        except OSError as error:
            raise GpuError(f"simulated devices '{path}' cannot be read: {error.strerror}") from error
        self._cluster = cluster
        self._node = node
        self._table = table or ProcessTable()
        self._read_s: float | None = None

    def units(self) -> tuple[GpuUnit, ...]:
        """Return the units of the device file."""
        return self._units

    def read(self) -> tuple[tuple[UnitReading, ...], tuple[GpuProcess, ...]]:
        """Return what the running processes would make of the devices."""
        table = self._table
        table.refresh()
        placed: list[tuple[GpuUnit, int, Load, bool]] = []
        for pid in table.pids():
            placed += self._place(table, pid)
        before_s, self._read_s = self._read_s, time.monotonic()
        elapsed_s = None if before_s is None else self._read_s - before_s
        readings = tuple(
            _reading(unit, [load for u, _, load, _ in placed if u == unit], elapsed_s) for unit in self._units
        )
        processes = tuple(
            GpuProcess(
                unit.uuid,
                pid,
                ProcessKind.MPS_CLIENT if mps else ProcessKind.COMPUTE,
                load.gpu_mem_mib,
                None if unit.profile or mps else load.sm_active_pct,
            )
            for unit, pid, load, mps in placed
        )
        return readings, processes

    def _place(self, table: ProcessTable, pid: int) -> list[tuple[GpuUnit, int, Load, bool]]:
        environment = _environment(table, pid)
        load = environment.get(LOAD_VARIABLE)
        if not load or environment.get("SLURMD_NODENAME") != self._node:
            return []
        if self._cluster and environment.get("SLURM_CLUSTER_NAME", self._cluster) != self._cluster:
            return []
        status = table.status(pid)
        # Children inherit the variable; only the process it was set for has the GPU context.
        if status is not None and _environment(table, status.parent).get(LOAD_VARIABLE):
            return []
        visible = environment.get("SLURM_JOB_GPUS") or environment.get("CUDA_VISIBLE_DEVICES", "")
        mps = not {"CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"}.isdisjoint(environment)
        indices = device_indices(visible)[:1]
        return [(self._units[index], pid, parse_load(load), mps) for index in indices if index < len(self._units)]

    def close(self) -> None:
        """Do nothing: there is no driver."""


def _environment(table: ProcessTable, pid: int) -> dict[str, str]:
    pairs = (item.decode(errors="replace").partition("=") for item in table.read(pid, "environ").split(b"\0"))
    return {name: value for name, equals, value in pairs if equals}


def _reading(unit: GpuUnit, loads: list[Load], elapsed_s: float | None) -> UnitReading:
    # A load says what it does to a whole GPU; the same work keeps a slice's fewer SMs busier.
    scale = unit.whole_sm_count / unit.sm_count
    sm_active = min(100.0, sum(load.sm_active_pct for load in loads) * scale)
    power_w = None if unit.profile else _IDLE_W + (_FULL_W - _IDLE_W) * sm_active / 100
    return UnitReading(
        uuid=unit.uuid,
        process_list=True,
        gpu_util_pct=None if unit.profile else min(100.0, sum(load.gpu_util_pct for load in loads)),
        sm_active_pct=sm_active,
        dram_active_pct=min(100.0, sum(load.dram_active_pct for load in loads) * scale),
        gpu_mem_used_mib=sum(load.gpu_mem_mib for load in loads),
        power_w=power_w,
        energy_j=None if power_w is None or elapsed_s is None else power_w * elapsed_s,
    )

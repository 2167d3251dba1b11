# SPDX-License-Identifier: Apache-2.0
"""The sampler's questions to a GPU driver, whatever the driver is; and which reader a node has."""

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from slurm_colloc.core.errors import InputError


class GpuUnit(NamedTuple):
    """A whole GPU or one MIG slice, which Slurm hands out as one gres/gpu.

    ``gres_index`` is the number by which Slurm calls it: the device file's for whole GPUs, the place among the slices
    on a node that has any. A slice also has the uuid of its GPU and the id of its GPU instance there.
    """

    uuid: str
    gres_index: int
    model: str
    profile: str
    mem_total_mib: int
    sm_count: int
    whole_sm_count: int
    parent_uuid: str = ""
    gpu_instance: int | None = None


class UnitReading(NamedTuple):
    """The counters of one unit since the previous reading, None for those that the driver does not offer.

    See DeviceSample for the terms.
    """

    uuid: str
    process_list: bool = False
    gpu_util_pct: float | None = None
    gr_active_pct: float | None = None
    sm_active_pct: float | None = None
    sm_occupancy_pct: float | None = None
    tensor_active_pct: float | None = None
    dram_active_pct: float | None = None
    gpu_mem_used_mib: int | None = None
    power_w: float | None = None
    energy_j: float | None = None


class GpuProcess(NamedTuple):
    """A process with a context on a unit; pid 0 is one that lives in another PID namespace than the sampler."""

    uuid: str
    pid: int
    kind: str
    gpu_mem_used_mib: int | None
    sm_util_pct: float | None


# A MIG slice has been seen at 129 % SM activity (DCGM issue 152); a value far beyond is a blank, not a measurement.
_MOST_ACTIVE_PCT = 200.0
# The profiling counters have been seen to stay at 0 on a busy GPU: after an Xid 31, while a profiler has them, after
# weeks of an exporter (DCGM issues 56 and 303, dcgm-exporter issue 662). GPU_UTIL this high beside zeros says so.
_BUSY_PCT = 50.0


def activity_pct(value: float) -> float | None:
    """Return a profiling counter's percentage, at most 100; None for a blank, NaN or a negative one."""
    return min(100.0, float(value)) if 0 <= value <= _MOST_ACTIVE_PCT else None


def stands_still(gpu_util_pct: float | None, figures: Mapping[str, float | None]) -> bool:
    """Return whether profiling counters say nothing but 0 of a GPU that is known to be busy."""
    return (gpu_util_pct or 0.0) > _BUSY_PCT and not any(figures.values())


def numbered(units: Sequence[GpuUnit], minors: Sequence[int | None], before: Mapping[str, int]) -> tuple[GpuUnit, ...]:
    """Return the units with Slurm's numbers: the device file's, or the place if some are slices, which have none.

    Args:
        units: those of the driver, in its order; whole GPUs without device files keep their number.
        minors: the device files' numbers.
        before: the numbers that units had. Units keep theirs if others are only missing: Slurm counted when all were
            there.
    """
    if {unit.uuid for unit in units} <= before.keys():
        numbers = [before[unit.uuid] for unit in units]
    elif any(unit.profile for unit in units):
        numbers = list(range(len(units)))
    else:
        numbers = [unit.gres_index if minor is None else minor for unit, minor in zip(units, minors, strict=True)]
    return tuple(unit._replace(gres_index=index) for unit, index in zip(units, numbers, strict=True))


class GpuReader(Protocol):
    """The seam between the sampler and the driver."""

    @property
    def complaint(self) -> str:
        """Return what was wrong at the last reading that was no reason to give none; empty for nothing."""

    def units(self) -> tuple[GpuUnit, ...]:
        """Return the units of this node."""

    def read(self) -> tuple[tuple[UnitReading, ...], tuple[GpuProcess, ...]]:
        """Return the counters of every unit that answers and the processes on them.

        Raises:
            GpuError: the driver does not answer.
        """

    def close(self) -> None:
        """Let go of the driver."""


def open_reader(name: str, *, node: str = "", cluster: str = "", dcgm: str = "", patient: bool = False) -> GpuReader:
    """Return the reader called ``name``, as observe.gpu_reader in site.toml has it.

    Args:
        name: nvml, or ``simulated:FOLDER``, which has a ``NODE.json`` of devices for each node.
        node: this node's name in Slurm.
        cluster: its cluster.
        dcgm: the source of what the reader lacks: the URL of DCGM's exporter, or dcgmi; empty: none.
        patient: let a driver that does not answer yet be an error of the first reading, not of the opening.

    Raises:
        InputError: there is no such reader.
        GpuError: the driver does not answer, unless ``patient``.
    """
    kind, _, folder = name.partition(":")
    reader: GpuReader
    if name == "nvml":
        from slurm_colloc.gpu.nvml import NvmlReader

        reader = NvmlReader(patient=patient)
    elif kind == "simulated" and folder:
        from slurm_colloc.gpu.simulated import SimulatedReader

        reader = SimulatedReader(os.path.join(folder, f"{node}.json"), node, cluster=cluster)
    else:
        raise InputError(f"there is no reader '{name}'; give nvml or simulated:FOLDER")
    if not dcgm:
        return reader
    from slurm_colloc.gpu.dcgm import WithDcgm

    return WithDcgm(reader, dcgm)

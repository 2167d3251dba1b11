# SPDX-License-Identifier: Apache-2.0
"""What the sampler asks of a GPU driver, whatever the driver is."""

from typing import NamedTuple, Protocol


class GpuUnit(NamedTuple):
    """A whole GPU or one MIG slice: what Slurm hands out as one gres/gpu, in the order of Slurm's indices."""

    uuid: str
    gres_index: int
    model: str
    profile: str
    mem_total_mib: int
    sm_count: int
    whole_sm_count: int


class UnitReading(NamedTuple):
    """The counters of one unit since the previous reading; what the driver does not offer is None."""

    uuid: str
    gpu_util_pct: float | None
    sm_active_pct: float | None
    dram_active_pct: float | None
    gpu_mem_used_mib: int | None
    power_w: float | None


class GpuProcess(NamedTuple):
    """A process with a context on a unit; under MPS a client, never the server."""

    uuid: str
    pid: int
    gpu_mem_used_mib: int | None
    sm_util_pct: float | None


class GpuReader(Protocol):
    """The seam between the sampler and the driver."""

    def units(self) -> tuple[GpuUnit, ...]:
        """Return the units of this node."""

    def read(self) -> tuple[tuple[UnitReading, ...], tuple[GpuProcess, ...]]:
        """Return the counters of every unit and the processes on them.

        Raises:
            GpuError: the driver does not answer.
        """

    def close(self) -> None:
        """Let go of the driver."""

# SPDX-License-Identifier: Apache-2.0
"""One pass over a node: counters, processes and the jobs they belong to.

The same code serves the whole node (a service) and one job (a user without rights); ``only_job`` is the difference.
"""

from collections.abc import Callable

from slurm_colloc.gpu.proc import ProcessTable
from slurm_colloc.gpu.reader import GpuReader, GpuUnit, UnitReading
from slurm_colloc.model import DeviceSample, ProcessSample, Round

# A reading stands for the time since the one before it, but a pause longer than this is a gap.
_VALID_PERIODS = 2.5
_BOOT_ID = "/proc/sys/kernel/random/boot_id"


def boot_id() -> str:
    """Return the kernel's id of this boot: counters start anew with it."""
    with open(_BOOT_ID) as stream:
        return stream.read().strip()


class Sampler:
    """Turn a GpuReader and /proc into Rounds."""

    def __init__(
        self,
        reader: GpuReader,
        node: str,
        period_s: float,
        only_job: str = "",
        processes: Callable[[], ProcessTable] = ProcessTable,
        cluster: str = "",
    ) -> None:
        self._reader = reader
        self._cluster = cluster
        self._node = node
        self._period_s = period_s
        self._only_job = only_job
        self._processes = processes
        self._boot_id = boot_id()
        self._last_s: float | None = None

    def sample(self, at_s: float) -> Round:
        """Read everything once; ``at_s`` is the time of reading in UTC epoch seconds.

        Raises:
            GpuError: the driver does not answer.
        """
        readings, gpu_processes = self._reader.read()
        units = {unit.uuid: unit for unit in self._reader.units()}
        table = self._processes()
        processes = tuple(
            ProcessSample(found.uuid, found.pid, table.job_of(found.pid), found.gpu_mem_used_mib, found.sm_util_pct)
            for found in gpu_processes
        )
        holders = self._holders(table, tuple(units.values()))
        devices = tuple(_device(units[reading.uuid], reading) for reading in readings)
        seen = Round(at_s, self._interval_s(at_s), self._node, self._boot_id, devices, processes, holders)
        self._last_s = at_s
        return only_job(seen, self._only_job) if self._only_job else seen

    def _interval_s(self, at_s: float) -> float:
        # A clock set back gives no interval rather than a negative one.
        elapsed = 0.0 if self._last_s is None else max(0.0, at_s - self._last_s)
        return min(elapsed, _VALID_PERIODS * self._period_s)

    def _holders(self, table: ProcessTable, units: tuple[GpuUnit, ...]) -> tuple[tuple[str, str], ...]:
        by_index = {unit.gres_index: unit.uuid for unit in units}
        return tuple(
            sorted(
                {
                    (by_index[index], job.job_id)
                    for job in table.node_jobs()
                    if job.runs_on(self._cluster, self._node)
                    for index in job.gres_indices
                    if index in by_index
                }
            )
        )


def only_job(seen: Round, job_id: str) -> Round:
    """Return what of a Round a single job may keep: its own devices; its neighbours there stay, nameless."""
    mine = {uuid for uuid, holder in seen.holders if holder == job_id}
    mine |= {process.uuid for process in seen.processes if process.job_id == job_id}
    others = sorted({holder for _, holder in seen.holders} | {process.job_id for process in seen.processes})
    names = {other: f"neighbour-{number}" for number, other in enumerate(others, 1)} | {job_id: job_id, "": ""}
    return seen._replace(
        devices=tuple(device for device in seen.devices if device.uuid in mine),
        processes=tuple(
            process._replace(job_id=names[process.job_id]) for process in seen.processes if process.uuid in mine
        ),
        holders=tuple((uuid, names[holder]) for uuid, holder in seen.holders if uuid in mine),
    )


def _device(unit: GpuUnit, reading: UnitReading) -> DeviceSample:
    return DeviceSample(*unit, *reading[1:])

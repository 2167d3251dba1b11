# SPDX-License-Identifier: Apache-2.0
"""One pass over a node: counters, processes and the jobs they belong to.

The same code serves the whole node (the agent) and one job (a user without rights); ``only_job`` is the difference.
"""

import time
from collections.abc import Callable, Sequence, Set

from slurm_colloc.core.errors import ProcessError
from slurm_colloc.core.usage_model import DeviceAllocation, DeviceSample, NodeSample, ProcessKind, ProcessSample
from slurm_colloc.gpu.hostuse import HostUse
from slurm_colloc.gpu.proc import ProcessTable
from slurm_colloc.gpu.reader import GpuProcess, GpuReader, GpuUnit, UnitReading
from slurm_colloc.slurm.jobs import HeldHere

# A reading stands for the time since the one before it, but a pause longer than this is a gap.
_VALID_PERIODS = 2.5
# A node starts some jobs a minute; no pass waits again for so long for a Slurm that does not answer.
_ASKED_AT_ONCE, _SILENT_S = 4, 60.0
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
# The kernel keeps 15 bytes of a program's name.
_MPS_SERVER = "nvidia-cuda-mps-server"[:15]


def boot_id() -> str:
    """Return the kernel's id of this boot: counters start anew with it."""
    with open(_BOOT_ID) as stream:
        return stream.read().strip()


class Told:
    """Slurm's answers on the jobs here, asked for once each and a few at a pass: it has others to serve."""

    def __init__(self, ask: Callable[[str], HeldHere | None] | None) -> None:
        self._ask = ask
        self._known: dict[str, HeldHere | None] = {}
        self._failures: dict[str, int] = {}
        self._silent_until_s = 0.0

    def ask_of(self, jobs: Set[str]) -> None:
        """Ask of those that are new, and forget all others."""
        self._known = {job: held for job, held in self._known.items() if job in jobs}
        self._failures = {job: count for job, count in self._failures.items() if job in jobs}
        # One whose answer never comes waits behind the others.
        new = sorted(jobs - self._known.keys(), key=lambda job: (self._failures.get(job, 0), job))[:_ASKED_AT_ONCE]
        for job in new if time.monotonic() >= self._silent_until_s else ():
            try:
                self._known[job] = self._ask(job) if self._ask else None
            except ProcessError:
                self._failures[job] = self._failures.get(job, 0) + 1
                self._silent_until_s = time.monotonic() + _SILENT_S
                return

    @property
    def unknown(self) -> set[str]:
        """Return the jobs of which Slurm, when it was asked, did not say what they have here."""
        return {job for job, held in self._known.items() if held is None} | self._failures.keys() - self._known.keys()

    def of(self, job_id: str) -> HeldHere | None:
        """Return what a job has on this node; None where that is not known."""
        return self._known.get(job_id)


class Sampler:
    """Turn a GpuReader and /proc into NodeSamples."""

    def __init__(
        self,
        reader: GpuReader,
        node: str,
        period_s: float,
        only_job: str = "",
        table: ProcessTable | None = None,
        host_use: HostUse | None = None,
        told: Told | None = None,
    ) -> None:
        self._reader = reader
        self._node = node
        self._period_s = period_s
        self._only_job = only_job
        self._table = table or ProcessTable()
        self._host_use = host_use or HostUse()
        self._told = told or Told(None)
        self._boot_id = boot_id()
        self._last: tuple[float, float] | None = None

    @property
    def unknown_jobs(self) -> set[str]:
        """Return the jobs here whose GPUs Slurm does not tell."""
        return self._told.unknown

    @property
    def complaint(self) -> str:
        """Return what was wrong with the last pass, and no reason to give none; empty for nothing."""
        return self._reader.complaint

    def sample(self, at_s: float, ticking_s: float | None = None) -> NodeSample:
        """Read everything once.

        Args:
            at_s: the time of reading in UTC epoch seconds.
            ticking_s: the same by a clock that nobody sets; without it ``at_s``.

        Raises:
            GpuError: the driver does not answer.
        """
        readings, gpu_processes = self._reader.read()
        units = {unit.uuid: unit for unit in self._reader.units()}
        self._table.refresh()
        holders = self._holders(tuple(units.values()))
        processes = _processes(self._table, gpu_processes)
        devices = tuple(_device(units[reading.uuid], reading) for reading in readings)
        jobs = {holder.job_id for holder in holders} | {process.job_id for process in processes} - {""}
        if self._only_job:
            jobs &= {self._only_job}
        interval_s, part = self._interval(at_s, at_s if ticking_s is None else ticking_s)
        devices = tuple(device._replace(energy_j=_of(device.energy_j, part)) for device in devices)
        hosts = tuple(
            host._replace(
                cpu_s=_of(host.cpu_s, part), read_mib=_of(host.read_mib, part), written_mib=_of(host.written_mib, part)
            )
            for host in self._host_use.read(self._table, jobs)
        )
        sample = NodeSample(at_s, interval_s, self._node, self._boot_id, devices, processes, holders, hosts)
        return only_job(sample, self._only_job) if self._only_job else sample

    def _interval(self, at_s: float, ticking_s: float) -> tuple[float, float]:
        """Return the time that this reading stands for, and its part in the time since the one before.

        After a pause it stands for nothing: nobody saw who was on the GPUs meanwhile.
        """
        last, self._last = self._last, (at_s, ticking_s)
        elapsed_s = 0.0 if last is None else ticking_s - last[1]
        if last is None or not 0 < elapsed_s <= _VALID_PERIODS * self._period_s:
            return 0.0, 0.0
        # A clock that was set back makes its time count once, not twice; one set forward makes no time.
        interval_s = max(0.0, min(at_s - last[0], elapsed_s))
        return interval_s, interval_s / elapsed_s

    def _holders(self, units: tuple[GpuUnit, ...]) -> tuple[DeviceAllocation, ...]:
        by_index = {unit.gres_index: unit.uuid for unit in units}
        jobs = self._table.jobs()
        self._told.ask_of(jobs & {self._only_job} if self._only_job else jobs)
        answers = ((job_id, self._told.of(job_id)) for job_id in sorted(jobs))
        return tuple(
            sorted(
                DeviceAllocation(by_index[index], job_id, held.weight)
                for job_id, held in answers
                if held
                for index in held.gres_indices
                if index in by_index
            )
        )


def _processes(table: ProcessTable, gpu_processes: Sequence[GpuProcess]) -> tuple[ProcessSample, ...]:
    """Return the processes with their jobs; one that is called like the server of MPS, and is no client, is that.

    Anybody may call a program so: it is believed of a process of no job, and of a job that has clients there itself.
    Not every reader can tell clients from others.
    """
    jobs = {process.pid: table.job_of_pid(process.pid) if process.pid else "" for process in gpu_processes}
    served = {(process.uuid, jobs[process.pid]) for process in gpu_processes if process.kind == ProcessKind.MPS_CLIENT}
    samples = []
    for process in gpu_processes:
        status = table.status(process.pid) if process.pid else None
        server = (
            process.kind != ProcessKind.MPS_CLIENT
            and (not jobs[process.pid] or (process.uuid, jobs[process.pid]) in served)
            and status is not None
            and status.command == _MPS_SERVER
        )
        samples.append(
            ProcessSample(
                uuid=process.uuid,
                pid=process.pid,
                start_ticks=None if status is None else status.start_ticks,
                kind=str(ProcessKind.MPS_SERVER if server else process.kind),
                job_id=jobs[process.pid],
                gpu_mem_used_mib=process.gpu_mem_used_mib,
                sm_util_pct=process.sm_util_pct,
            )
        )
    return tuple(samples)


def _of(amount: float | None, part: float) -> float | None:
    return None if amount is None or not part else amount * part


def only_job(sample: NodeSample, job_id: str) -> NodeSample:
    """Return what of a NodeSample a single job may keep: its own devices; its neighbours there stay, nameless."""
    mine = {holder.uuid for holder in sample.holders if holder.job_id == job_id}
    mine |= {process.uuid for process in sample.processes if process.job_id == job_id}
    neighbours = sorted({holder.job_id for holder in sample.holders} | {process.job_id for process in sample.processes})
    names = {neighbour: f"neighbour-{number}" for number, neighbour in enumerate(neighbours, 1)} | {
        job_id: job_id,
        "": "",
    }
    return sample._replace(
        devices=tuple(device for device in sample.devices if device.uuid in mine),
        processes=tuple(
            process._replace(job_id=names[process.job_id]) for process in sample.processes if process.uuid in mine
        ),
        holders=tuple(holder._replace(job_id=names[holder.job_id]) for holder in sample.holders if holder.uuid in mine),
        hosts=tuple(host for host in sample.hosts if host.job_id == job_id),
    )


def _device(unit: GpuUnit, reading: UnitReading) -> DeviceSample:
    # Both are laid out alike: what the unit is, up to the SMs of the whole GPU, and what was read of it.
    return DeviceSample._make((*unit[:7], *reading[1:]))

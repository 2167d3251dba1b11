# SPDX-License-Identifier: Apache-2.0
"""GPUs as nvidia-smi tells of them, for nodes where only that works.

It has neither SM activity nor an energy counter, nor utilisation or memory of a MIG slice. Its GPU_UTIL is that of the
driver's last second or less, not of the time since the previous reading.
"""

import os
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from slurm_colloc.errors import GpuError, ProcessError
from slurm_colloc.gpu.mig import model_named, parse_profile
from slurm_colloc.gpu.proc import sees_host_pids
from slurm_colloc.gpu.reader import GpuProcess, GpuUnit, UnitReading, numbered
from slurm_colloc.measured import ProcessKind
from slurm_colloc.process import run
from slurm_colloc.units import whole

_FORMAT = "--format=csv,noheader,nounits"
_GPU_FIELDS = "uuid,index,name,memory.total,memory.used,utilization.gpu,power.draw,mig.mode.current"
# Not process_name: whoever runs the program chooses it, with line ends if he likes.
_PROCESS_FIELDS = "gpu_uuid,pid,used_memory"
# All that is asked; recorded on a real GPU under these names (tests/recorded).
COMMANDS = {
    "gpus": ("nvidia-smi", f"--query-gpu={_GPU_FIELDS}", _FORMAT),
    "processes": ("nvidia-smi", f"--query-compute-apps={_PROCESS_FIELDS}", _FORMAT),
    "list": ("nvidia-smi", "-L"),
}
# The compute mode by GPU: Default, Exclusive_Process, Prohibited (nvidia-smi --help-query-gpu).
MODES = ("nvidia-smi", "--query-gpu=uuid,compute_mode", "--format=csv,noheader")
_TIMEOUT_S = 10.0
_MINORS = "/proc/driver/nvidia/gpus"
_LISTED_GPU = re.compile(r"GPU \d+: .*\(UUID: (GPU-[^)\s]+)\)")
_LISTED_SLICE = re.compile(r"\s+MIG (\S+)\s+Device\s+\d+: \(UUID: (MIG-[^)\s]+)\)")
_MINOR = re.compile(r"^GPU UUID:\s*(\S+)$.*^Device Minor:\s*(\d+)$", re.MULTILINE | re.DOTALL)


class SmiGpu(NamedTuple):
    """One line of the query: what nvidia-smi does not say is None."""

    uuid: str
    place: int
    name: str
    mem_total_mib: int | None
    mem_used_mib: int | None
    gpu_util_pct: float | None
    power_w: float | None
    cut: bool


class SmiProcess(NamedTuple):
    """One line of the query of processes."""

    uuid: str
    pid: int
    mem_used_mib: int | None


def parse_number(text: str) -> float | None:
    """Return a figure; None for ``[N/A]``, ``[Not Supported]``, ``ERR!`` and whatever else is no number."""
    text = text.strip()
    return float(text) if re.fullmatch(r"[0-9]{1,18}(?:\.[0-9]{1,18})?", text) else None


def _whole(text: str) -> int | None:
    value = parse_number(text)
    return None if value is None else int(value)


def parse_gpus(text: str) -> tuple[SmiGpu, ...]:
    """Return the GPUs of the query; a line that is no answer (a lost GPU's error) is none."""
    found = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != len(_GPU_FIELDS.split(",")) or not fields[0].startswith("GPU-") or whole(fields[1]) is None:
            continue
        uuid, place, name, total, used, util, power, mig = fields
        gpu_util = parse_number(util)
        found.append(
            SmiGpu(
                uuid,
                int(place),
                name,
                _whole(total),
                _whole(used),
                gpu_util if gpu_util is None or gpu_util <= 100 else None,
                parse_number(power),
                mig == "Enabled",
            )
        )
    return tuple(found)


def parse_processes(text: str) -> tuple[SmiProcess, ...]:
    """Return the processes of the query."""
    lines = [[field.strip() for field in line.split(",")] for line in text.splitlines()]
    rows = ((line[0], whole(line[1]), _whole(line[2])) for line in lines if len(line) == 3)
    return tuple(SmiProcess(uuid, pid, mib) for uuid, pid, mib in rows if pid is not None)


def parse_slices(text: str) -> dict[str, tuple[tuple[str, str], ...]]:
    """Return the slices (profile, uuid) of each GPU's uuid, in the order of ``nvidia-smi -L``."""
    found: dict[str, tuple[tuple[str, str], ...]] = {}
    gpu = ""
    for line in text.splitlines():
        if match := _LISTED_GPU.match(line):
            gpu = match[1]
            found[gpu] = ()
        elif gpu and (match := _LISTED_SLICE.match(line)):
            found[gpu] += ((match[1], match[2]),)
    return found


def parse_minor(text: str) -> tuple[str, int] | None:
    """Return uuid and device file number in the text of /proc/driver/nvidia/gpus/*/information."""
    match = _MINOR.search(text)
    return (match[1], int(match[2])) if match else None


def _minors(folder: str) -> dict[str, int]:
    """Return the number of each GPU's device file, which no query tells; nothing where it is not to be had."""
    found = []
    try:
        for name in sorted(os.listdir(folder)):
            with open(os.path.join(folder, name, "information")) as stream:
                found.append(parse_minor(stream.read()))
    except OSError:  # in a container: the index has to do
        return {}
    return dict(one for one in found if one)


class NvidiaSmiReader:
    """A GpuReader over the program nvidia-smi."""

    complaint = ""

    def __init__(self, minors: str = _MINORS) -> None:
        self._minors = minors
        self._host_pids = sees_host_pids()
        self._units: tuple[GpuUnit, ...] = ()
        self._look()

    def units(self) -> tuple[GpuUnit, ...]:
        """Return the GPUs, and the slices of those that are cut, as of the last reading."""
        return self._units

    def read(self) -> tuple[tuple[UnitReading, ...], tuple[GpuProcess, ...]]:
        """Return what nvidia-smi tells of the GPUs and the processes on them.

        Raises:
            GpuError: it tells nothing.
        """
        gpus = self._look()
        processes = parse_processes(_ask("processes"))
        readings = tuple(_reading(unit, gpus) for unit in self._units)
        # Of a GPU that is cut nvidia-smi may name the card, and then the process is on none of our units.
        known = {unit.uuid for unit in self._units}
        # The query tells neither a server of MPS nor its clients.
        return readings, tuple(
            GpuProcess(one.uuid, one.pid if self._host_pids else 0, ProcessKind.UNKNOWN, one.mem_used_mib, None)
            for one in processes
            if one.uuid in known
        )

    def close(self) -> None:
        """Do nothing: each question starts the program anew."""

    def _look(self) -> dict[str, SmiGpu]:
        text = _ask("gpus")
        gpus = parse_gpus(text)
        if not gpus:
            said = (text.strip().splitlines() or ["nothing"])[-1]
            raise GpuError(f"nvidia-smi tells of no GPU, but says: {said}; is this a GPU node?")
        slices = parse_slices(_ask("list")) if any(gpu.cut for gpu in gpus) else {}
        units, minors = _units(gpus, slices), _minors(self._minors)
        before = {unit.uuid: unit.gres_index for unit in self._units}
        self._units = numbered(units, [minors.get(unit.uuid) for unit in units], before)
        return {gpu.uuid: gpu for gpu in gpus}


def computing() -> set[int]:
    """Return the pids of the processes that have a context on a GPU of this node; none where it does not say.

    Raises:
        GpuError: nvidia-smi could not be asked.
    """
    return {one.pid for one in parse_processes(_ask("processes"))}


def compute_modes() -> dict[str, str]:
    """Return the compute mode of each GPU's uuid, in lower case; a GPU that does not say is not there.

    Raises:
        GpuError: nvidia-smi could not be asked.
    """
    return parse_modes(_answer(MODES))


def parse_modes(text: str) -> dict[str, str]:
    """Return uuid -> compute mode; a line that is no answer is none."""
    pairs = (line.partition(",")[::2] for line in text.splitlines() if line.startswith("GPU-"))
    return {uuid.strip(): mode.strip().lower() for uuid, mode in pairs if mode.strip()[:1].isalpha()}


def _ask(question: str) -> str:
    return _answer(COMMANDS[question])


def _answer(command: Sequence[str]) -> str:
    try:
        done = run(command, _TIMEOUT_S)
    except ProcessError as error:
        raise GpuError(f"nvidia-smi could not be asked: {error}") from error
    # With one GPU lost it fails, and yet tells of the others.
    return done.stdout.decode(errors="replace")


def _units(gpus: Sequence[SmiGpu], slices: Mapping[str, Sequence[tuple[str, str]]]) -> list[GpuUnit]:
    units: list[GpuUnit] = []
    for gpu in gpus:
        model = model_named(gpu.name)
        sm_count = model.sm_count if model else 0
        whole = GpuUnit(gpu.uuid, gpu.place, gpu.name, "", gpu.mem_total_mib or 0, sm_count, sm_count)
        if not gpu.cut:
            units.append(whole)
        for name, uuid in slices.get(gpu.uuid, ()) if gpu.cut else ():
            profile = parse_profile(name)
            mib, sms = model.profiles.get(profile.name, (0, 0)) if model and profile else (0, 0)
            units.append(whole._replace(uuid=uuid, profile=name, mem_total_mib=mib, sm_count=sms, parent_uuid=gpu.uuid))
    return units


def _reading(unit: GpuUnit, gpus: Mapping[str, SmiGpu]) -> UnitReading:
    if unit.profile:
        return UnitReading(unit.uuid)
    gpu = gpus[unit.uuid]
    return UnitReading(
        unit.uuid,
        process_list=True,
        gpu_util_pct=gpu.gpu_util_pct,
        gpu_mem_used_mib=gpu.mem_used_mib,
        power_w=gpu.power_w,
    )

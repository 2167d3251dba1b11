# SPDX-License-Identifier: Apache-2.0
"""Questions to the program nvidia-smi alone: compute modes, and which processes have a context.

NVML, which nvidia-smi itself goes by, reads the use of GPUs.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from slurm_colloc.core.errors import GpuError, ProcessError
from slurm_colloc.core.process import run
from slurm_colloc.core.units import whole

# Not process_name: its user chooses it, with line ends if he likes.
PROCESSES = ("nvidia-smi", "--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv,noheader,nounits")
# The compute mode: Default, Exclusive_Process, Prohibited (nvidia-smi --help-query-gpu).
MODES = ("nvidia-smi", "--query-gpu=uuid,name,compute_mode,mig.mode.current", "--format=csv,noheader")
LIST = ("nvidia-smi", "-L")
_TIMEOUT_S = 10.0
_LISTED_GPU = re.compile(r"GPU \d+: .*\(UUID: (GPU-[^)\s]+)\)")
_LISTED_SLICE = re.compile(r"\s+MIG (\S+)\s+Device\s+\d+: \(UUID: (MIG-[^)\s]+)\)")


class SmiDevice(NamedTuple):
    """A GPU, or a slice with its profile; ``mode`` is its GPU's compute mode in lower case, empty where not said."""

    uuid: str
    model: str
    profile: str
    mode: str


def computing() -> set[int]:
    """Return the pids of the processes that have a context on a GPU of this node; none where it does not say.

    Raises:
        GpuError: nvidia-smi could not be asked.
    """
    return parse_pids(_answer(PROCESSES))


def parse_pids(text: str) -> set[int]:
    """Return the pids in the answer to PROCESSES."""
    lines = (line.split(",") for line in text.splitlines())
    return {pid for line in lines if len(line) == 3 and (pid := whole(line[1].strip())) is not None}


def devices() -> tuple[SmiDevice, ...]:
    """Return the GPUs of this node, and in place of one that is cut its slices.

    Raises:
        GpuError: nvidia-smi could not be asked, or tells of no GPU.
    """
    text = _answer(MODES)
    units = parse_devices(text, _answer(LIST) if "Enabled" in text else "")
    if not units:
        last_line = (text.strip().splitlines() or ["nothing"])[-1]
        raise GpuError(f"nvidia-smi tells of no GPU, but says: {last_line}; is this a GPU node?")
    return units


def parse_devices(text: str, listed: str) -> tuple[SmiDevice, ...]:
    """Return what the answers to MODES and LIST tell; a line that is no answer (a lost GPU's error) is none."""
    slices, units = parse_slices(listed), list[SmiDevice]()
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != len(MODES[1].split(",")) or not fields[0].startswith("GPU-"):
            continue
        uuid, model, mode, cut = fields
        mode = mode.lower() if mode[:1].isalpha() else ""
        if cut == "Enabled":
            units += (SmiDevice(slice_uuid, model, profile, mode) for profile, slice_uuid in slices.get(uuid, ()))
        else:
            units.append(SmiDevice(uuid, model, "", mode))
    return tuple(units)


def parse_slices(text: str) -> dict[str, tuple[tuple[str, str], ...]]:
    """Return the slices (profile, uuid) of each GPU's uuid, in the order of ``nvidia-smi -L``."""
    slices: dict[str, tuple[tuple[str, str], ...]] = {}
    gpu = ""
    for line in text.splitlines():
        if match := _LISTED_GPU.match(line):
            gpu = match[1]
            slices[gpu] = ()
        elif gpu and (match := _LISTED_SLICE.match(line)):
            slices[gpu] += ((match[1], match[2]),)
    return slices


def _answer(command: Sequence[str]) -> str:
    try:
        done = run(command, _TIMEOUT_S)
    except ProcessError as error:
        raise GpuError(f"nvidia-smi could not be asked: {error}") from error
    # With one GPU lost it fails, and yet tells of the others.
    return done.stdout.decode(errors="replace")

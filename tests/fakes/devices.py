# SPDX-License-Identifier: Apache-2.0
"""GPUs and MIG slices on paper, what they do over time, and the loads that were read on a real one."""

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from slurm_colloc.gpu.mig import GpuModel, models, parse_profile

_RECORDED = Path(__file__).resolve().parents[1] / "recorded/nvml-h100/loads.jsonl"
H100_80GB = next(model for model in models() if model.name == "NVIDIA H100 80GB HBM3")
# Memory slices of a GPU that a profile takes, where it may begin, and the ids of GPU instances beginning at slice 0,
# with the step to the next, as drivers were seen to give them (NVIDIA MIG User Guide; DCGM issue 138).
PLACEMENTS = {
    ("1g", 1): (range(7), 7),
    ("1g", 2): (range(0, 8, 2), 3),
    ("2g", 2): (range(0, 6, 2), 3),
    ("3g", 4): (range(4, -1, -4), 1),
    ("4g", 4): (range(1), 1),
    ("7g", 8): (range(1), 0),
}


class Load(NamedTuple):
    """What a GPU or slice does for a while; None is what this hardware does not count."""

    gpu_util_pct: float | None = 0.0
    gr_active_pct: float | None = 0.0
    sm_active_pct: float | None = 0.0
    sm_occupancy_pct: float | None = 0.0
    tensor_active_pct: float | None = 0.0
    dram_active_pct: float | None = 0.0
    gpu_mem_used_mib: float = 0.0
    power_w: float | None = 71.0


IDLE = Load()
Script = Sequence[tuple[float, Load]]


class Process(NamedTuple):
    """A process on a GPU: kind is compute, graphics, both, client or server (of MPS)."""

    pid: int
    mib: int | None = 874
    sm_pct: int = 0
    kind: str = "compute"


@dataclass(eq=False)
class Device:
    """A GPU, or a MIG device of one; ``slices`` is None with MIG off, ``script`` says from when on it does what."""

    uuid: str
    name: str
    total_mib: int
    sm_count: int
    minor: int = 0
    parent: "Device | None" = None
    gpu_instance: int = 0
    slices: "list[Device] | None" = None
    gpm: bool = True
    script: Script = ((-math.inf, IDLE),)
    processes: list[Process] = field(default_factory=list)

    @property
    def cut(self) -> bool:
        """Return whether what only whole GPUs have is not to be had here."""
        return self.parent is not None or self.slices is not None

    def does(self, load: Load, *processes: Process) -> None:
        """Let it do one thing from ever on."""
        self.script, self.processes = ((-math.inf, load),), list(processes)

    def mean(self, name: str, since_s: float, until_s: float) -> float | None:
        """Return what a counter's mean over a time is; None where the hardware has none."""
        ends = [*(start for start, _ in self.script[1:]), math.inf]
        parts = []
        for (start, load), end in zip(self.script, ends, strict=True):
            lasted = min(end, until_s) - max(start, since_s)
            value = getattr(load, name)
            if lasted > 0:
                if value is None:
                    return None
                parts.append(value * lasted)
        return math.fsum(parts) / (until_s - since_s) if parts else 0.0


def gpus(count: int = 1, model: GpuModel = H100_80GB, gpm: bool = True) -> list[Device]:
    """Return whole GPUs of a model."""
    made = range(count)
    size = model.mem_total_mib or 0, model.sm_count or 0
    return [Device(f"GPU-{one}", model.name, *size, minor=one, gpm=gpm) for one in made]


def slices_of(gpu: Device, profiles: Sequence[str], series: int = 0) -> list[Device]:
    """Return a GPU's slices; ``2c.3g.40gb`` is a compute instance, beside others in the last GPU instance of its kind.

    Raises:
        ValueError: they do not fit.
    """
    model = next(one for one in models() if one.name == gpu.name)
    made: list[Device] = []
    taken: set[int] = set()
    instances: dict[str, int] = {}
    for profile in profiles:
        parsed = parse_profile(profile)
        kind = profile.partition("c.")[2] or profile
        if parsed is None or kind not in model.profiles:
            raise ValueError(f"a {model.name} has no {profile}")
        mib, sm_count = model.profiles[kind]
        if kind == profile or kind not in instances:
            instances[kind] = _place(kind, mib * 8 / gpu.total_mib, taken)
        if kind != profile:
            sm_count = sm_count * parsed.compute_slices // int(kind[0])
        made.append(
            Device(
                f"MIG-{gpu.uuid}-{series}-{len(made)}",
                f"{model.name} MIG {profile}",
                mib,
                sm_count,
                parent=gpu,
                gpu_instance=instances[kind],
                gpm=gpu.gpm,
            )
        )
    return made


def _place(kind: str, memory: float, taken: set[int]) -> int:
    """Take memory slices for a GPU instance and return its id."""
    size = next(size for size in (1, 2, 4, 8) if memory <= size)
    starts, first_id = PLACEMENTS[kind[:2], size]
    for position, start in enumerate(starts):
        cells = set(range(start, start + size))
        if not cells & taken:
            taken |= cells
            return first_id + position
    raise ValueError(f"there is no room left for {kind}")


def recorded() -> Iterator[tuple[str, Load, list[Process]]]:
    """Yield the loads that were read on an H100: name, figures, processes."""
    for line in _RECORDED.read_text().splitlines()[1:]:
        found = json.loads(line)
        medians = {name: found["medians"].get(name) for name in Load._fields}
        kind = "client" if found["load"].startswith("mps") else "compute"
        processes = [
            Process(pid, mib, int(sm_pct or 0), kind) for pid, (_, mib, sm_pct) in enumerate(found["processes"], 100)
        ]
        yield found["load"], Load(**medians), processes

# SPDX-License-Identifier: Apache-2.0
"""Figures that others measured: those of a whole job, without their times, and those of a GPU at one time."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from slurm_colloc.core.usage_model import DeviceSample


def device_read(
    uuid: str,
    number: int,
    model: str,
    profile: str,
    sizes: tuple[int, int, int],
    reading: Mapping[str, float | None],
    interval_s: float = 0.0,
) -> DeviceSample:
    """Return what others read of a GPU or slice; its ``sizes`` are memory (MiB), SMs, and the whole GPU's SMs."""
    memory, power_w = reading.get("gpu_mem_used_mib"), reading.get("power_w")
    return DeviceSample(
        *(uuid, number, model, profile, *sizes, False),
        gpu_util_pct=reading.get("gpu_util_pct"),
        gr_active_pct=reading.get("gr_active_pct"),
        sm_active_pct=reading.get("sm_active_pct"),
        sm_occupancy_pct=reading.get("sm_occupancy_pct"),
        tensor_active_pct=reading.get("tensor_active_pct"),
        dram_active_pct=reading.get("dram_active_pct"),
        gpu_mem_used_mib=None if memory is None else math.ceil(memory),
        power_w=power_w,
        energy_j=None if power_w is None else power_w * interval_s,
    )


class JobMeans(NamedTuple):
    """Figures of one run; ``gpus`` is how many GPUs the utilisation is of, 0 where only memory is known.

    ``gpu_util_pct`` is the mean over the run's time and those GPUs. ``gpu_mem_peak_mib`` adds up the GPUs of the node
    that had the most.
    """

    gpu_util_pct: float | None
    gpu_mem_peak_mib: int | None
    gpus: int
    method: str

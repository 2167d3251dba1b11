# SPDX-License-Identifier: Apache-2.0
"""Figures of a whole job that others measured, without their times."""

from typing import NamedTuple


class JobMeans(NamedTuple):
    """Figures of one run; ``gpus`` is how many GPUs the utilisation is of, 0 where only memory is known.

    ``gpu_util_pct`` is the mean over the run's time and those GPUs. ``gpu_mem_peak_mib`` adds up the GPUs of the node
    that had the most.
    """

    gpu_util_pct: float | None
    gpu_mem_peak_mib: int | None
    gpus: int
    method: str

# SPDX-License-Identifier: Apache-2.0
"""The free GPUs, slices and shares by partition, cached between submissions."""

from collections.abc import Mapping
from typing import NamedTuple

from slurm_colloc.core.model import Gres


class Free(NamedTuple):
    """Units that a job could have at once by (partition, kind), as ``kind_of`` names kinds; ``at_s`` is when.

    Units of gpu (whole ones and slices) are all that are free, those of mps and shard the most that one GPU has left,
    for a job's shares are of one GPU. A kind that is not listed is not known; ``failed`` says why Slurm did not tell
    anything.
    """

    at_s: float
    units: Mapping[tuple[str, str], int]
    failed: str = ""


def kind_of(gres: Gres) -> str:
    """Return what jobs that may get the same thing have in common: ``gpu:h100``, ``gpu``, ``mps``, ``shard``."""
    return f"gpu:{gres.type}" if gres.name == "gpu" and gres.type else gres.name

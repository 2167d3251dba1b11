# SPDX-License-Identifier: Apache-2.0
"""The free GPUs, slices and shares by partition, cached between submissions."""

from collections.abc import Mapping
from typing import NamedTuple

from slurm_colloc.errors import InputError
from slurm_colloc.model import Gres
from slurm_colloc.value_types import fits


class Free(NamedTuple):
    """Units that a job could have at once by (partition, kind), as ``kind_of`` names kinds; ``at_s`` is when.

    Of gpus (whole ones and slices) all that are free; of mps and shard the most that one GPU has left, for a job's
    shares are of one GPU. What is not listed is not known.
    """

    at_s: float
    units: Mapping[tuple[str, str], int]


def kind_of(gres: Gres) -> str:
    """Return what jobs that may get the same thing have in common: ``gpu:h100``, ``gpu``, ``mps``, ``shard``."""
    return f"gpu:{gres.type}" if gres.name == "gpu" and gres.type else gres.name


def to_json(free: Free) -> dict[str, object]:
    """Return what ``from_json`` reads."""
    return {"at_s": free.at_s, "units": [[*key, number] for key, number in free.units.items()]}


def from_json(kept: object) -> Free:
    """Return what ``to_json`` was given.

    Raises:
        InputError: of another form.
    """
    try:
        if not isinstance(kept, dict) or not fits(kept["at_s"], float):
            raise ValueError("no time")
        units = {(str(partition), str(kind)): int(number) for partition, kind, number in kept["units"]}
        return Free(float(kept["at_s"]), units)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError("what was kept of the free GPUs is not of the expected form") from error

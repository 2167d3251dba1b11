# SPDX-License-Identifier: Apache-2.0
"""GPU use by Slurm's own job accounting: gres/gpuutil and gres/gpumem in sacct's TRESUsageInTot.

They are no means: a step's value is the highest reading of each of its tasks over all its GPUs, added up over the tasks
(slurm.schedmd.com/gres.html calls them high-water marks). The utilisation is the most that the mean can be.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from slurm_colloc.core.errors import InputError
from slurm_colloc.core.model import Gres
from slurm_colloc.core.units import used_mib
from slurm_colloc.gpu.mig import parse_profile
from slurm_colloc.slurm.gres import SHOWN
from slurm_colloc.sources.means import JobMeans

METHOD = "job peak by Slurm"
FIELD = "TRESUsageInTot"
_UTIL, _MEMORY = "gres/gpuutil", "gres/gpumem"
_NUMBER = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,6})?)([KMGTPE]?)")
_MULTIPLIER = {unit: 1024**power for power, unit in enumerate(("", *"KMGTPE"))}
# Slurm's "infinite" and "not set", in bytes or with a suffix, lie above.
_MOST = 2**60
# CHANGELOG/slurm-23.02.md of Slurm: until 23.02.6 jobacct_gather/cgroup reads neither, until 23.02.3 Tot is the last
# reading. CHANGELOG/slurm-24.05.md: until 24.05.1 only a step's last GPU counts.
_RIGHT_SINCE = (23, 2, 6)
_ALL_GPUS_SINCE = (24, 5, 1)


class Step(NamedTuple):
    """One step of a run; ``usage`` is its TRESUsageInTot, ``nodes`` on how many nodes it ran."""

    start_s: float
    end_s: float
    nodes: int
    usage: Mapping[str, float | None]


def parse_tres_usage(text: str) -> dict[str, float | None]:
    """Return the numbers of a TRESUsageIn* value by Slurm's names; None for one that is infinite or not set.

    Sizes are in bytes, whether sacct wrote them so (--noconvert) or as ``38888M``; times (``cpu``) are left out.

    Raises:
        InputError: an item outside the grammar.
    """
    usage: dict[str, float | None] = {}
    for item in filter(None, text.split(",")):
        name, equals, value = item.partition("=")
        if name == "cpu" and equals:
            continue
        match = _NUMBER.fullmatch(value)
        if match is None or not name:
            raise InputError(f"TRES usage '{item[:SHOWN]}' in '{text[:SHOWN]}' is not of the form name=number")
        number = float(match[1]) * _MULTIPLIER[match[2]]
        usage[name] = number if number < _MOST else None
    return usage


def step_means(steps: Sequence[Step], gres: Iterable[Gres], release: str) -> JobMeans | None:
    """Return what the steps of one run tell of its GPUs; None where none of them says anything.

    Args:
        steps: all steps of the run.
        gres: the gres of the run.
        release: the release of the Slurm that ran it, with its third number ("24.05.4").

    Raises:
        InputError: they say what is not so, and why.
    """
    measured = [step for step in steps if _UTIL in step.usage or _MEMORY in step.usage]
    if not measured:
        return None
    if not re.match(r"\d+\.\d+\.\d+", release):
        raise InputError("say which Slurm ran them: --slurm-release 24.05.4")
    gpus = _whole_gpus(gres)
    numbers = tuple(int(part) for part in re.findall(r"\d+", release))
    if numbers < _RIGHT_SINCE:
        raise InputError("gpuutil and gpumem are wrong before Slurm 23.02.6")
    if gpus > 1 and numbers < _ALL_GPUS_SINCE:
        raise InputError("gpuutil and gpumem are of one GPU of several before Slurm 24.05.1")
    values = [step.usage.get(name) for step in measured for name in (_UTIL, _MEMORY)]
    if not any(values):
        raise InputError("gpuutil and gpumem are 0 or infinite, as they are where Slurm cannot read them")
    util, memory = _most_at_once(measured, _UTIL), _most_at_once(measured, _MEMORY)
    if util is not None and util > 100 * gpus:
        raise InputError("gpuutil is more than the GPUs can do: peaks at different times of what shares them")
    one_node = all(step.nodes == 1 for step in measured)
    return JobMeans(
        gpu_util_pct=None,
        gpu_mem_peak_mib=used_mib(round(memory)) if memory is not None and one_node else None,
        gpus=0 if util is None else gpus,
        method=METHOD,
    )


def highest_util_pct(steps: Sequence[Step]) -> float | None:
    """Return the highest reading of GPU_UTIL in steps that ``step_means`` believes; None where one is not known."""
    return _most_at_once([step for step in steps if _UTIL in step.usage or _MEMORY in step.usage], _UTIL)


def _whole_gpus(gres: Iterable[Gres]) -> int:
    items = [item for item in gres if item.quantity]
    if any(parse_profile(item.type) for item in items):
        raise InputError("gpuutil and gpumem cannot be read on MIG slices")
    if not items or any(item.name != "gpu" for item in items if item.name in ("gpu", "mps", "shard")):
        raise InputError("gpuutil and gpumem of a run without whole GPUs")
    return sum(item.quantity for item in items if item.name == "gpu")


def _most_at_once(steps: Sequence[Step], name: str) -> float | None:
    """Return the highest sum over steps that ran at one time, None when one of them is not known."""
    values = [step.usage.get(name) for step in steps]
    if None in values:
        return None
    return max(
        sum(
            value
            for step, value in zip(steps, values, strict=True)
            if value is not None and (step.start_s <= begin.start_s < step.end_s or step is begin)
        )
        for begin in steps
    )

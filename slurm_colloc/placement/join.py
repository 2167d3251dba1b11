# SPDX-License-Identifier: Apache-2.0
"""Whether a light job may begin inside a running allocation, beside what runs there already: pure functions.

The two take turns on the GPU (no MPS), so together they may not keep more than all of its SMs busy; and what is not
known of one of them is a reason against.
"""

import math
from typing import NamedTuple

from slurm_colloc.model import Footprint, Load
from slurm_colloc.placement.packing import may_share
from slurm_colloc.units import in_words

# Two that take turns, alone up to 76 % of the SMs together, took 1.07 to 1.38 times as long as alone on an H100
# (docs/benchmarks.md); the largest, rounded up.
SLOWDOWN = 1.4
# Of the host's memory on the node what is left free, for what has been measured so far may still grow.
HOST_MEM_SPARE = 0.1


class Unit(NamedTuple):
    """The GPU or slice of the allocation: its memory, and a whole GPU's SMs and memory over its own."""

    memory_mib: int
    whole_over_own: float = 1.0
    memory_over_own: float = 1.0


class Times(NamedTuple):
    """What is known of the time; ``left_s`` is what Slurm still gives the host, ``host_run_s`` what its runs take.

    Of the new job ``limit_s`` is the limit it asks for and ``run_s`` what its runs took at most. Unknown is None.
    """

    left_s: float
    host_ran_s: float
    host_run_s: float | None
    limit_s: float | None
    run_s: float | None


class Node(NamedTuple):
    """Cores and memory of the allocation, what its steps were measured to use, and what the new job asks for."""

    cpus: int
    mem_mib: int
    used_mib: int | None
    cpus_asked: int
    mem_asked_mib: int | None


def load_of(footprint: Footprint, unit: Unit, headroom_mib: int) -> Load | str:
    """Return what a job is counted for on ``unit``, or why that is not known."""
    memory, active = footprint.gpu_mem_peak_mib, footprint.sm_active_pct
    if memory is None:
        return footprint.provenance
    if active is None:
        return f"how busy it keeps a GPU is not known ({footprint.provenance})"
    dram = footprint.dram_active_pct
    return Load(
        math.ceil(memory.q99) + headroom_mib,
        min(100.0, active.q95 * unit.whole_over_own),
        # A slice has the part of the bandwidth that it has of the memory.
        None if dram is None else min(100.0, dram.q95 * unit.memory_over_own),
    )


def reason_against(host: Load, guest: Load, unit: Unit) -> str:
    """Return why the two may not take turns on one GPU or slice; empty when they may.

    Args:
        host: what runs there.
        guest: what is to begin beside it.
        unit: the GPU or slice.
    """
    return may_share([host, guest], unit.memory_mib, 100.0)


def needed_s(times: Times) -> float | None:
    """Return for how long the new job may run beside the host, in seconds; None where nothing bounds it."""
    known = [seconds for seconds in (times.limit_s, times.run_s) if seconds is not None and seconds < math.inf]
    return SLOWDOWN * min(known) if known else None


def step_limit_s(times: Times) -> float | None:
    """Return the step's time limit: what its user asked for, however soon earlier runs ended; None for its job's."""
    return None if times.limit_s is None or times.limit_s == math.inf else SLOWDOWN * times.limit_s


def reason_of_time(times: Times) -> str:
    """Return why the new job might not end before the host does; empty when it will, as far as is known."""
    needed = needed_s(times)
    if needed is None:
        return "how long the job runs is not known; give it a --time"
    if needed > times.left_s:
        return f"it has {in_words(times.left_s)} left, and the job may take {in_words(needed)} beside it"
    if times.host_run_s is not None and needed > times.host_run_s - times.host_ran_s:
        left_s = max(0.0, times.host_run_s - times.host_ran_s)
        return f"it is expected to end in {in_words(left_s)}, and the job may take {in_words(needed)} beside it"
    return ""


def reason_of_node(node: Node) -> str:
    """Return why cores or memory on the node do not suffice; empty when they do."""
    if node.cpus_asked > node.cpus:
        return f"it has {node.cpus} cores, and the job asks for {node.cpus_asked}"
    if node.mem_asked_mib is None:
        return "how much host memory the job needs is not known; give it a --mem"
    if node.used_mib is None:
        return "how much host memory it uses is not measured"
    free_mib = math.floor(node.mem_mib * (1 - HOST_MEM_SPARE)) - node.used_mib
    if node.mem_asked_mib > free_mib:
        return (
            f"of its {node.mem_mib} MiB of host memory it uses {node.used_mib}, and {HOST_MEM_SPARE:.0%} stay free: "
            f"{max(0, free_mib)} MiB do not hold {node.mem_asked_mib}"
        )
    return ""

# SPDX-License-Identifier: Apache-2.0
"""Tasks at a time: how many tasks of one pack share a GPU under MPS, and how long that takes. Pure functions.

The tasks' memory must fit, each with the site's headroom, together they keep at most ``MAX_SM_PCT`` of the
SMs busy, and no two of them keep the GPU's memory busy. The bound on SMs is above all of them, for a task that keeps
SMs busy leaves room in each; a task that alone keeps them all busy gains nothing from its like, while a light one may
ride along.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from slurm_colloc.core.config import MigSlice, Pool, Sharing
from slurm_colloc.core.errors import InputError
from slurm_colloc.core.model import Footprint, Load, Reason, Room, because
from slurm_colloc.placement.candidate import other_card
from slurm_colloc.placement.speed import Slowdown, beside

# The MPS server itself takes this: 66 MiB measured on an H100.
MPS_SERVER_MIB = 100
# Clients of a whole GPU since Volta; a slice has them in proportion to its size.
MPS_CLIENTS = 48
# The most SM activity of a pack's tasks, each measured alone, on one GPU.
MAX_SM_PCT = 120.0
# Two tasks of which each keeps the memory busy for longer than this are not put together: they may slow each other, and
# no limit on SMs prevents that. The number is proposed, not measured. A CIFAR net with 55 % (and 81.8 % of the SMs)
# still gained 1.15 to 1.20 times in all with two to seven of its like.
BUSY_DRAM_PCT = 50.0
# Sums of decimals are not exact: 0.1 + 0.2 is above 0.3.
_TOLERANCE = 1e-6


class Packing(NamedTuple):
    """A number of tasks at a time on one GPU or slice.

    ``load`` is what each is counted for, ``room`` what they may come to; both in percent of this unit's SMs.
    ``slowdown`` is how much longer each takes than a task that has this unit alone. ``reasons`` say how the number
    came about.
    """

    at_once: int
    room: Room
    load: Load
    slowdown: Slowdown
    reasons: tuple[Reason, ...]


class _Unit(NamedTuple):
    """A GPU or slice: memory for tasks, the whole GPU's SMs over its own, and how many tasks it takes."""

    memory_mib: int
    whole_over_own: float
    most: int


class _TaskNeed(NamedTuple):
    """The need of one task on a unit; a part that is not known is None, and ``unknown`` says why.

    A ``dram_active_pct`` that is not known restricts nothing, and is no reason.
    """

    memory_mib: int | None
    sm_active_pct: float | None
    unknown: Reason | None
    dram_active_pct: float | None = None


def tasks_at_a_time(
    footprint: Footprint,
    pool: Pool,
    sharing: Sharing,
    wanted: int | None,
    *,
    part: MigSlice | None = None,
) -> Packing | Reason:
    """Return how many tasks at a time share one GPU in a pack, or why they are not packed.

    Args:
        footprint: of one task.
        pool: the nodes that it runs on.
        sharing: the site's bounds.
        wanted: the user's own number of tasks at a time, which GPU memory bounds and how busy they keep it does not;
            None: by the footprint.
        part: the MIG slice of ``pool`` that holds the pack; None: a whole GPU.
    """
    unit = _unit(pool, part)
    if isinstance(unit, Reason):
        return unit
    need = _need(footprint, pool, part, unit, sharing)
    if wanted is None:
        if need.unknown:
            return need.unknown
        if _is_busy(need.dram_active_pct):
            return because("one-task-fills-memory-bandwidth", dram_pct=need.dram_active_pct)
    # At most so many at a time, and why.
    bounds = [(unit.most, because("most-tasks", most=unit.most))]
    bounds += [] if wanted is None else [(wanted, because("tasks-asked-for", asked=wanted))]
    if need.memory_mib is not None:
        held = unit.memory_mib // need.memory_mib
        least = 1 if wanted is None else min(most for most, _ in bounds)
        memory = {"mem_mib": unit.memory_mib, "held": held, "each_mib": need.memory_mib}
        if held < least:
            return Reason("tasks-exceed-memory", {**memory, "tasks": least, "headroom_mib": sharing.headroom_mib})
        bounds.append((held, Reason("memory-holds-tasks", memory)))
    if need.sm_active_pct is not None and wanted is None:
        why = because("tasks-fill-sms", sm_pct=need.sm_active_pct, max_pct=MAX_SM_PCT)
        by_sms = math.floor(MAX_SM_PCT / max(need.sm_active_pct, MAX_SM_PCT / MPS_CLIENTS) + _TOLERANCE)
        bounds.append((max(1, by_sms), why))
    at_once, why = min(bounds, key=lambda bound: bound[0])
    return why if at_once <= 1 else _packing(at_once, why, unit, need)


def _unit(pool: Pool, part: MigSlice | None) -> _Unit | Reason:
    if part is None:
        if pool.gpu_mem_mib is None:
            return because("site-lacks", key="gpu_mem_mib", pool=pool.name)
        return _Unit(pool.gpu_mem_mib - MPS_SERVER_MIB, 1.0, MPS_CLIENTS)
    if pool.sm_count is None:
        return because("site-lacks", key="sm_count", pool=pool.name)
    clients = max(1, MPS_CLIENTS * part.sm_count // pool.sm_count)
    whole_over_own = pool.sm_count / part.sm_count
    return _Unit(part.mem_mib - MPS_SERVER_MIB, whole_over_own, clients)


def _is_busy(dram_active_pct: float | None) -> bool:
    return dram_active_pct is not None and dram_active_pct > BUSY_DRAM_PCT


def _need(footprint: Footprint, pool: Pool, part: MigSlice | None, unit: _Unit, sharing: Sharing) -> _TaskNeed:
    if reason := other_card(footprint.gpu_model, pool):
        return _TaskNeed(None, None, reason)
    memory, active, dram = footprint.gpu_mem_peak_mib, footprint.sm_active_pct, footprint.dram_active_pct
    # A slice has the part of the bandwidth that it has of the memory.
    narrower = pool.gpu_mem_mib / part.mem_mib if part and pool.gpu_mem_mib else unit.whole_over_own
    unknown = None
    if memory is None:
        unknown = footprint.provenance[0] if footprint.provenance else because("need-unknown")
    elif active is None:
        unknown = because("task-sm-unknown")
    return _TaskNeed(
        None
        if memory is None
        else max(1, math.ceil(max(memory.q99, (footprint.part_taken or 0.0) * unit.memory_mib)) + sharing.headroom_mib),
        # No task keeps more than all SMs busy: it is alone as slow on a slice that slows it.
        None if active is None else min(100.0, active.q95 * unit.whole_over_own),
        unknown,
        None if dram is None else min(100.0, dram.q95 * narrower),
    )


def _packing(at_once: int, why: Reason, unit: _Unit, need: _TaskNeed) -> Packing | Reason:
    share_mib = unit.memory_mib // at_once
    if share_mib < 1:
        return because("tasks-exceed-memory", mem_mib=unit.memory_mib, held=0, tasks=at_once)
    load = Load(
        share_mib if need.memory_mib is None else need.memory_mib,
        100.0 / at_once if need.sm_active_pct is None else need.sm_active_pct,
        # More at a time than one that is busy there are only where the user says so.
        None if _is_busy(need.dram_active_pct) else need.dram_active_pct,
    )
    sum_pct = at_once * load.sm_active_pct
    slowdown = of_equal(at_once, load.sm_active_pct)
    reasons = [why]
    if need.unknown:
        reasons += [need.unknown, because("equal-parts", tasks=at_once)]
    if sum_pct > MAX_SM_PCT + _TOLERANCE:
        reasons.append(because("sms-above-bound", sum_pct=sum_pct, max_pct=MAX_SM_PCT))
    if _is_busy(need.dram_active_pct):
        reasons.append(because("tasks-busy-memory", dram_pct=need.dram_active_pct))
    reasons.append(because("task-slowdown", expected=slowdown.expected, upper=slowdown.upper))
    room = Room(unit.memory_mib, max(MAX_SM_PCT, sum_pct), at_once)
    return Packing(at_once, room, load, slowdown, tuple(reasons))


def may_share(loads: Sequence[Load], memory_mib: int, max_sm_pct: float) -> bool:
    """Return whether ``loads`` may be on one GPU under MPS at the same time.

    Args:
        loads: those that the tasks are counted for, memory with its headroom.
        memory_mib: the most for all; a GPU has its memory without MPS_SERVER_MIB.
        max_sm_pct: percent of the SMs that they may come to; one task alone may always keep all of them busy.
    """
    return (
        sum(load.memory_mib for load in loads) <= memory_mib
        and (len(loads) < 2 or sum(load.sm_active_pct for load in loads) <= max_sm_pct + _TOLERANCE)
        and sum(_is_busy(load.dram_active_pct) for load in loads) < 2
    )


def of_equal(tasks: int, sm_active_pct: float) -> Slowdown:
    """Return how much slower each of ``tasks`` equal tasks is under MPS than alone.

    Args:
        tasks: how many run at the same time.
        sm_active_pct: SM activity of one alone, in percent of the unit's SMs.
    """
    return beside(sm_active_pct, sm_active_pct * (tasks - 1))


def time_needed_min(tasks: int, at_once: int, task_limit_min: float, slowdown: float) -> int:
    """Return the minutes in which ``tasks`` end that each may take ``task_limit_min`` alone; without repetitions.

    A queue needs no more rounds than groups of ``at_once`` would, whenever each task ends.

    Args:
        tasks: how many there are.
        at_once: how many run at a time.
        task_limit_min: the time limit of one that has the GPU alone.
        slowdown: that of each while ``at_once`` are running.

    Raises:
        InputError: a task without a time limit bounds nothing.
    """
    if not 0 < task_limit_min < math.inf:
        raise InputError(f"a task's time limit of {task_limit_min:g} min does not bound its pack's; give it one")
    rounds = -(-tasks // at_once)
    # Each further task slows the others by as much: fewer than fit slow each other less.
    slower = slowdown if tasks >= at_once else 1 + (slowdown - 1) * (tasks - 1) / (at_once - 1)
    return math.ceil(rounds * task_limit_min * slower - _TOLERANCE)


def jobs_needed(
    tasks: int, at_once: int, limit_min: float, slowdown: float, max_time_min: float | None
) -> int | Reason:
    """Return the least number of jobs that tasks are dealt out to so that each job ends in time, or why none does.

    Args:
        tasks: how many there are.
        at_once: how many run at a time in each job.
        limit_min: the time limit of one task that has the GPU alone.
        slowdown: that of each while ``at_once`` are running.
        max_time_min: the longest time limit of a job; None: any.

    Raises:
        InputError: as ``time_needed_min``.
    """
    if max_time_min is None or time_needed_min(tasks, at_once, limit_min, slowdown) <= max_time_min:
        return 1
    one_round_min = time_needed_min(at_once, at_once, limit_min, slowdown)
    if one_round_min > max_time_min:
        times = {"needed_min": one_round_min, "most_min": max_time_min, "limit_min": limit_min}
        return Reason("tasks-take-too-long", {"tasks": at_once, "slowdown": slowdown, **times})
    # One too many at first, for a job's time is whole minutes, rounded up.
    rounds = math.floor(max_time_min / (limit_min * slowdown)) + 1
    while time_needed_min(rounds * at_once, at_once, limit_min, slowdown) > max_time_min:
        rounds -= 1
    return -(-tasks // (rounds * at_once))

# SPDX-License-Identifier: Apache-2.0
"""Lists the pieces of a GPU that fit a job, and the reason for each piece that does not."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from slurm_colloc.core.config import MigSlice, Partition, Pool, SiteConfig
from slurm_colloc.core.model import Footprint, Gres, JobRequest, Reason, Rejected, SharingMode, because
from slurm_colloc.core.units import demand_units, most_of_whole
from slurm_colloc.gpu.mig import parse_profile
from slurm_colloc.placement.speed import Slowdown, most_in_part, most_on_slice, on_share, on_slice, part_needed
from slurm_colloc.placement.time_and_cores import (
    Kept,
    Part,
    asked_limit_min,
    asked_partitions,
    kept_when_moved,
    kept_with_share,
    kept_with_slice,
    mem_mib_of,
    other_card,
    suspending,
    time_needed,
    without_mps,
)
from slurm_colloc.slurm.limits import MINUTES, Limits, broken_limit, limit_passed_by

# What is left beside a larger share is no use to anybody: it is less than the smallest slice.
_LARGEST_SHARE = 7 / 8


class Access(NamedTuple):
    """What the accounting says of this user: limits (None where none are enforced), or why they are not known."""

    limits: Limits | None = None
    unknown: Reason | None = None
    groups: tuple[str, ...] = ()


class Need(NamedTuple):
    """What a piece has to hold: memory with the site's headroom, the mean SM activity; None where not known."""

    memory_mib: int
    sm_active_pct: float
    run_time_min: float | None
    cpu_cores: int | None = None
    host_mem_mib: int | None = None
    part_taken: float | None = None
    part_usable: float = 1.0
    busy_pct: float | None = None

    def part(self, of_gpu: float) -> Part:
        """Return what so large a part of a GPU is to this job."""
        return Part(of_gpu, self.cpu_cores, self.host_mem_mib)


class Room(NamedTuple):
    """A pool, the partition in which the job would use it, and whether that is another than those asked for."""

    pool: Pool
    partition: Partition
    moved: bool


class Most(NamedTuple):
    """The largest need that a piece holds: memory with the site's headroom, SM activity in percent of a whole GPU."""

    memory_mib: int
    sm_active_pct: float


class Fit(NamedTuple):
    """A piece that would do, and what has to be asked for beside it."""

    room: Room
    gres: Gres
    reasons: tuple[Reason, ...]
    most: Most
    cpu_option: str = ""
    mem: str = ""
    time_limit_min: int | None = None
    slowdown: Slowdown = Slowdown(1.0, 1.0)
    cpus: int = 0


class Taken(NamedTuple):
    """A piece that fits, and all that was rejected before it came to it."""

    mode: SharingMode
    fit: Fit
    rejected: tuple[Rejected, ...]


def rooms_of(
    request: JobRequest, footprint: Footprint, config: SiteConfig, access: Access, rejected: list[Rejected]
) -> Iterator[Room]:
    """Yield the pools that the job may run in and that its footprint speaks of, those of its own partitions first."""
    known = {partition.name: partition for partition in config.partition}
    asked = asked_partitions(request, config)
    others = list(dict.fromkeys(name for item in asked for name in item.pieces_in))
    elsewhere = [known.get(name, Partition(name)) for name in others if name not in {item.name for item in asked}]
    kind = next((gres.type for gres in request.gres if gres.name == "gpu"), "")
    models = {pool.gpu_model for pool in config.pool if kind and pool.gpu_type == kind}
    moves = []
    for pool in config.pool:
        here = next((item for item in asked if item.name in pool.partitions), None)
        there = next((item for item in elsewhere if item.name in pool.partitions), None)
        partition = here or there
        why: Reason | None = None
        if partition is None:
            why = because("not-in-partition", partitions=tuple(item.name for item in asked))
        elif shut := shut_by(partition.restrictions):
            why = because("partition-shut", partition=partition.name, restriction=shut)
        elif pool.gpu_type and pool.gpu_type in config.sharing.protected_types:
            why = because("protected", gpu_type=pool.gpu_type)
        elif kind and pool.gpu_type != kind and pool.gpu_model not in models - {""}:
            why = because("other-gpu-type", gpu_type=kind)
        elif kept_out := keeps_out(pool, request):
            why = kept_out
        else:
            unsized = because("site-lacks", key="sm_count", pool=pool.name) if pool.sm_count is None else None
            why = other_card(footprint, pool) or unsized
        if why is None and here is None and partition is not None:
            why = _closed(request, partition, config, access)
        if why is not None:
            rejected.append(Rejected(f"pool {pool.name}", why))
        elif here is not None:
            yield Room(pool, here, moved=False)
        elif partition is not None:
            moves.append(Room(pool, partition, moved=True))
    yield from moves


def keeps_out(pool: Pool, request: JobRequest) -> Reason | None:
    """Return why a job may not run on the nodes of a pool by what it says of nodes; None where it may."""
    if lacking := [name for name in request.features if set(name.split("|")).isdisjoint(pool.features)]:
        return because("pool-lacks-feature", feature=lacking[0])
    return because("pool-excluded") if request.excluded and _is_excluded(pool, request.excluded) else None


def _is_excluded(pool: Pool, nodes: Sequence[str]) -> bool:
    """Return whether all nodes of a pool are among those that a job will not run on."""
    # 20 ms, and of such jobs alone.
    from slurm_colloc.slurm.hostlist import expand

    return set(expand(pool.nodes)) <= set(nodes)


def shut_by(restrictions: Sequence[str]) -> str:
    """Return a partition's restriction by which a job on a piece of one node's GPU is of no use; empty for none.

    A job of MaxNodes=0 waits for ever, one of MinNodes=2 has two nodes, one of OverSubscribe=EXCLUSIVE all of a node.
    """
    for text in restrictions:
        key, _, value = text.partition("=")
        if value == "0" and key in ("MaxNodes", "MaxCPUsPerNode", "MaxCPUsPerSocket"):
            return text
        if key in ("RootOnly", "ReqResv", "OverSubscribe") or (key == "MinNodes" and int(value) > 1):
            return text
    return ""


def pieces_in(
    request: JobRequest,
    need: Need,
    rooms: list[Room],
    config: SiteConfig,
    access: Access,
    rejected: list[Rejected],
) -> Iterator[Taken]:
    """Yield the pieces that fit, in the order in which they are taken; ``rejected`` grows by those that do not."""
    for mode in config.sharing.order:
        for fit in _MODES[mode](request, need, rooms, config):
            found = fit if isinstance(fit, Rejected) else _allowed(request, fit, rooms, config, access)
            if isinstance(found, Fit):
                yield Taken(SharingMode(mode), found, tuple(rejected))
            else:
                rejected.append(found)


def _closed(request: JobRequest, partition: Partition, config: SiteConfig, access: Access) -> Reason | None:
    """Return why Slurm would not let the job into another partition, None when it would."""
    account = request.account or (access.limits.default_account if access.limits else "")
    for what, name, allowed, denied in (
        ("account", account, partition.restriction("AllowAccounts"), partition.restriction("DenyAccounts")),
        ("QOS", request.qos, partition.restriction("AllowQos"), partition.restriction("DenyQos")),
    ):
        if not name and (allowed or denied):
            return because("partition-access-unknown", partition=partition.name, what=what)
        if (allowed and name.lower() not in map(str.lower, allowed)) or name.lower() in map(str.lower, denied):
            return because("partition-closed", partition=partition.name, what=what, name=name)
    groups = partition.restriction("AllowGroups")
    if groups and not set(groups) & set(access.groups):
        return because("partition-groups", partition=partition.name, groups=groups)
    limit_min = asked_limit_min(request, config)
    if partition.max_time_min is not None and (limit_min is None or limit_min > partition.max_time_min):
        return because("partition-time", partition=partition.name, max_min=partition.max_time_min)
    return None


def _allowed(request: JobRequest, fit: Fit, rooms: list[Room], config: SiteConfig, access: Access) -> Fit | Rejected:
    """Return the fit if Slurm would take it and take it where it is meant to go."""
    asked = {item.name for item in asked_partitions(request, config)}
    targets = {fit.room.partition.name} if fit.room.moved else asked
    weighed = {room.pool.name for room in rooms if room.moved == fit.room.moved}
    for pool in config.pool:
        if pool.name not in weighed and targets & set(pool.partitions) and offers(pool, fit.gres):
            return Rejected(str(fit.gres), because("may-land-elsewhere", pool=pool.name))
    cores, mem_mib = _host_of(request, fit, config)
    why = _too_large(request, cores, mem_mib, fit.room.partition) if fit.room.moved else None
    if why or access.limits is None:
        return Rejected(str(fit.gres), why) if why else fit
    wanted = {"node": 1, f"gres/{fit.gres.name}": fit.gres.quantity}
    wanted |= {"cpu": cores} if cores else {}
    wanted |= {"mem": mem_mib} if mem_mib else {}
    if fit.gres.type:
        wanted[f"gres/{fit.gres.name}:{fit.gres.type}"] = fit.gres.quantity
    if fit.time_limit_min is not None:
        wanted[MINUTES] = fit.time_limit_min
    partition = fit.room.partition
    broken = broken_limit(access.limits, wanted, request.account, request.qos, partition.name, partition.qos)
    if not broken and fit.gres.name != "gpu":
        share = f"gres/{fit.gres.name}"
        broken = limit_passed_by(access.limits, share, request.account, request.qos, partition.name, partition.qos)
    return Rejected(str(fit.gres), broken) if broken else fit


def _too_large(request: JobRequest, cores: int, mem_mib: int | None, partition: Partition) -> Reason | None:
    """Return the restriction on cores or host memory for which Slurm would never start a job in a partition."""
    for text in partition.restrictions:
        key, _, most = text.partition("=")
        # Slurm gives whole cores: of two threads each, one more than an odd number.
        if key.startswith("MaxCPUs") and (request.cores_unclear or max(cores, 1) + cores % 2 > int(most)):
            return because("partition-cores", partition=partition.name, restriction=text)
        # Of a job that names no memory Slurm takes the bound for all that it needs.
        if key.startswith("MaxMem") and (mem_mib or math.inf) > int(most) * (cores if key == "MaxMemPerCPU" else 1):
            return because("partition-memory", partition=partition.name, restriction=text)
    return None


def _mig(request: JobRequest, need: Need, rooms: list[Room], config: SiteConfig) -> Iterator[Fit | Rejected]:
    need, bound = need._replace(memory_mib=math.ceil(need.memory_mib / need.part_usable)), config.sharing.max_slowdown
    # Slurm knows slices by type only: of two kinds with one type it may give either, so the lesser one counts.
    kinds: dict[tuple[bool, str], list[tuple[MigSlice, Room]]] = {}
    for room in rooms:
        for part in room.pool.slice:
            if part.quantity:
                kinds.setdefault((room.moved, part.type), []).append((part, room))
    lesser = [min(alike, key=lambda pair: (pair[0].mem_mib, pair[0].sm_count)) for alike in kinds.values()]
    # Of two alike, the one in the job's own partition: sorted() keeps the order of rooms.
    for part, room in sorted(lesser, key=lambda pair: (pair[0].mem_mib, pair[0].sm_count)):
        alike = kinds[room.moved, part.type]
        slowest, its_room = min(alike, key=lambda pair: pair[0].sm_count / (pair[1].pool.sm_count or 1))
        whole_over_own = (its_room.pool.sm_count or math.inf) / slowest.sm_count
        slowdown = on_slice(need.sm_active_pct, whole_over_own, need.busy_pct)
        most = Most(part.mem_mib, most_on_slice(bound, whole_over_own))
        time = time_needed(request, need.run_time_min, slowdown.upper, room.partition if room.moved else None, config)
        kept = _kept_with_slice(request, need, part, room, config)
        why = time.too_little or kept.impossible
        if request.no_slice:
            why = request.no_slice[0]
        elif (profile := parse_profile(part.profile)) and profile.shares_memory:
            why = because("slice-shares-memory", profile=part.profile)
        elif need.memory_mib > most.memory_mib:
            why = because("too-little-memory", mem_mib=part.mem_mib, need_mib=need.memory_mib)
        elif need.sm_active_pct > most.sm_active_pct and not (need.busy_pct and slowdown.upper <= bound):
            of = {"sms": slowest.sm_count, "of_sms": its_room.pool.sm_count}
            why = Reason("too-slow", {**of, **slowdown._asdict(), "bound": bound})
        gres = Gres("gpu", part.type, 1)
        if why is not None:
            yield Rejected(f"gpu:{part.type}", why)
        else:
            holds = because("slice-holds", profile=part.profile, need_mib=need.memory_mib, mem_mib=part.mem_mib)
            reasons = (holds, Reason("slowdown", slowdown._asdict()))
            yield Fit(room, gres, reasons, most, kept.cpu_option, kept.mem, time.limit_min, slowdown, kept.cpus)


def _kept_with_slice(request: JobRequest, need: Need, slice_: MigSlice, room: Room, config: SiteConfig) -> Kept:
    pool = room.pool
    of_memory = slice_.mem_mib / pool.gpu_mem_mib if pool.gpu_mem_mib else 0.0
    part = need.part(min(1.0, max(slice_.sm_count / (pool.sm_count or math.inf), of_memory)))
    if room.moved:
        return kept_when_moved(request, room.partition, part, pool, config)
    return kept_with_slice(request, part, pool, config)


def most_units(per_gpu: int) -> int:
    """Return how many shares of one GPU a job may have."""
    return math.floor(per_gpu * _LARGEST_SHARE)


def _shares(
    request: JobRequest, need: Need, rooms: list[Room], config: SiteConfig, name: str
) -> Iterator[Fit | Rejected]:
    """Yield a share in the job's own partitions and one in each other that is open to it.

    Slurm may take a share from any GPU that has some, so it must be large enough on each: the largest is asked for.
    """
    no_daemon = because("no-mps-daemon") if name == "mps" and config.sharing.mps_daemon == "none" else None
    groups: dict[str, list[Room]] = {}
    for room in rooms:
        if shares_per_gpu(room.pool, name):
            groups.setdefault(room.partition.name if room.moved else "", []).append(room)
    for group in groups.values():
        refused: list[Rejected] = []
        fits: list[Fit] = []
        for room in group:
            found = no_daemon or _share(request, need, room, [each.pool for each in group], config, name)
            if isinstance(found, Reason):
                refused.append(Rejected(f"{name} on {room.pool.name}", found))
            else:
                fits.append(found)
        yield from refused
        if not refused:
            yield max(fits, key=lambda fit: fit.gres.quantity)


def _partitions_of(request: JobRequest, room: Room, config: SiteConfig) -> list[Partition]:
    return [room.partition] if room.moved else asked_partitions(request, config)


def _most_of_all(units: int, pools: list[Pool], name: str, config: SiteConfig, *, in_turns: bool) -> Most:
    """Return what so many shares hold on whichever of these pools; there is a largest share."""
    sizes = [(pool.gpu_mem_mib or 0, shares_per_gpu(pool, name)) for pool in pools]
    held = [(mem_mib, most_of_whole(min(units, most_units(per_gpu)), per_gpu)) for mem_mib, per_gpu in sizes]
    return Most(
        min(math.floor(mem_mib * part) for mem_mib, part in held),
        most_in_part(min(part for _, part in held), config.sharing.max_slowdown, in_turns=in_turns),
    )


def shares_per_gpu(pool: Pool, name: str) -> int:
    """Return into how many shares of this name (mps, shard) each GPU of the pool is divided; 0: none."""
    return pool.mps_per_gpu if name == "mps" else pool.shards_per_gpu


def _share(
    request: JobRequest, need: Need, room: Room, pools: list[Pool], config: SiteConfig, name: str
) -> Fit | Reason:
    """Fit a job into equal shares of one GPU, by memory and by SMs, whichever asks for more; or say why it does not.

    It may be one of any of these ``pools``.
    """
    pool, per_gpu, moved_to = room.pool, shares_per_gpu(room.pool, name), room.partition if room.moved else None
    partitions = _partitions_of(request, room, config)
    # It may have neighbours under other daemons than its own.
    turns = name == "mps" and any(item.mps_users == "each" for item in partitions)
    if barred := (*request.no_share, *(request.no_mps if name == "mps" else ())):
        return barred[0]
    if not request.interpreter:
        return because("wrap-may-call-srun")
    if not request.sh_like:
        return because("interpreter-not-sh", interpreter=request.interpreter)
    if unfit := suspending(partitions) or (without_mps(partitions) if name == "mps" else None):
        return unfit
    if pool.gpu_mem_mib is None:
        return because("site-lacks", key="gpu_mem_mib", pool=pool.name)
    if need.part_taken:  # of the whole GPU, whatever its share
        taken_mib = math.ceil(need.part_taken * pool.gpu_mem_mib) + config.sharing.headroom_mib
        need = need._replace(memory_mib=max(need.memory_mib, taken_mib))
    if need.memory_mib > pool.gpu_mem_mib:
        return because("too-little-memory", mem_mib=pool.gpu_mem_mib, need_mib=need.memory_mib)
    bound = config.sharing.max_slowdown
    parts = [part_needed(need.sm_active_pct, bound, need.busy_pct, in_turns=each) for each in (turns, False)]
    slowdown = on_share(need.sm_active_pct, bound, need.busy_pct, in_turns=turns)
    if parts[0] > _LARGEST_SHARE:
        code = "too-busy-beside-users" if turns else "too-busy-to-share"
        return Reason(code, {"sm_pct": need.sm_active_pct, "bound": bound})
    of_memory = need.memory_mib / pool.gpu_mem_mib
    units, of_one_daemon = (demand_units(max(of_memory, part), per_gpu) for part in parts)
    kept = kept_with_share(request, moved_to, need.part(units / per_gpu), pool, config)
    time = time_needed(request, need.run_time_min, slowdown.upper, moved_to, config)
    if why := kept.impossible or time.too_little:
        return why
    if units > most_units(per_gpu):
        return because("no-room-beside", units=units, of_units=per_gpu)
    holds = {"units": units, "of_units": per_gpu, "need_mib": need.memory_mib, "sm_pct": need.sm_active_pct}
    slower = Reason("slowdown", slowdown._asdict()) if name == "mps" else because("slowdown-unknown")
    if turns:
        slower = because("slowdown-beside-users", upper=slowdown.upper, turns=units - of_one_daemon)
    return Fit(
        room,
        Gres(name, "", units),
        (Reason("shares-hold" if name == "mps" else "shards-hold", holds), slower),
        _most_of_all(units, pools, name, config, in_turns=turns),
        kept.cpu_option,
        kept.mem,
        time.limit_min,
        slowdown,
        kept.cpus,
    )


def _host_of(request: JobRequest, fit: Fit, config: SiteConfig) -> tuple[int, int | None]:
    """Return the cores of a job on a piece (0 where that is not known), and its host memory."""
    cpus = max(fit.cpus, request.cpus_asked or 0, request.cpus_per_gpu or 0, request.tasks or 0, request.min_cpus)
    return cpus, mem_mib_of(request, _partitions_of(request, fit.room, config), fit.mem, cpus, config)


def host_limit(request: JobRequest, fit: Fit, config: SiteConfig) -> Reason | None:
    """Return which of cores and host memory keeps jobs like this one off pieces that are free; None for neither."""
    pool = fit.room.pool
    cpus, mem_mib = _host_of(request, fit, config)
    if fit.gres.name == "gpu":
        pieces = sum(part.quantity for part in pool.slice if part.type == fit.gres.type)
    else:
        pieces = shares_per_gpu(pool, fit.gres.name) // fit.gres.quantity * pool.gpus_per_node
    by_cores = pool.cpus_per_node // cpus if cpus and pool.cpus_per_node else pieces
    by_memory = pool.mem_per_node_mib // mem_mib if mem_mib and pool.mem_per_node_mib else pieces
    if by_cores <= min(by_memory, pieces - 1):
        return because("cores-limit", jobs=by_cores, cores_each=cpus, pieces=pieces)
    if by_memory < pieces:
        return because("host-memory-limit", jobs=by_memory, each_mib=mem_mib, pieces=pieces)
    return None


def offers(pool: Pool, gres: Gres) -> bool:
    """Return whether the pool has such a slice, or shares of this name."""
    if gres.name == "gpu":
        return any(part.type == gres.type and part.quantity for part in pool.slice)
    return shares_per_gpu(pool, gres.name) > 0


_Mode = Callable[[JobRequest, Need, list[Room], SiteConfig], Iterator[Fit | Rejected]]
_MODES: dict[str, _Mode] = {"mig": _mig, **{name: partial(_shares, name=name) for name in ("mps", "shard")}}

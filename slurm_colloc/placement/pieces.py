# SPDX-License-Identifier: Apache-2.0
"""Lists the pieces of a GPU that fit a job, and the reason for each piece that does not."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from slurm_colloc.core.config import MigSlice, Partition, Pool, SiteConfig
from slurm_colloc.core.model import Gres, JobRequest, Reason, Rejected, because
from slurm_colloc.core.units import demand_units, most_of_whole
from slurm_colloc.gpu.mig import parse_profile
from slurm_colloc.placement.candidate import Candidate, Target, other_card, suspending
from slurm_colloc.placement.speed import Slowdown, most_in_part, most_on_slice, on_share, on_slice, part_needed
from slurm_colloc.placement.time_and_cores import (
    Host,
    host_when_moved,
    host_with_share,
    host_with_slice,
    mem_mib_of,
    time_needed,
)
from slurm_colloc.slurm.free_gpus import kind_of
from slurm_colloc.slurm.limits import MINUTES, broken_limit, limit_passed_by

# A larger share leaves less beside it than the smallest slice, which is of no use to anybody.
_LARGEST_SHARE = 7 / 8


class Most(NamedTuple):
    """The largest need that a piece holds: memory with the site's headroom, SM activity in percent of a whole GPU."""

    memory_mib: int
    sm_active_pct: float


class Fit(NamedTuple):
    """A piece that would do, what has to be asked for beside it, and all that was refused before it.

    ``host_limit`` says which of cores and host memory keeps jobs like this one off pieces that are free, if one does.
    """

    target: Target
    gres: Gres
    reasons: tuple[Reason, ...]
    most: Most
    host: Host
    time_limit_min: int | None
    slowdown: Slowdown
    rejected: tuple[Rejected, ...] = ()
    host_limit: tuple[Reason, ...] = ()


def targets_of(job: Candidate, rejected: list[Rejected]) -> Iterator[Target]:
    """Yield the pools that the job may run in and that its need speaks of, those of its own partitions first."""
    moves = []
    for pool in job.config.pool:
        partition = next((one for one in (*job.partitions, *job.more) if one.name in pool.partitions), None)
        if not partition:
            rejected.append(Rejected(f"pool {pool.name}", because("not-in-partition", partitions=job.names)))
            continue
        moved = partition in job.more
        target = Target(pool, partition, moved, (partition,) if moved else job.partitions)
        if reason := _barred(job, target):
            rejected.append(Rejected(f"pool {pool.name}", reason))
        elif target.moved:
            moves.append(target)
        else:
            yield target
    yield from moves


def _barred(job: Candidate, target: Target) -> Reason | None:
    """Return why a job may not run in a pool, or nothing is known of its need there; None where it may."""
    pool, partition = target.pool, target.partition
    gpu_type = job.gpu_type
    models = {pool.gpu_model for pool in job.config.pool if gpu_type and pool.gpu_type == gpu_type}
    if restriction := shut_by(partition.restrictions):
        return because("partition-shut", partition=partition.name, restriction=restriction)
    if pool.gpu_type in job.config.sharing.protected_types:
        return because("protected", gpu_type=pool.gpu_type)
    if gpu_type and pool.gpu_type != gpu_type and pool.gpu_model not in models - {""}:
        return because("other-gpu-type", gpu_type=gpu_type)
    if reason := keeps_out(pool, job.request) or other_card(job.footprint.gpu_model, pool):
        return reason
    if pool.sm_count is None:
        return because("site-lacks", key="sm_count", pool=pool.name)
    return _closed(job, partition) if target.moved else None


def keeps_out(pool: Pool, request: JobRequest) -> Reason | None:
    """Return why a job may not run on the nodes of a pool by its own words on nodes; None where it may."""
    if lacking := [name for name in request.features if set(name.split("|")).isdisjoint(pool.features)]:
        return because("pool-lacks-feature", feature=lacking[0])
    if request.excluded:
        # 20 ms, and of such jobs alone.
        from slurm_colloc.slurm.hostlist import expand

        if set(expand(pool.nodes)) <= set(request.excluded):
            return because("pool-excluded")
    return None


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


def _closed(job: Candidate, partition: Partition) -> Reason | None:
    """Return why Slurm would not let the job into another partition, None when it would."""
    limits, limit_min = job.access.limits, job.limit_min
    account = job.request.account or (limits.default_account if limits else "")
    for kind, name, keys in (("account", account, "Accounts"), ("QOS", job.request.qos, "Qos")):
        allowed, denied = partition.restriction(f"Allow{keys}"), partition.restriction(f"Deny{keys}")
        if not name and (allowed or denied):
            return because("partition-access-unknown", partition=partition.name, what=kind)
        if (allowed and name.lower() not in map(str.lower, allowed)) or name.lower() in map(str.lower, denied):
            return because("partition-closed", partition=partition.name, what=kind, name=name)
    groups = partition.restriction("AllowGroups")
    if groups and not set(groups) & set(job.access.groups):
        return because("partition-groups", partition=partition.name, groups=groups)
    if partition.max_time_min is not None and (limit_min is None or limit_min > partition.max_time_min):
        return because("partition-time", partition=partition.name, max_min=partition.max_time_min)
    return None


def pieces_in(job: Candidate, targets: list[Target], rejected: list[Rejected]) -> Iterator[Fit]:
    """Yield the pieces that fit, in the order in which they are taken; ``rejected`` grows by those that do not."""
    request = job.request
    words = request.cpus_asked, request.cpus_per_gpu, request.tasks, request.min_cpus
    for mode in job.config.sharing.order:
        for fit in _MODES[mode](job, targets):
            if isinstance(fit, Rejected):
                rejected.append(fit)
                continue
            # As many as the job asks for by any of its words; 0 of a number that is not known.
            cores = max(fit.host.cpus, *(number or 0 for number in words))
            mem_mib = mem_mib_of(job, fit.target, fit.host.mem, cores)
            if reason := _refused_by_slurm(job, fit, targets, cores, mem_mib):
                rejected.append(Rejected(str(fit.gres), reason))
            else:
                yield fit._replace(rejected=tuple(rejected), host_limit=tuple(_host_limit(fit, cores, mem_mib)))


def _refused_by_slurm(
    job: Candidate, fit: Fit, targets: list[Target], cores: int, mem_mib: int | None
) -> Reason | None:
    """Return why Slurm would refuse the fit or might take it elsewhere than meant; None where neither is so."""
    partition, gres, limits = fit.target.partition, fit.gres, job.access.limits
    names = {item.name for item in fit.target.partitions}
    weighed = {target.pool.name for target in targets if target.moved == fit.target.moved}
    for pool in job.config.pool:
        if pool.name not in weighed and names & set(pool.partitions) and offers(pool, gres):
            return because("may-land-elsewhere", pool=pool.name)
    if fit.target.moved and (reason := _too_large(job.request, cores, mem_mib, partition)):
        return reason
    if limits is None:
        return None
    pieces = {f"gres/{name}": gres.quantity for name in (gres.name, kind_of(gres))}
    amounts = {"node": 1, "cpu": cores, "mem": mem_mib, MINUTES: fit.time_limit_min, **pieces}
    tres = {name: amount for name, amount in amounts.items() if amount}
    whose = job.request.account, job.request.qos, partition.name, partition.qos
    broken = broken_limit(limits, tres, *whose)
    return broken if broken or gres.name == "gpu" else limit_passed_by(limits, f"gres/{gres.name}", *whose)


def _too_large(request: JobRequest, cores: int, mem_mib: int | None, partition: Partition) -> Reason | None:
    """Return the restriction on cores or host memory for which Slurm would never start a job in a partition."""
    for text in partition.restrictions:
        key, _, most = text.partition("=")
        # Slurm gives whole cores: with two threads each, one more than an odd number.
        if key.startswith("MaxCPUs") and (request.cores_unclear or max(cores, 1) + cores % 2 > int(most)):
            return because("partition-cores", partition=partition.name, restriction=text)
        # A job that names no memory needs all of the bound to Slurm.
        if key.startswith("MaxMem") and (mem_mib or math.inf) > int(most) * (cores if key == "MaxMemPerCPU" else 1):
            return because("partition-memory", partition=partition.name, restriction=text)
    return None


def _slices(job: Candidate, targets: list[Target]) -> Iterator[Fit | Rejected]:
    bound, need_mib = job.config.sharing.max_slowdown, math.ceil(job.memory_mib / job.footprint.part_usable)
    # Slurm knows slices by type only: it may give either of two kinds with one type, so the lesser one counts.
    kinds: dict[tuple[bool, str], list[tuple[MigSlice, Target]]] = {}
    for target in targets:
        for part in target.pool.slice:
            if part.quantity:
                kinds.setdefault((target.moved, part.type), []).append((part, target))
    lesser = [min(alike, key=lambda pair: (pair[0].mem_mib, pair[0].sm_count)) for alike in kinds.values()]
    # The one in the job's own partition comes first of two alike: sorted() keeps the order of targets.
    for part, target in sorted(lesser, key=lambda pair: (pair[0].mem_mib, pair[0].sm_count)):
        alike = kinds[target.moved, part.type]
        slowest, its_target = min(alike, key=lambda pair: pair[0].sm_count / (pair[1].pool.sm_count or 1))
        whole_over_own = (its_target.pool.sm_count or math.inf) / slowest.sm_count
        slowdown = on_slice(job.sm_active_pct, whole_over_own, job.busy_pct)
        slower = {**slowdown._asdict(), "bound": bound}
        most = Most(part.mem_mib, most_on_slice(bound, whole_over_own))
        time, host = time_needed(job, slowdown.upper, target), _host_with_slice(job, part, target)
        reason = time.too_little or host.impossible
        if job.request.no_slice:
            reason = job.request.no_slice[0]
        elif (profile := parse_profile(part.profile)) and profile.shares_memory:
            reason = because("slice-shares-memory", profile=part.profile)
        elif need_mib > most.memory_mib:
            reason = because("too-little-memory", mem_mib=part.mem_mib, need_mib=need_mib)
        elif job.sm_active_pct > most.sm_active_pct and not (job.busy_pct and slowdown.upper <= bound):
            reason = Reason("too-slow", {"sms": slowest.sm_count, "of_sms": its_target.pool.sm_count, **slower})
        if reason:
            yield Rejected(f"gpu:{part.type}", reason)
        else:
            holds = because("slice-holds", profile=part.profile, need_mib=need_mib, mem_mib=part.mem_mib)
            told = holds, Reason("slowdown", slower)
            yield Fit(target, Gres("gpu", part.type, 1), told, most, host, time.limit_min, slowdown)


def _host_with_slice(job: Candidate, part: MigSlice, target: Target) -> Host:
    pool = target.pool
    of_memory = part.mem_mib / pool.gpu_mem_mib if pool.gpu_mem_mib else 0.0
    of_gpu = min(1.0, max(part.sm_count / (pool.sm_count or math.inf), of_memory))
    if target.moved:
        return host_when_moved(job, target, of_gpu)
    return host_with_slice(job, target, of_gpu)


def most_units(per_gpu: int) -> int:
    """Return how many shares of one GPU a job may have."""
    return math.floor(per_gpu * _LARGEST_SHARE)


def _shares(job: Candidate, targets: list[Target], name: str) -> Iterator[Fit | Rejected]:
    """Yield a share in the job's own partitions and one in each other that is open to it.

    Slurm may take a share from any GPU that has some, so it must be large enough on each: the largest is asked for.
    """
    no_daemon = because("no-mps-daemon") if name == "mps" and job.config.sharing.mps_daemon == "none" else None
    groups: dict[str, list[Target]] = {}
    for target in targets:
        if shares_per_gpu(target.pool, name):
            groups.setdefault(target.named, []).append(target)
    for group in groups.values():
        refused: list[Rejected] = []
        fits: list[Fit] = []
        for target in group:
            fit = no_daemon or _share(job, target, [alike.pool for alike in group], name)
            if isinstance(fit, Reason):
                refused.append(Rejected(f"{name} on {target.pool.name}", fit))
            else:
                fits.append(fit)
        yield from refused
        if not refused:
            yield max(fits, key=lambda fit: fit.gres.quantity)


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


def _share(job: Candidate, target: Target, pools: list[Pool], name: str) -> Fit | Reason:
    """Fit a job into equal shares of one GPU, by memory and by SMs, whichever asks for more; or say why it does not.

    Slurm may take it from any of these ``pools``.
    """
    request, config, pool, part_taken = job.request, job.config, target.pool, job.footprint.part_taken
    per_gpu, is_mps, partitions = shares_per_gpu(pool, name), name == "mps", target.partitions
    # Its neighbours may be under other daemons than its own.
    turns = is_mps and any(partition.mps_users == "each" for partition in partitions)
    if barred := (*request.no_share, *(request.no_mps if is_mps else ())):
        return barred[0]
    if not request.interpreter:
        return because("wrap-may-call-srun")
    if not request.sh_like:
        return because("interpreter-not-sh", interpreter=request.interpreter)
    if reason := suspending(partitions):
        return reason
    if lacking := [partition.name for partition in partitions if is_mps and not partition.mps_users]:
        return because("partition-lacks-mps-users", partition=lacking[0])
    mem_mib = pool.gpu_mem_mib
    if mem_mib is None:
        return because("site-lacks", key="gpu_mem_mib", pool=pool.name)
    need_mib = job.memory_mib
    if part_taken:  # it is of the whole GPU, whatever the job's share
        need_mib = max(need_mib, math.ceil(part_taken * mem_mib) + config.sharing.headroom_mib)
    if need_mib > mem_mib:
        return because("too-little-memory", mem_mib=mem_mib, need_mib=need_mib)
    bound = config.sharing.max_slowdown
    parts = [part_needed(job.sm_active_pct, bound, job.busy_pct, in_turns=in_turns) for in_turns in (turns, False)]
    slowdown = on_share(job.sm_active_pct, bound, job.busy_pct, in_turns=turns)
    if parts[0] > _LARGEST_SHARE:
        code = "too-busy-beside-users" if turns else "too-busy-to-share"
        return because(code, sm_pct=job.sm_active_pct, bound=bound)
    units, of_one_daemon = (demand_units(max(need_mib / mem_mib, part), per_gpu) for part in parts)
    host = host_with_share(job, target, units / per_gpu)
    time = time_needed(job, slowdown.upper, target)
    if reason := host.impossible or time.too_little:
        return reason
    if units > most_units(per_gpu):
        return because("no-room-beside", units=units, of_units=per_gpu)
    holds = because(
        "shares-hold" if is_mps else "shards-hold",
        units=units,
        of_units=per_gpu,
        need_mib=need_mib,
        mem_mib=mem_mib,
        sm_pct=job.sm_active_pct,
    )
    slower = Reason("slowdown", {**slowdown._asdict(), "bound": bound}) if is_mps else because("slowdown-unknown")
    if turns:
        slower = because("slowdown-beside-users", upper=slowdown.upper, turns=units - of_one_daemon)
    most = _most_of_all(units, pools, name, config, in_turns=turns)
    return Fit(target, Gres(name, "", units), (holds, slower), most, host, time.limit_min, slowdown)


def _host_limit(fit: Fit, cores: int, mem_mib: int | None) -> Iterator[Reason]:
    pool = fit.target.pool
    if fit.gres.name == "gpu":
        pieces = sum(part.quantity for part in pool.slice if part.type == fit.gres.type)
    else:
        pieces = shares_per_gpu(pool, fit.gres.name) // fit.gres.quantity * pool.gpus_per_node
    by_cores = pool.cpus_per_node // cores if cores and pool.cpus_per_node else pieces
    by_memory = pool.mem_per_node_mib // mem_mib if mem_mib and pool.mem_per_node_mib else pieces
    if by_cores <= min(by_memory, pieces - 1):
        yield because("cores-limit", jobs=by_cores, cores_each=cores, pieces=pieces)
    elif by_memory < pieces:
        yield because("host-memory-limit", jobs=by_memory, each_mib=mem_mib, pieces=pieces)


def offers(pool: Pool, gres: Gres) -> bool:
    """Return whether the pool has such a slice, or shares of this name."""
    if gres.name == "gpu":
        return any(part.type == gres.type and part.quantity for part in pool.slice)
    return shares_per_gpu(pool, gres.name) > 0


_Mode = Callable[[Candidate, list[Target]], Iterator[Fit | Rejected]]
_MODES: dict[str, _Mode] = {"mig": _slices, **{name: partial(_shares, name=name) for name in ("mps", "shard")}}

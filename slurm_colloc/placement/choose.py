# SPDX-License-Identifier: Apache-2.0
"""Chooses the piece of a GPU that a job gets: a pure function of request, footprint and site.

A piece must hold the q99 of memory plus the site's headroom, and its SMs must not slow the job beyond the site's
bound (placement/speed.py). What is not known is a reason to submit as asked.
"""

import math

from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.model import (
    Footprint,
    Gres,
    JobRequest,
    Placement,
    Reason,
    Rejected,
    SharingMode,
    Weighed,
    because,
)
from slurm_colloc.placement.free_now import FreeNow, Option, at_once, choose, free_in_words, weigh
from slurm_colloc.placement.pieces import Access, Fit, Need, Taken, host_limit, pieces_in, rooms_of
from slurm_colloc.placement.time_and_cores import asked_limit_min, asked_partitions
from slurm_colloc.slurm.free_gpus import Free, kind_of

_ANYTHING = Access()
# Why a job gets no share, whatever it needs.
_OF_THE_JOB = ("wrap-may-call-srun", "interpreter-not-sh")


def place(
    request: JobRequest,
    footprint: Footprint,
    config: SiteConfig,
    access: Access = _ANYTHING,
    free_now: FreeNow | None = None,
) -> Placement:
    """Return the placement of one job, with every option that was weighed and why it was not taken.

    Without ``free_now`` the job gets the first piece that fits, by the site's order and the smallest slice first. With
    it, the job gets another piece or a whole GPU where that is free and the first piece is not (placement/free_now.py).
    """
    reasons = reasons_to_leave(request, footprint, config, access)
    if reasons or footprint.gpu_mem_peak_mib is None or footprint.sm_active_pct is None:
        return as_asked(reasons)
    need = Need(
        math.ceil(footprint.gpu_mem_peak_mib.q99) + config.sharing.headroom_mib,
        footprint.sm_active_pct.q95,
        footprint.run_time_s.q99 / 60 if footprint.run_time_s else None,
        footprint.cpu_cores,
        footprint.host_mem_mib,
        footprint.part_taken,
        footprint.part_usable,
        # No SM is active without a kernel, whatever two counters say.
        max(footprint.busy_pct.q95, footprint.sm_active_pct.q95) if footprint.busy_pct else None,
    )
    rejected: list[Rejected] = []
    rooms = list(rooms_of(request, footprint, config, access, rejected))
    before = len(rejected)
    pieces = pieces_in(request, need, rooms, config, access, rejected)
    first = next(pieces, None)
    if first is not None:
        if free_now is None:
            return _placed(first, need, request, config)
        return _weighed([first, *pieces], request, need, config, free_now)
    names = tuple(dict.fromkeys(room.partition.name for room in rooms))
    why: tuple[Reason, ...] = (because("no-pieces", partitions=names),)
    if not rooms:
        why = tuple({str(item.reason): item.reason for item in rejected}.values()) or (because("site-has-no-gpus"),)
    elif len(rejected) > before:
        left = [item.reason for item in rejected[before:]]
        own = [reason for reason in left if reason.code in _OF_THE_JOB][:1]
        for barred in (request.no_slice, request.no_mps, request.no_share):
            own += barred if any(reason in barred for reason in left) else ()
        nothing = because("nothing-holds", need_mib=need.memory_mib, sm_pct=need.sm_active_pct, partitions=names)
        # What the job needs is beside the point where no piece was refused for that.
        why = tuple(own) if all(reason in own for reason in left) else (nothing, *own)
    return as_asked(why, tuple(rejected))


def as_asked(reasons: tuple[Reason, ...], rejected: tuple[Rejected, ...] = ()) -> Placement:
    """Return the placement of a job that keeps its request."""
    return Placement(SharingMode.EXCLUSIVE, None, None, None, "", "", "", None, reasons, rejected)


def _weighed(pieces: list[Taken], request: JobRequest, need: Need, config: SiteConfig, free_now: FreeNow) -> Placement:
    """Return the placement on the piece that what is free speaks for, or on a whole GPU."""
    asked = tuple(item.name for item in asked_partitions(request, config))
    options = [_option(fit, asked) for _, fit, _ in pieces]
    whole_kind = _whole_kind(request, asked, config)
    tasks = request.array_at_once
    if tasks > 1 and request.names_no_type:
        # Its tasks may have all slices beside all GPUs, and the piece is one kind of them.
        whole_kind = whole_kind or "gpu"
    if whole_kind:
        options.append(Option("as asked", whole_kind, asked, 1, 1.0))
    if tasks > 1:
        options = [one._replace(at_once=at_once(one, config)) for one in options]
    count = len(pieces)
    free: Free | Reason | None = None
    found = [weigh(option, None, tasks) for option in options]
    if free_now.wanted or (len(options) > 1 and found[0].rounds == 1):
        free = free_now.ask()
        if isinstance(free, Free):
            found = [weigh(option, free, tasks) for option in options]
    whole = found[-1] if whole_kind else None
    number = choose(found[:count], whole)
    shown = tuple(found) if any(one.free_now is not None for one in found) else ()
    first = pieces[0]
    if number is None and whole is not None:
        left, said = _why_other(whole, found[0])
        return as_asked(said, (*first.rejected, Rejected(str(first.fit.gres), left)))._replace(weighed=shown)
    taken = pieces[number or 0]
    placement = _placed(taken, need, request, config)
    if taken is not first:
        left, said = _why_other(found[number or 0], found[0])
        placement = placement._replace(rejected=(*placement.rejected, Rejected(str(first.fit.gres), left)))
    else:
        said = tuple(filter(None, map(free_in_words, (found[0], *([whole] if whole else [])))))
        said = said if len(said) == (2 if whole else 1) else ()
    if isinstance(free, Reason) and free_now.wanted:
        said = (*said, free)
    return placement._replace(reasons=(*placement.reasons, *said), weighed=shown)


def _option(fit: Fit, asked: tuple[str, ...]) -> Option:
    partitions = (fit.room.partition.name,) if fit.room.moved else asked
    return Option(str(fit.gres), kind_of(fit.gres), partitions, fit.gres.quantity, fit.slowdown.expected)


def _why_other(taken: Weighed, left: Weighed) -> tuple[Reason, tuple[Reason, ...]]:
    """Return why one option was left for another, and all that is known of the two."""
    said = tuple(filter(None, map(free_in_words, (taken, left))))
    if left.rounds > 1:
        few = because(
            "array-rounds", option=left.option, rounds=left.rounds, other=taken.option, other_rounds=taken.rounds
        )
        return few, (few, *said)
    return said[0], said


def _whole_kind(request: JobRequest, asked: tuple[str, ...], config: SiteConfig) -> str:
    """Return the kind of gres of a whole GPU that the job gets as asked; empty where it may get something else."""
    wanted = next((gres.type for gres in request.gres if gres.name == "gpu"), "")
    pools = [pool for pool in config.pool if set(asked) & set(pool.partitions)]
    # Asked for by no type it may land on any slice, whose wait and room are others'.
    if not wanted and any(part.quantity for pool in pools for part in pool.slice):
        return ""
    types = {pool.gpu_type for pool in pools if pool.gpus_per_node and wanted in ("", pool.gpu_type)}
    return kind_of(Gres("gpu", types.pop(), 1)) if len(types) == 1 else ""


def _placed(taken: Taken, need: Need, request: JobRequest, config: SiteConfig) -> Placement:
    mode, fit, rejected = taken
    reasons = list(fit.reasons)
    foretold = mode != SharingMode.SHARD  # what the neighbours of a shard slow it by nobody bounds
    if fit.time_limit_min is not None:
        asked_min = asked_limit_min(request, config) or 0.0  # in another partition it may be kept as it is
        code = "time-limit-raised" if fit.time_limit_min > asked_min else "time-limit"
        reasons.append(because(code, asked_min=asked_min, limit_min=fit.time_limit_min))
    reasons += _billed(request, fit, config)
    if fit.room.moved:
        reasons.append(because("moved", partition=fit.room.partition.name))
    options = [f"--{fit.cpu_option}" * bool(fit.cpu_option), f"--mem={fit.mem}" * bool(fit.mem)]
    if any(options):
        reasons.append(because("host-part", options=" ".join(filter(None, options))))
    if limit := host_limit(request, fit, config):
        reasons.append(limit)
    return Placement(
        mode=mode,
        gres=fit.gres,
        # All of its share, where its program takes a part of the GPU: it counts from the whole of it.
        memory_mib=fit.most.memory_mib if need.part_taken and fit.gres.name != "gpu" else need.memory_mib,
        headroom_mib=config.sharing.headroom_mib,
        partition=fit.room.partition.name if fit.room.moved else "",
        cpu_option=fit.cpu_option,
        mem=fit.mem,
        time_limit_min=fit.time_limit_min,
        reasons=tuple(reasons),
        rejected=rejected,
        slowdown_expected=fit.slowdown.expected if foretold else None,
        slowdown_upper=fit.slowdown.upper if foretold else None,
    )


def _billed(request: JobRequest, fit: Fit, config: SiteConfig) -> tuple[Reason, ...]:
    """Return what the GPU and the piece count in billing, as a reason; none where that is not known, or nothing."""
    asked = asked_partitions(request, config)
    weights = {item.billing_weights for item in (*asked, fit.room.partition)}
    whole = _whole_kind(request, tuple(item.name for item in asked), config)
    if len(weights) > 1 or weights == {""}:
        return ()
    from slurm_colloc.slurm.setup import parse_weights  # of no use to a site that does not bill

    prices = parse_weights(weights.pop())
    if not whole and any(name.startswith("gres/gpu:") for name in prices):
        return ()
    before, after = (
        count * sum(prices.get(f"gres/{name}".lower(), 0.0) for name in {kind.partition(":")[0], kind})
        for kind, count in ((whole or "gpu", request.gpu_count), (kind_of(fit.gres), fit.gres.quantity))
    )
    return (because("billed", before=before, after=after),) if before or after else ()


def reasons_to_leave(
    request: JobRequest, footprint: Footprint, config: SiteConfig, access: Access = _ANYTHING
) -> tuple[Reason, ...]:
    """Return why a job keeps its request, whatever pieces there are; empty where it need not."""
    if request.untouchable:
        return request.untouchable
    protected = [gres.type for gres in request.gres if gres.type in config.sharing.protected_types]
    if protected:
        return (because("protected", gpu_type=protected[0]),)
    if footprint.gpu_mem_peak_mib is None:
        return footprint.provenance
    if footprint.sm_active_pct is None:
        return (because("sm-unknown"),)
    if footprint.keep_whole:
        return (footprint.keep_whole,)
    if access.unknown:
        return (access.unknown,)
    return ()

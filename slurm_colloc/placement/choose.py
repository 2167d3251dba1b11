# SPDX-License-Identifier: Apache-2.0
"""Which piece of a GPU a job gets: a pure function of request, footprint and site.

A piece must hold the q99 of memory plus the site's headroom, and its SMs must not slow the job beyond the site's
bound (placement/speed.py). What is not known is a reason to submit as asked.
"""

import math

from slurm_colloc.config import SiteConfig
from slurm_colloc.model import Footprint, Gres, JobRequest, Placement, Rejected, SharingMode, Weighed
from slurm_colloc.placement.pieces import Access, Need, Taken, host_limit, pieces_in, rooms_of
from slurm_colloc.placement.terms import asked_partitions
from slurm_colloc.placement.waits import Option, Outlook, choose, free_matters, outlook_words, weigh
from slurm_colloc.slurm.free import kind_of
from slurm_colloc.units import in_words

_ANYTHING = Access()


def place(
    request: JobRequest,
    footprint: Footprint,
    config: SiteConfig,
    access: Access = _ANYTHING,
    outlook: Outlook | None = None,
) -> Placement:
    """Return the placement of one job, with every option that was weighed and why it was not taken.

    Without an ``outlook`` it gets the first piece that fits, by the site's order and the smallest slice first; with
    one, that is left for another or for a whole GPU where the job would end much sooner (placement/waits.py).
    """
    reasons = reasons_to_leave(request, footprint, config, access)
    if reasons or footprint.gpu_mem_peak_mib is None or footprint.sm_active_pct is None:
        return as_asked(reasons, ())
    run_time_min = footprint.run_time_s.q99 / 60 if footprint.run_time_s else None
    need = Need(
        math.ceil(footprint.gpu_mem_peak_mib.q99) + config.sharing.headroom_mib,
        footprint.sm_active_pct.q95,
        run_time_min,
        footprint.run_time_s.q50 if footprint.run_time_s else None,
        footprint.cpu_cores,
        footprint.host_mem_mib,
    )
    rejected: list[Rejected] = []
    rooms = list(rooms_of(request, footprint, config, access, rejected))
    before = len(rejected)
    pieces = pieces_in(request, need, rooms, config, access, rejected)
    first = next(pieces, None)
    if first is not None and outlook is None:
        return _placed(first, need, request, config)
    if first is not None and outlook is not None:
        return _weighed([first, *pieces], request, need, config, outlook)
    names = ", ".join(f"'{name}'" for name in dict.fromkeys(room.partition.name for room in rooms))
    held = f"{need.memory_mib} MiB and {need.sm_active_pct:.0f} % of the SMs"
    why = f"no piece of a GPU that it can have in partition {names} holds {held}"
    no_share = "; ".join(request.no_share)
    if any(item.reason == no_share for item in rejected[before:]):
        why += f"; no share is for it, since {no_share}"
    if not rooms:
        why = "; ".join(sorted({item.reason for item in rejected})) or "site.toml describes no GPUs"
    elif len(rejected) == before:
        why = f"no GPU in partition {names} has slices or shares that the site lets csub use"
    return as_asked((why,), tuple(rejected))


def as_asked(reasons: tuple[str, ...], rejected: tuple[Rejected, ...]) -> Placement:
    """Return the placement of a job that keeps its request."""
    return Placement(SharingMode.EXCLUSIVE, None, None, None, "", "", "", None, reasons, rejected)


def _weighed(pieces: list[Taken], request: JobRequest, need: Need, config: SiteConfig, outlook: Outlook) -> Placement:
    """Return the placement on the piece that the job's end speaks for, or on a whole GPU."""
    asked = tuple(item.name for item in asked_partitions(request, config))
    options = [
        Option(
            str(fit.gres),
            kind_of(fit.gres),
            (fit.room.partition.name,) if fit.room.moved else asked,
            fit.gres.quantity,
            fit.slowdown.expected,
        )
        for _, fit, _ in pieces
    ]
    whole_kind = _whole_kind(request, asked, config)
    if whole_kind:
        options.append(Option("as asked", whole_kind, asked, 1, 1.0))
    waits, factor = outlook.waits(), config.sharing.keep_piece_factor
    found = [weigh(option, need.expected_s, waits, None) for option in options]
    unasked = ""
    whole = found[-1] if whole_kind else None
    if outlook.wanted or free_matters(found[: len(pieces)], whole, factor):
        free = outlook.free()
        unasked = free if isinstance(free, str) else ""
        found = [weigh(option, need.expected_s, waits, None if isinstance(free, str) else free) for option in options]
        whole = found[-1] if whole_kind else None
    number = choose(found[: len(pieces)], whole, factor)
    shown = tuple(found) if any(one.free_now is not None or one.waited_runs for one in found) else ()
    first = pieces[0]
    if number is None and whole is not None:
        why = _sooner(whole, found[0], "whole GPU", first.fit.what)
        passed = Rejected(str(first.fit.gres), why)
        return as_asked((why,), (*first.rejected, passed))._replace(weighed=shown)
    taken = pieces[number or 0]
    placement = _placed(taken, need, request, config)
    said = [outlook_words(found[number or 0], taken.fit.what), outlook_words(whole, "whole GPU") if whole else ""]
    if taken is not first:
        why = _sooner(found[number or 0], found[0], taken.fit.what, first.fit.what)
        said = [why]
        placement = placement._replace(rejected=(*placement.rejected, Rejected(str(first.fit.gres), why)))
    elif not all(said):
        said = []
    if unasked and outlook.wanted:
        said.append(f"what is free now is not known: {unasked}")
    reasons = (*placement.reasons, *([", ".join(said)] if any(said) else []))
    return placement._replace(reasons=reasons, weighed=shown)


def _sooner(taken: Weighed, left: Weighed, name: str, other: str) -> str:
    """Return why one option was taken and another left."""
    said = ", ".join((outlook_words(taken, name), outlook_words(left, other)))
    if taken.turnaround_s is None or left.turnaround_s is None:
        return said
    ends, later = in_words(taken.turnaround_s), in_words(left.turnaround_s)
    return f"{said}: the job would end after {ends} instead of {later}"


def _whole_kind(request: JobRequest, asked: tuple[str, ...], config: SiteConfig) -> str:
    """Return the kind of gres of a whole GPU that the job gets as asked; empty where it may get something else."""
    wanted = next((gres.type for gres in request.gres if gres.name == "gpu"), "")
    pools = [pool for pool in config.pool if set(asked) & set(pool.partitions)]
    # Asked for by no type it may land on any slice, whose wait and room are others'.
    if not wanted and any(part.quantity for pool in pools for part in pool.slice):
        return ""
    types = {pool.gpu_type for pool in pools if pool.gpus_per_node and wanted in ("", pool.gpu_type)}
    return kind_of(Gres("gpu", types.pop(), 1)) if len(types) == 1 else ""


# Why cores and host memory are asked for, by sharing.part_of_host.
_WHY_HOST = {True: "its part of what comes with a GPU, or what it needs", False: "as it would have had"}


def _placed(taken: Taken, need: Need, request: JobRequest, config: SiteConfig) -> Placement:
    mode, fit, rejected = taken
    headroom, part_of_host = config.sharing.headroom_mib, config.sharing.part_of_host
    reasons = [fit.reason]
    foretold = mode != SharingMode.SHARD  # what the neighbours of a shard slow it by nobody bounds
    if fit.room.moved:
        reasons.append(f"in partition '{fit.room.partition.name}', where this site lets it go for a piece of a GPU")
    said = [f"--{fit.cpu_option}" if fit.cpu_option else "", f"--mem={fit.mem}" if fit.mem else ""]
    if any(said):
        reasons.append(f"{' '.join(filter(None, said))}: {_WHY_HOST[part_of_host]}")
    if limit := host_limit(request, fit, config):
        reasons.append(limit)
    return Placement(
        mode=mode,
        gres=fit.gres,
        memory_mib=need.memory_mib,
        headroom_mib=headroom,
        partition=fit.room.partition.name if fit.room.moved else "",
        cpu_option=fit.cpu_option,
        mem=fit.mem,
        time_limit_min=fit.time_limit_min,
        reasons=tuple(reasons),
        rejected=rejected,
        slowdown_expected=fit.slowdown.expected if foretold else None,
        slowdown_upper=fit.slowdown.upper if foretold else None,
    )


def reasons_to_leave(
    request: JobRequest, footprint: Footprint, config: SiteConfig, access: Access = _ANYTHING
) -> tuple[str, ...]:
    """Return why a job keeps its request, whatever pieces there are; empty where it need not."""
    if request.untouchable:
        return request.untouchable
    protected = [gres.type for gres in request.gres if gres.type in config.sharing.protected_types]
    if protected:
        return (f"the site protects jobs on '{protected[0]}'",)
    if footprint.gpu_mem_peak_mib is None:
        return (footprint.provenance,)
    if footprint.sm_active_pct is None:
        return (f"how busy the job keeps a GPU is not known ({footprint.provenance}); say sm=PERCENT",)
    if footprint.keep_whole:
        return (footprint.keep_whole,)
    if access.unknown:
        return (f"the limits of this user are not known: {access.unknown}",)
    return ()

# SPDX-License-Identifier: Apache-2.0
"""Chooses the piece of a GPU that a job gets: a pure function of request, footprint and site.

A piece must hold the q99 of memory plus the site's headroom, and its SMs must not slow the job beyond the site's
bound (placement/speed.py). A job of unknown need is submitted as asked.
"""

from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.model import (
    Footprint,
    JobRequest,
    Placement,
    Reason,
    Rejected,
    SharingMode,
    Weighed,
    because,
)
from slurm_colloc.placement.candidate import Access, Candidate, Target, candidate_of
from slurm_colloc.placement.free_now import FreeNow, Option, at_once, choose, free_in_words, weigh
from slurm_colloc.placement.out_of_memory import mode_of
from slurm_colloc.placement.pieces import Fit, pieces_in, targets_of
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

    The job gets the first piece that fits, by the site's order and the smallest slice first. With ``free_now`` it gets
    another piece or a whole GPU where that is free and the first piece is not (placement/free_now.py).
    """
    reasons = reasons_to_leave(request, footprint, config, access)
    job = None if reasons else candidate_of(request, footprint, config, access)
    if job is None:
        return as_asked(reasons)
    rejected: list[Rejected] = []
    targets = list(targets_of(job, rejected))
    pools = len(rejected)
    pieces = pieces_in(job, targets, rejected)
    first = next(pieces, None)
    if first is None:
        return as_asked(_why_none(job, targets, rejected[:pools], rejected[pools:]), tuple(rejected))
    return _placed(job, first) if free_now is None else _weighed(job, [first, *pieces], free_now)


def as_asked(reasons: tuple[Reason, ...], rejected: tuple[Rejected, ...] = ()) -> Placement:
    """Return the placement of a job that keeps its request."""
    return Placement(SharingMode.EXCLUSIVE, None, None, None, "", "", "", None, reasons, rejected)


def _why_none(
    job: Candidate, targets: list[Target], pools: list[Rejected], pieces: list[Rejected]
) -> tuple[Reason, ...]:
    """Return why no piece fits, by the pools and the pieces that were rejected."""
    if not targets:
        return tuple({str(item.reason): item.reason for item in pools}.values()) or (because("site-has-no-gpus"),)
    partitions = tuple(dict.fromkeys(target.partition.name for target in targets))
    if not pieces:
        return (because("no-pieces", partitions=partitions),)
    reasons = [item.reason for item in pieces]
    of_job = [reason for reason in reasons if reason.code in _OF_THE_JOB][:1]
    for barred in (job.request.no_slice, job.request.no_mps, job.request.no_share):
        of_job += barred if any(reason in barred for reason in reasons) else ()
    refusals = [reason for reason in reversed(reasons) if reason not in of_job]
    # The need is beside the point where no piece was refused for it.
    if refusals:
        of_job = [
            because("nothing-holds", need_mib=job.memory_mib, sm_pct=job.sm_active_pct, partitions=partitions),
            # The largest piece that is too small or too slow tells which of memory and SMs was too much.
            max(refusals, key=lambda one: (one.code.startswith("too-"), one.params.get("mem_mib", 1e9))),
            *of_job,
        ]
    return tuple(of_job)


def _weighed(job: Candidate, pieces: list[Fit], free_now: FreeNow) -> Placement:
    """Return the placement on the piece that is free, or the best of those that are not, or on a whole GPU."""
    tasks = job.request.array_at_once
    options = [
        Option(
            str(piece.gres),
            kind_of(piece.gres),
            tuple(partition.name for partition in piece.target.partitions),
            piece.gres.quantity,
            piece.slowdown.expected,
        )
        for piece in pieces
    ]
    # An array's tasks may have all slices beside all GPUs, and the piece is one kind of them.
    whole_kind = job.whole_kind
    if tasks > 1 and job.request.names_no_type:
        whole_kind = whole_kind or "gpu"
    if whole_kind:
        options.append(Option("as asked", whole_kind, job.names, 1, 1.0))
    if tasks > 1:
        options = [option._replace(at_once=at_once(option, job.config)) for option in options]
    may_change = len(options) > 1 and weigh(options[0], None, tasks).rounds == 1
    free = free_now.ask() if may_change or free_now.wanted else None
    weighed = [weigh(option, free if isinstance(free, Free) else None, tasks) for option in options]
    whole_gpu = weighed[-1] if whole_kind else None
    number = choose(weighed[: len(pieces)], whole_gpu)
    looked_up = tuple(weighed) if any(option.free_now is not None for option in weighed) else ()
    smallest = pieces[0]
    if number is None and whole_gpu is not None:
        refusal, reasons = _why_other(whole_gpu, weighed[0])
        return as_asked(reasons, (*smallest.rejected, refusal))._replace(weighed=looked_up)
    piece = pieces[number or 0]
    if piece is smallest:
        compared = [weighed[0], *([whole_gpu] if whole_gpu else [])]
        reasons = tuple(filter(None, map(free_in_words, compared)))
        reasons = reasons if len(reasons) == len(compared) else ()
    else:
        refusal, reasons = _why_other(weighed[number or 0], weighed[0])
        piece = piece._replace(rejected=(*piece.rejected, refusal))
    if isinstance(free, Reason) and free_now.wanted:
        reasons = (*reasons, free)
    placement = _placed(job, piece)
    return placement._replace(reasons=(*placement.reasons, *reasons), weighed=looked_up)


def _why_other(better: Weighed, smallest: Weighed) -> tuple[Rejected, tuple[Reason, ...]]:
    """Return the smallest piece as rejected for a better option, and all that is known of the two."""
    reasons = tuple(filter(None, map(free_in_words, (better, smallest))))
    if smallest.rounds > 1:
        rounds = because(
            "array-rounds",
            option=smallest.option,
            rounds=smallest.rounds,
            other=better.option,
            other_rounds=better.rounds,
        )
        reasons = (rounds, *reasons)
    return Rejected(smallest.option, reasons[0]), reasons


def _placed(job: Candidate, fit: Fit) -> Placement:
    target, host, time_limit_min = fit.target, fit.host, fit.time_limit_min
    mode = mode_of(fit.gres)
    reasons = list(fit.reasons)
    foretold = mode != SharingMode.SHARD  # the neighbours of a shard slow it without a bound
    if time_limit_min is not None:
        asked_min = job.limit_min or 0.0  # the limit may be kept as it is in another partition
        code = "time-limit-raised" if time_limit_min > asked_min else "time-limit"
        reasons.append(because(code, asked_min=asked_min, limit_min=time_limit_min))
    reasons += _billed(job, fit)
    if target.moved:
        reasons.append(because("moved", partition=target.named))
    options = [f"--{option}" for option in (host.cpu_option, host.mem and f"mem={host.mem}") if option]
    if options:
        reasons.append(because("host-part", options=" ".join(options)))
    reasons += fit.host_limit
    return Placement(
        mode=mode,
        gres=fit.gres,
        # All of its share, where its program takes a part of the GPU: it counts from the whole of it.
        memory_mib=fit.most.memory_mib if job.footprint.part_taken and fit.gres.name != "gpu" else job.memory_mib,
        headroom_mib=job.config.sharing.headroom_mib,
        partition=target.named,
        cpu_option=host.cpu_option,
        mem=host.mem,
        time_limit_min=time_limit_min,
        reasons=tuple(reasons),
        rejected=fit.rejected,
        slowdown_expected=fit.slowdown.expected if foretold else None,
        slowdown_upper=fit.slowdown.upper if foretold else None,
    )


def _billed(job: Candidate, fit: Fit) -> tuple[Reason, ...]:
    """Return what the GPU and the piece count in billing, as a reason; none where that is not known, or nothing."""
    weights = {partition.billing_weights for partition in (*job.partitions, fit.target.partition)}
    if len(weights) > 1 or weights == {""}:
        return ()
    from slurm_colloc.slurm.setup import parse_weights  # most sites do not bill

    prices = parse_weights(weights.pop())
    if not job.whole_kind and any(name.startswith("gres/gpu:") for name in prices):
        return ()
    before, after = (
        count * sum(prices.get(f"gres/{name}".lower(), 0.0) for name in {kind.partition(":")[0], kind})
        for kind, count in ((job.whole_kind or "gpu", job.request.gpu_count), (kind_of(fit.gres), fit.gres.quantity))
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
    return tuple(filter(None, (footprint.keep_whole, access.unknown)))

# SPDX-License-Identifier: Apache-2.0
"""Decides what follows the end of a job on a piece of a GPU: pure functions of its end, output and measurements."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from slurm_colloc.core.config import Pool
from slurm_colloc.core.model import GPU_OOM, Evidence, Gres, SharingMode
from slurm_colloc.gpu.failure import Outcome, outcome_of, tried_mib
from slurm_colloc.placement.out_of_memory import MOST_RETRIES, held_mib, is_offender, is_share, mode_of, more_mib
from slurm_colloc.placement.pieces import shares_per_gpu
from slurm_colloc.rebind.forms import form_of, updates
from slurm_colloc.slurm.gres import parse_gres
from slurm_colloc.submit.requeue_data import Carried

# A job that ends so shortly before its time limit, or before it is told of it, may do so to save its work.
_NEAR_LIMIT_S = 60.0


class End(NamedTuple):
    """The end of a job: its exit status, its last output, its gres, and what its sampler measured (None: nothing).

    ``left_s`` is how long Slurm would let it go on, None where that is not known; ``runs`` counts earlier ones.
    """

    status: int
    output: bytes
    has: Gres
    measured: Evidence | None
    left_s: float | None
    runs: int
    release: str

    @property
    def outcome(self) -> Outcome:
        """Return what it died of."""
        return outcome_of(self.status, self.output)[0]


class Verdict(NamedTuple):
    """The consequence of an end; ``cause`` says in words what happened.

    The job is to ask for ``to`` by ``update``, or ends as it ends (None) because of ``why``. ``is_offender`` says that
    it ran out of GPU memory by its own doing, ``held_mib`` what it had, None where that is not known. ``more_mib`` is
    the memory to ask for next, None for a job that is to run as asked.
    """

    cause: str
    is_offender: bool
    held_mib: int | None
    more_mib: int | None
    to: Gres | None
    update: Mapping[str, str]
    why: str = ""


def judge(end: End, piece: Carried, pools: Sequence[Pool], probed: Collection[str] = ()) -> Verdict | None:
    """Return what is due, None of a job that did not run out of GPU memory, or had no piece, or died of its own fault.

    A fault of one client under MPS ends those beside it, with the same words: nobody can tell who made it. Each runs
    again on what it asked for, then, where a fault is its own.
    """
    is_fault = end.outcome is Outcome.GPU_FAULT and end.has.name == SharingMode.MPS
    pools = [pool for pool in pools if set(piece.partitions) & set(pool.partitions) or _holds(pool, end.has)]
    open_to = [pool for pool in pools if pool.name not in piece.without]
    asked = parse_gres(piece.asked)
    if not (is_fault or end.outcome is Outcome.GPU_OOM) or end.has in asked or not is_piece(end.has, pools):
        return None
    held = held_mib(end.has, piece.budget_mib or _share_mib(end.has, pools), pools)
    peak = end.measured.gpu_mem_peak_mib if end.measured else None
    offends = not is_fault and held is not None and is_offender(end.has, held, peak, tried_mib(end.output))
    next_mib = more_mib(held, peak or 0, sizes_are_free=is_share(end.has)) if offends and held is not None else None
    cause = "failed by a GPU fault, its own or of a job beside it," if is_fault else "ran out of GPU memory"
    verdict = Verdict(f"{cause} on {end.has}", offends, held, next_mib, None, {})
    if end.left_s is not None and end.left_s <= _NEAR_LIMIT_S + piece.signal_s:
        return verdict._replace(why="it is too near its time limit to begin again")
    if end.runs >= MOST_RETRIES:
        return verdict._replace(why=f"it was run again {end.runs} times, so this was the last")
    form = form_of(piece.option, end.release, probed)
    larger = list(_larger(end, asked, held, open_to, piece.partitions, all_shares=form is not None and form.all_shares))
    for to, is_asked in larger:
        if form is not None and (update := updates(form, to, str(to))[1]):
            return verdict._replace(to=to, update={**update, **(piece.fields if is_asked else {})})
    return verdict._replace(why=f"Slurm {end.release} cannot give it more" if larger else "there is nothing larger")


def is_piece(gres: Gres, pools: Sequence[Pool]) -> bool:
    """Return whether it is a slice, or a share that is not all of a GPU."""
    if is_share(gres):
        return gres.quantity < max((shares_per_gpu(pool, gres.name) for pool in pools), default=0)
    return any(_holds(pool, gres) for pool in pools)


def _holds(pool: Pool, gres: Gres) -> bool:
    return gres.name == "gpu" and any(part.type == gres.type for part in pool.slice)


def _share_mib(gres: Gres, pools: Sequence[Pool]) -> int:
    """Return the memory of a share by its part of a card, the smallest where cards differ; 0 for none that is known."""
    counts = ((shares_per_gpu(pool, gres.name), pool.gpu_mem_mib or 0) for pool in pools)
    return min((gres.quantity * card_mib // count for count, card_mib in counts if count), default=0)


def _larger(
    end: End,
    asked: Sequence[Gres],
    held: int | None,
    pools: Sequence[Pool],
    partitions: Collection[str],
    *,
    all_shares: bool,
) -> Iterator[tuple[Gres, bool]]:
    """Yield the gres that would do, the best first, and whether the job has asked for it.

    One GPU of no type may be any slice, so the type of a larger one is named. ``all_shares`` says that a job on a share
    may have no more than all of them.
    """
    untyped = not any(gres.type for gres in asked)
    if untyped and held is not None:
        larger = (part for pool in pools if _holds(pool, end.has) for part in pool.slice if part.mem_mib > held)
        yield from ((Gres("gpu", part.type, 1), False) for part in sorted(larger, key=lambda part: part.mem_mib)[:1])
    own_pools = [pool for pool in pools if set(partitions) & set(pool.partitions)]
    if all_shares and is_share(end.has):
        most = max((shares_per_gpu(pool, end.has.name) for pool in own_pools), default=0)
        yield end.has._replace(quantity=most), False
    elif untyped and any(pool.slice for pool in own_pools):
        yield from ((Gres("gpu", pool.gpu_type, 1), True) for pool in own_pools if pool.gpu_type and pool.gpus_per_node)
    else:
        yield from ((gres, True) for gres in asked)


def as_evidence(end: End, verdict: Verdict, piece: Carried, run_id: str, now_s: float) -> Evidence:
    """Return what is learned of a job that ran out by its own doing: it needs more than it had."""
    measured = end.measured or Evidence(
        job_id=run_id,
        signature=piece.signature,
        state=GPU_OOM,
        mode=mode_of(end.has),
        gpu_model="",
        gpu_mem_peak_mib=None,
        sm_active_mean_pct=None,
        sm_active_q95_pct=None,
        sm_is_bound=False,
        sample_count=0,
        sampled_s=0.0,
        ended_s=now_s,
        elapsed_s=None,
    )
    peak = max(measured.gpu_mem_peak_mib or 0, (verdict.held_mib or 0) + 1)
    return measured._replace(job_id=run_id, state=GPU_OOM, gpu_mem_peak_mib=peak)

# SPDX-License-Identifier: Apache-2.0
"""The pieces that past jobs would have got with the change, by csub's own placement. Pure functions."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from statistics import fmean
from typing import NamedTuple

from slurm_colloc.core.config import MigSlice, Pool, SiteConfig
from slurm_colloc.facts.fits import step_gpus
from slurm_colloc.placement.fitted import Step, holds, ladder, past_request
from slurm_colloc.placement.pieces import shares_per_gpu
from slurm_colloc.placement.speed import Slowdown, on_share, on_slice
from slurm_colloc.plan.past import ONE, Past, Run, Use
from slurm_colloc.plan.site import kind_of_pool
from slurm_colloc.slurm.hostlist import count

# The part of the time of all pieces of a kind that is given away: beyond it jobs wait long, and csub gives the next
# larger.
_FULL = 0.9
_HASH = 2_654_435_761


class Shared(NamedTuple):
    """A run on a piece: which, the part of a GPU that it is, how much slower the job is there, and the partition."""

    piece: str
    kind: str
    units: int
    gpus: float
    slowdown: Slowdown
    partition: str


class Sharing(NamedTuple):
    """The pieces that runs would have had, by job number; and how many others of one GPU had none, by the reason."""

    pieces: Mapping[int, Shared]
    one_gpu: int
    not_measured: int
    nothing_holds: int
    not_adopted: int

    @property
    def by_piece(self) -> Counter[str]:
        """Return how many runs had which piece."""
        return Counter(piece.piece for piece in self.pieces.values())

    @property
    def slowdown(self) -> Slowdown | None:
        """Return the mean slowdown that is expected, and the largest bound; None without pieces."""
        if not self.pieces:
            return None
        slowdowns = [piece.slowdown for piece in self.pieces.values()]
        return Slowdown(fmean(slow.expected for slow in slowdowns), max(slow.upper for slow in slowdowns))


def drawn(number: int) -> float:
    """Return a number from 0 to 1 that is always the same for a job, so that what-ifs differ by nothing else."""
    return (number * _HASH % 2**32) / 2**32


def share(past: Past, config: SiteConfig, adoption: float) -> Sharing:
    """Return which piece each run of one GPU would have had.

    It is the smallest that holds what was measured of the run, by the rule of placement/fitted.py. If its kind is given
    away for all of the window, the next larger is, as csub turns away from a long queue; at last the whole GPU.
    """
    room_s = {kind: amount * _FULL * past.span_s for kind, amount in _capacity(config).items()}
    pieces: dict[int, Shared] = {}
    without = Counter[str]()
    pieces_of = _holding(config)
    ones = [run for run in past.runs if run.kind == ONE]
    for run in ones:
        if run.use is None:
            without["not measured"] += run.counted
        elif drawn(run.job.number + 1) >= adoption:
            without["not adopted"] += run.counted
        else:
            for piece in pieces_of(run, run.use):
                piece_s = piece.units * run.job.run_s * piece.slowdown.expected
                if room_s.get(piece.kind, 0.0) >= piece_s:
                    room_s[piece.kind] -= piece_s
                    pieces[run.job.number] = piece
                    break
            else:
                without["nothing holds"] += run.counted
    counted = sum(run.counted for run in ones)
    return Sharing(pieces, counted, without["not measured"], without["nothing holds"], without["not adopted"])


def demand(past: Past, pool: Pool, kinds: Mapping[str, MigSlice], config: SiteConfig) -> dict[tuple[str, ...], float]:
    """Return how many runs of one GPU of a pool were on at a time, on average, by the slices that would hold them.

    A run of which nothing was measured needs its whole GPU.
    """
    every = pool._replace(name="every slice", gpu_type="", gpus_per_node=0, slice=tuple(kinds.values()))
    pieces_of = _holding(config._replace(pool=(every,)))
    profiles = {part.type: part.profile for part in kinds.values()}
    at_once = defaultdict[tuple[str, ...], float](float)
    for run in past.runs:
        if run.kind == ONE and run.use and run.job.shape.kind == kind_of_pool(pool):
            pieces = pieces_of(run._replace(shown="gpu:1"), run.use)
            if holding := tuple(profiles[piece.kind] for piece in pieces if piece.kind in profiles):
                at_once[holding] += run.job.run_s / past.span_s
    return dict(at_once)


def _holding(config: SiteConfig) -> Callable[[Run, Use], Iterable[Shared]]:
    """Return a function that yields the pieces that hold a run, in the order in which csub gives them."""
    in_turns = {partition.name for partition in config.partition if partition.mps_users == "each"}

    @cache
    def steps_of(shown: str, partition: str, account: str, qos: str, model: str) -> tuple[Step, ...]:
        return ladder(past_request(shown, partition, account, qos), model, config)

    def pieces_of(run: Run, use: Use) -> Iterable[Shared]:
        job = run.job
        for step in steps_of(run.shown, job.partition, job.account, job.qos, use.gpu_model):
            if holds(step, use.peak_mib, use.sm_active_pct):
                yield _piece(step, step.partition or job.partition, use)

    def _piece(step: Step, partition: str, use: Use) -> Shared:
        gres = step.gres
        # As large a part of a GPU as in a report; nothing is freed by one whose size is not known.
        gpus = step_gpus(step)
        gpus = 1.0 if gpus is None else gpus
        if gres.name == "gpu":
            pool, part = next((pool, part) for pool in step.pools for part in pool.slice if part.type == gres.type)
            slower = on_slice(use.sm_active_pct, (pool.sm_count or part.sm_count) / part.sm_count)
            return Shared(str(gres), gres.type, 1, gpus, slower, partition)
        turns = gres.name == "mps" and partition in in_turns
        slower = on_share(use.sm_active_pct, config.sharing.max_slowdown, in_turns=turns)
        return Shared(str(gres), gres.name, gres.quantity, gpus, slower, partition)

    return pieces_of


def _capacity(config: SiteConfig) -> Mapping[str, float]:
    """Return how many of each kind of piece the site has."""
    pieces = Counter[str]()
    for pool in config.pool:
        nodes = count(pool.nodes)
        for part in pool.slice:
            pieces[part.type] += part.quantity * nodes
        for name in ("mps", "shard"):
            pieces[name] += shares_per_gpu(pool, name) * pool.gpus_per_node * nodes
    return pieces


def moved(run: Run, piece: Shared | None) -> Run:
    """Return the run on its piece: with its own cores and memory, and as much longer as it is slower there."""
    if piece is None:
        return run
    shape = run.job.shape._replace(kind=piece.kind, units=piece.units)
    run_s = run.job.run_s * piece.slowdown.expected
    limit_s = max(run.job.limit_s, run_s)
    return run._replace(job=run.job._replace(shape=shape, run_s=run_s, limit_s=limit_s, partition=piece.partition))

# SPDX-License-Identifier: Apache-2.0
"""The pieces that past jobs would have got with the change, by csub's own placement. Pure functions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import NamedTuple

from slurm_colloc.core.config import MigSlice, Pool, SiteConfig
from slurm_colloc.facts.fits import step_gpus
from slurm_colloc.placement.fitted import Step, holds, ladder, past_request
from slurm_colloc.placement.pieces import shares_per_gpu
from slurm_colloc.placement.speed import Slowdown, on_share, on_slice
from slurm_colloc.plan.past import ONE, Past, Run
from slurm_colloc.slurm.hostlist import count

# Of the time of all pieces of a kind so much is given away: beyond that jobs wait long, and csub gives the next larger.
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
    """Which runs would have had which piece, by job number; and of the others of one GPU how many, and why not."""

    pieces: Mapping[int, Shared]
    one_gpu: int
    not_measured: int
    nothing_holds: int
    not_adopted: int


def drawn(number: int) -> float:
    """Return a number from 0 to 1 that is always the same for a job, so that what-ifs differ by nothing else."""
    return (number * _HASH % 2**32) / 2**32


def share(past: Past, config: SiteConfig, adoption: float) -> Sharing:
    """Return which piece each run of one GPU would have had.

    The smallest that holds what was measured of it, by the rule of placement/fitted.py; of a kind that is given away
    for all of the window, the next larger, as csub turns away from what is waited for; at last the whole GPU.
    """
    seconds = max(1.0, past.until_s - past.since_s)
    left = {kind: amount * _FULL * seconds for kind, amount in _capacity(config).items()}
    pieces: dict[int, Shared] = {}
    counts = dict.fromkeys(("one", "unmeasured", "none", "not adopted"), 0)
    steps_of = _ladders(config)
    for run in past.runs:
        if run.kind != ONE:
            continue
        counts["one"] += run.counted
        if run.use is None:
            counts["unmeasured"] += run.counted
            continue
        if drawn(run.job.number + 1) >= adoption:
            counts["not adopted"] += run.counted
            continue
        job = run.job
        steps = steps_of(run.shown, job.partition, job.account, job.qos, run.use.gpu_model)
        found = next((one for one in _holding(run, steps, config) if _room(one, run, left)), None)
        if found is None:
            counts["none"] += run.counted
            continue
        left[found.kind] -= found.units * run.job.run_s * found.slowdown.expected
        pieces[job.number] = found
    return Sharing(pieces, counts["one"], counts["unmeasured"], counts["none"], counts["not adopted"])


def _room(one: Shared, run: Run, left: Mapping[str, float]) -> bool:
    return left.get(one.kind, 0.0) >= one.units * run.job.run_s * one.slowdown.expected


def demand(past: Past, pool: Pool, kinds: Mapping[str, MigSlice], config: SiteConfig) -> dict[tuple[str, ...], float]:
    """Return how many runs of one GPU of a pool were on at a time, on average, by the slices that would hold them.

    Only of what was measured: a run of which nothing is known needs its whole GPU.
    """
    every = pool._replace(name="every slice", gpu_type="", gpus_per_node=0, slice=tuple(kinds.values()))
    steps_of = _ladders(config._replace(pool=(every,)))
    profiles = {one.type: one.profile for one in kinds.values()}
    found: dict[tuple[str, ...], float] = {}
    for run in past.runs:
        if run.kind != ONE or run.use is None or run.job.shape.kind != (pool.gpu_type or "gpu"):
            continue
        job = run.job
        steps = steps_of(_untyped(run.shown), job.partition, job.account, job.qos, run.use.gpu_model)
        holding = tuple(profiles[step.gres.type] for step in steps if step.gres.type in profiles and _holds(step, run))
        if holding:
            found[holding] = found.get(holding, 0.0) + job.run_s
    seconds = max(1.0, past.until_s - past.since_s)
    return {holding: run_s / seconds for holding, run_s in found.items()}


def _untyped(shown: str) -> str:
    return "gpu:1" if shown.startswith("gpu:") else shown


def _ladders(config: SiteConfig) -> Callable[[str, str, str, str, str], tuple[Step, ...]]:
    @cache
    def steps_of(shown: str, partition: str, account: str, qos: str, model: str) -> tuple[Step, ...]:
        return ladder(past_request(shown, partition, account, qos), model, config)

    return steps_of


def _holds(step: Step, run: Run) -> bool:
    assert run.use is not None
    return holds(step, run.use.peak_mib, run.use.sm_active_pct)


def _holding(run: Run, steps: Sequence[Step], config: SiteConfig) -> Iterable[Shared]:
    """Yield the pieces that hold a run, in the order in which csub gives them."""
    assert run.use is not None
    in_turns = {partition.name for partition in config.partition if partition.mps_users == "each"}
    for step in steps:
        if not _holds(step, run):
            continue
        gres = step.gres
        # As large a part of a GPU as in a report; where its size is not known, nothing is freed by it.
        gpus = step_gpus(step)
        gpus = 1.0 if gpus is None else gpus
        partition = step.partition or run.job.partition
        if gres.name == "gpu":
            pool, part = next((pool, part) for pool in step.pools for part in pool.slice if part.type == gres.type)
            over = (pool.sm_count or part.sm_count) / part.sm_count
            yield Shared(str(gres), gres.type, 1, gpus, on_slice(run.use.sm_active_pct, over), partition)
        else:
            turns = gres.name == "mps" and partition in in_turns
            slowdown = on_share(run.use.sm_active_pct, config.sharing.max_slowdown, in_turns=turns)
            yield Shared(str(gres), gres.name, gres.quantity, gpus, slowdown, partition)


def _capacity(config: SiteConfig) -> dict[str, float]:
    """Return how many of each kind of piece the site has."""
    found: dict[str, float] = {}
    for pool in config.pool:
        nodes = count(pool.nodes)
        for part in pool.slice:
            found[part.type] = found.get(part.type, 0.0) + part.quantity * nodes
        for name in ("mps", "shard"):
            found[name] = found.get(name, 0.0) + shares_per_gpu(pool, name) * pool.gpus_per_node * nodes
    return found


def moved(run: Run, piece: Shared | None) -> Run:
    """Return the run on its piece: with its own cores and memory, and as much longer as it is slower there."""
    if piece is None:
        return run
    shape = run.job.shape._replace(kind=piece.kind, units=piece.units)
    run_s = run.job.run_s * piece.slowdown.expected
    limit_s = max(run.job.limit_s, run_s)
    return run._replace(job=run.job._replace(shape=shape, run_s=run_s, limit_s=limit_s, partition=piece.partition))

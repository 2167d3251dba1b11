# SPDX-License-Identifier: Apache-2.0
"""Place past runs as csub places jobs, and count what each policy gives over what perfect knowledge would.

A policy says what a run needs of a GPU from what was known before it; the site's rules (placement/choose.py) make a
piece of that, or leave the run a whole GPU. What it costs is that part of a GPU for as long as the run was measured to
take on it, and a whole GPU for once more where its memory did not suffice. The oracle knows memory and time, and takes
the least of these costs.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from slurm_colloc.config import Pool, SiteConfig
from slurm_colloc.estimate.calibration import SHIPPED
from slurm_colloc.estimate.exact import median
from slurm_colloc.estimate.ladder import estimate
from slurm_colloc.estimate.question import Question
from slurm_colloc.history.names import is_inert
from slurm_colloc.history.signature import parts_of
from slurm_colloc.model import Footprint, Placement, Quantiles
from slurm_colloc.placement.choose import place
from slurm_colloc.placement.fitted import past_request
from slurm_colloc.placement.pieces import most_sm_of_share, shares_per_gpu
from slurm_colloc.report.cases import Case, Row
from slurm_colloc.units import demand_mib

_NOT_BUSY = Quantiles(0.0, 0.0, 0.0)


class Piece(NamedTuple):
    """The part of a GPU that a job takes, its memory in MiB, and the percent of the SMs that it may use.

    On a share it may use all, and what its neighbours slow it by is not known: the share holds ``most_sm_pct`` of
    activity. None: it is no share.
    """

    part: float
    mem_mib: float
    sm_pct: float
    most_sm_pct: float | None = None


class Judged(NamedTuple):
    """One run as one policy placed it.

    ``given`` and ``ideal`` are GPU-hours for an hour of the run on a whole GPU; ``memory_given`` and ``memory_ideal``
    what they are where no run is too slow for a piece, and ``out_of_memory`` that its memory does not suffice there.
    ``slowdown`` is what was measured for the piece, None where it was not, or there is no piece; ``fits_piece`` whether
    the oracle takes one. ``too_slow`` is None where nothing tells: a share is too slow for what keeps more of the SMs
    busy than it holds, for that slows its neighbours.
    """

    policy: str
    case: Case
    footprint: Footprint
    piece: Piece | None
    given: float
    ideal: float
    memory_given: float
    memory_ideal: float
    fits_piece: bool
    out_of_memory: bool
    slowdown: float | None
    too_slow: bool | None

    @property
    def missed(self) -> bool:
        """Return whether it needed more memory than the q99 said."""
        memory = self.footprint.gpu_mem_peak_mib
        return memory is not None and self.case.row.peak_mib > memory.q99


class Replayed(NamedTuple):
    """All placements, and the runs that none could be made of, by reason."""

    judged: tuple[Judged, ...]
    not_placed: Mapping[str, int]


class Score(NamedTuple):
    """How one policy did, by how much was known: counts of placements, GPU-hours, and errors of the q50.

    ``on_piece`` is how many got a piece, ``fit_piece`` how many the oracle gives one, ``both`` how many of those csub
    gives one too. ``too_slow`` are those of ``speed_judged`` whose measured slowdown is above the site's bound, or that
    keep more of the SMs busy than their share holds.
    """

    policy: str
    known: str
    placements: int
    configurations: int
    on_piece: int
    fit_piece: int
    both: int
    missed: int
    out_of_memory: int
    speed_judged: int
    too_slow: int
    given: float
    ideal: float
    memory_given: float
    memory_ideal: float
    median_error: float | None
    p95_error: float | None

    @property
    def over_ideal(self) -> float:
        """Return GPU-hours given over those of the oracle."""
        return self.given / self.ideal

    @property
    def memory_over_ideal(self) -> float:
        """Return the same where no run is too slow for a piece."""
        return self.memory_given / self.memory_ideal


class Kept(NamedTuple):
    """What the answers of one margin kept of its promise, in one source of runs; an empty source is all of them."""

    margin: str
    source: str
    promised: float
    answers: int
    missed: int


def _line(asked: Question) -> Footprint:
    """Twenty lines that any rung must beat: the same job, a line through the nearest two, or all but 700 MiB grows."""
    own, found = parts_of(asked.signature), Footprint(None, None, None, "", "line", 0, ())
    if own is None or own.values is None:
        return found
    peaks: dict[float, float] = {}
    for run in (*asked.runs, *asked.relatives):
        parts = parts_of(run.signature)
        if parts is not None and parts.values is not None and run.state == "COMPLETED":
            pairs = zip(asked.numbers, own.values, parts.values, strict=True)
            size = math.prod(had / has for name, has, had in pairs if had > 0 < has and not is_inert(name))
            peaks[size] = max(peaks.get(size, 0.0), float(run.gpu_mem_peak_mib or 0))
    known = sorted(peaks.items(), key=lambda one: (abs(one[0] - 1), one[0]))[:2]
    if not known:
        return found
    (size, peak), need = known[0], known[0][1] * 1.15
    if size != 1 and len(known) == 1:
        need = peak if size > 1 else 700 + (peak - 700) / size
    elif size != 1:
        need = 1.15 * (peak + (known[1][1] - peak) * (1 - size) / (known[1][0] - size))
    sm = max((run.sm_active_mean_pct for run in asked.runs or asked.relatives if run.sm_active_mean_pct), default=None)
    busy = sm if sm is None else Quantiles(sm, sm, sm)
    return found._replace(gpu_mem_peak_mib=Quantiles(need, need, need), sm_active_pct=busy)


def _whole(_: Question) -> Footprint:
    return Footprint(None, None, None, "", "whole", 0, ())


CSUB = "csub"
# Another policy is another line here.
POLICIES: Mapping[str, Callable[[Question], Footprint]] = {
    "whole GPU always": _whole,
    "line": _line,
    CSUB: estimate,
}


def replay(cases: Iterable[Case], config: SiteConfig, policies: Iterable[str] = POLICIES) -> Replayed:
    """Return how each policy places each run at a site."""
    names = tuple(policies)
    pools = {pool.gpu_model: pool for pool in reversed(config.pool)}
    judged: list[Judged] = []
    without: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for case in cases:
        row = case.row
        pool = pools.get(row.run.gpu_model) or pools.get("")
        if pool is None or pool.gpu_mem_mib is None:
            why = "site.toml describes no GPU of that model"
        elif row.peak_mib > pool.gpu_mem_mib:
            why = "larger than the whole GPU"
        else:
            judged += (_judged(name, case, pool, config) for name in names)
            continue
        without[why].add((row.source, row.run.job_id))
    return Replayed(tuple(judged), {why: len(runs) for why, runs in without.items()})


def _question(case: Case) -> Question:
    return Question(
        signature=case.row.run.signature,
        numbers=case.row.numbers,
        runs=tuple(row.run for row in case.runs),
        relatives=tuple(row.run for row in case.relatives),
    )


def _judged(policy: str, case: Case, pool: Pool, config: SiteConfig) -> Judged:
    row = case.row
    found = POLICIES[policy](_question(case))
    if found.gpu_model not in ("", row.run.gpu_model):
        found = found._replace(gpu_mem_peak_mib=None)
    # A pool of no model is of any.
    found = found if pool.gpu_model else found._replace(gpu_model="")
    request = past_request("gpu:1", pool.partitions[0], "", "")._replace(cpus_given=False, mem_given=False)
    by_memory = _piece(place(request, found._replace(sm_active_pct=_NOT_BUSY), config), pool, config)
    # Of a run whose SM activity nobody measured nothing can be said but its memory.
    knows_sm = row.run.sm_active_mean_pct is not None
    piece = _piece(place(request, found, config), pool, config) if knows_sm else by_memory
    slowdown = _slowdown(row, piece.sm_pct) if piece else None
    ideal, fits = _ideal(row, pool, config)
    return Judged(
        policy,
        case,
        found,
        piece,
        _cost(piece, row.peak_mib, slowdown),
        ideal,
        _cost(by_memory, row.peak_mib),
        _ideal(row._replace(slowdowns=(), run=row.run._replace(sm_active_mean_pct=None)), pool, config)[0],
        fits,
        by_memory is not None and row.peak_mib > by_memory.mem_mib,
        slowdown,
        _too_slow(row, piece, slowdown, config),
    )


def _too_slow(row: Row, piece: Piece | None, slowdown: float | None, config: SiteConfig) -> bool | None:
    active_pct = row.run.sm_active_mean_pct
    if piece is not None and piece.most_sm_pct is not None:
        # What percentages are summed from leaves a little above a share that the run just fills.
        return None if active_pct is None else active_pct > piece.most_sm_pct + 1e-9
    return None if slowdown is None else slowdown > config.sharing.max_slowdown


def _cost(piece: Piece | None, peak_mib: float, slowdown: float | None = None) -> float:
    if piece is None:
        return 1.0
    return piece.part * (slowdown or 1.0) + (peak_mib > piece.mem_mib)


def _piece(placement: Placement, pool: Pool, config: SiteConfig) -> Piece | None:
    """Return the piece of a placement; None where the job keeps its whole GPU."""
    gres, mem_mib = placement.gres, pool.gpu_mem_mib or 0
    if gres is None:
        return None
    if gres.name == "gpu":
        slice_ = min((one for one in pool.slice if one.type == gres.type), key=lambda one: one.mem_mib)
        of_sms = slice_.sm_count / (pool.sm_count or math.inf)
        found = Piece(max(of_sms, slice_.mem_mib / mem_mib), slice_.mem_mib, 100 * of_sms)
    else:
        per_gpu = shares_per_gpu(pool, gres.name)
        part = gres.quantity / per_gpu
        turns = gres.name == "mps" and _mps_users(pool, config) == {"each"}
        most_sm_pct = most_sm_of_share(gres.quantity, per_gpu, config, in_turns=turns)
        found = Piece(part, part * mem_mib, 100.0, most_sm_pct)
    cores = int(placement.cpu_option.rpartition("=")[2] or 0)
    host = _host_part(cores, demand_mib(placement.mem) if placement.mem else 0, pool)
    return found._replace(part=max(found.part, host))


def _host_part(cores: float, mem_mib: float, pool: Pool) -> float:
    """Return the part of what comes with one GPU of a node that so many cores and so much memory of the host are."""
    of_cores = cores / pool.cpus_per_node if pool.cpus_per_node else 0.0
    of_memory = mem_mib / pool.mem_per_node_mib if pool.mem_per_node_mib else 0.0
    return min(1.0, max(of_cores, of_memory) * pool.gpus_per_node)


def _mps_users(pool: Pool, config: SiteConfig) -> set[str]:
    """Return whose jobs are beside each other under MPS in the partitions of a pool; none where it is not given."""
    return {item.mps_users for item in config.partition if item.name in pool.partitions and item.mps_users}


def _pieces(pool: Pool, config: SiteConfig) -> Iterable[Piece]:
    """Return the pieces that a site gives of a GPU, the whole one too."""
    mem_mib = pool.gpu_mem_mib or 0
    yield Piece(1.0, mem_mib, 100.0)
    if "mig" in config.sharing.order:
        for one in pool.slice:
            of_sms = one.sm_count / (pool.sm_count or math.inf)
            yield Piece(max(of_sms, one.mem_mib / mem_mib), one.mem_mib, 100 * of_sms)
    users = _mps_users(pool, config)
    consent = {"mps": config.sharing.mps_daemon != "none" and users, "shard": config.sharing.shard_consent}
    for name, may in consent.items():
        count = shares_per_gpu(pool, name) if may and name in config.sharing.order else 0
        turns = name == "mps" and users == {"each"}
        for units in range(1, count):
            most_sm_pct = most_sm_of_share(units, count, config, in_turns=turns)
            yield Piece(units / count, units / count * mem_mib, 100.0, most_sm_pct)


def _ideal(row: Row, pool: Pool, config: SiteConfig) -> tuple[float, bool]:
    """Return the least GPU-hours that a run can have within the site's bound, and whether that is on a piece."""
    costs = []
    host = _host_part(row.run.cpu_cores_q95 or 0, row.run.host_mem_peak_mib or 0, pool)
    for piece in _pieces(pool, config):
        slowdown = _slowdown(row, piece.sm_pct) or 1.0
        most_sm_pct = 100.0 if piece.most_sm_pct is None else piece.most_sm_pct
        fits = row.peak_mib <= piece.mem_mib and (row.run.sm_active_mean_pct or 0.0) <= most_sm_pct
        if fits and slowdown <= config.sharing.max_slowdown:
            costs.append((max(piece.part, host) * slowdown, piece.part < 1))
    return min(costs)


def _slowdown(row: Row, sm_pct: float) -> float | None:
    """Return what was measured for so many of the SMs, between two measured shares in proportion; None where it was
    not. Below the least share that was measured the time is taken to grow as the SMs shrink.
    """
    if not row.slowdowns:
        return None
    known = sorted({**dict(row.slowdowns), 100.0: 1.0}.items())
    if sm_pct <= known[0][0]:
        return max(1.0, known[0][1]) * known[0][0] / sm_pct
    (low, slow), (high, fast) = next(pair for pair in pairwise(known) if sm_pct <= pair[1][0])
    of = (math.log(sm_pct) - math.log(low)) / (math.log(high) - math.log(low))
    return max(1.0, math.exp(math.log(slow) * (1 - of) + math.log(fast) * of))


def scores(judged: Sequence[Judged]) -> list[Score]:
    """Return how each policy did, by how much was known."""
    groups: dict[tuple[str, str], list[Judged]] = defaultdict(list)
    for one in judged:
        groups[one.case.known, one.policy].append(one)
    return [_score(policy, known, found) for (known, policy), found in groups.items()]


def _score(policy: str, known: str, judged: Sequence[Judged]) -> Score:
    memory = [(one.case.row.peak_mib, one.footprint.gpu_mem_peak_mib) for one in judged]
    errors = sorted(abs(said.q50 / peak - 1) for peak, said in memory if said)
    return Score(
        policy=policy,
        known=known,
        placements=len(judged),
        configurations=len({(one.case.row.source, one.case.row.run.signature) for one in judged}),
        on_piece=sum(one.piece is not None for one in judged),
        fit_piece=sum(one.fits_piece for one in judged),
        both=sum(one.fits_piece and one.piece is not None for one in judged),
        missed=sum(one.missed for one in judged),
        out_of_memory=sum(one.out_of_memory for one in judged),
        speed_judged=sum(one.too_slow is not None for one in judged),
        too_slow=sum(bool(one.too_slow) for one in judged),
        given=sum(one.given for one in judged),
        ideal=sum(one.ideal for one in judged),
        memory_given=sum(one.memory_given for one in judged),
        memory_ideal=sum(one.memory_ideal for one in judged),
        median_error=median(errors) if errors else None,
        p95_error=errors[math.ceil(0.95 * len(errors)) - 1] if errors else None,
    )


def kept(judged: Sequence[Judged]) -> list[Kept]:
    """Return what each margin promised and kept, over all sources and in each."""
    answers: Counter[tuple[str, str]] = Counter()
    missed: Counter[tuple[str, str]] = Counter()
    for one in judged:
        margin = one.footprint.margin
        if margin and one.policy == CSUB:
            for source in ("", one.case.row.source):
                answers[margin, source] += 1
                missed[margin, source] += one.missed
    return [
        Kept(margin, source, SHIPPED.margins[margin].confidence or 1.0, count, missed[margin, source])
        for (margin, source), count in sorted(answers.items())
    ]

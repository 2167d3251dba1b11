# SPDX-License-Identifier: Apache-2.0
"""Compares shadow mode's decisions with what the jobs used.

Decisions are files that users wrote. They are believed only as to the name of the piece, the limit of an MPS client of
it, how busy it was thought to be (to its disadvantage only) and the wait for it. The size of a piece, and its part of a
GPU, are from site.toml; the use and the wait of a run are from samples and the accounting.

    GPU-hours of a piece = hours of the run x the piece's part of a GPU x slowdown
    slowdown = max(1, SM activity x SMs of the whole GPU / SMs of the slice)

with the SM activity that csub reckoned with (q95), or the mean that was measured where that is more.
"""

from collections.abc import Iterable
from typing import NamedTuple

from duckdb import DuckDBPyConnection

from slurm_colloc.core.config import Pool, SiteConfig
from slurm_colloc.core.errors import InputError
from slurm_colloc.core.model import COMPLETED, LATE, WOULD_NOT, Gres, because
from slurm_colloc.core.sharing_model import ShadowLate, ShadowLeft, ShadowPiece
from slurm_colloc.core.wording import words
from slurm_colloc.facts.fits import make_run_fits
from slurm_colloc.placement.pieces import offers, shares_per_gpu
from slurm_colloc.placement.speed import upper_on_slice_sql
from slurm_colloc.slurm.gres import parse_gres
from slurm_colloc.store.decisions import with_decisions
from slurm_colloc.store.equivalents import equivalent_in_pool
from slurm_colloc.store.queries import kinds_of, make_rows, query, records
from slurm_colloc.store.window import Window

# The peak of a run that was sampled less may have been missed.
COVERED_PCT = 90
# Samplers other than ours look once in half a minute.
SHORTEST_S = 120
# A decision that says that its job waited longer before is not believed.
_LONGEST_WAIT_S = 7 * 86400.0
# A user whose job begins less than this sooner hardly notices.
_SOONER_S = 3600
_HOURS = "sum(allocated::DECIMAL(38, 12))::DOUBLE"
_OF_ALL_RUNS = f"""
SELECT (SELECT count(*) FROM shadowed), (SELECT {_HOURS} FROM usage),
       coalesce(sum(fit_freed::DECIMAL(38, 18)), 0)::DOUBLE
FROM run_fits
"""
_NOT_KNOWN_WHY = "by a decision that does not say why"


class Piece(NamedTuple):
    """A piece of a GPU as the site has it: the least that it holds and the most that it takes, of several pools.

    ``sm_part`` is its part of the GPU's SMs, None of a share, which slows nothing down by itself; ``enforced`` says
    that more memory than ``mem_mib`` cannot be had.
    """

    gpus: float
    mem_mib: int
    sm_part: float | None
    enforced: bool


class Shadow(NamedTuple):
    """A window by piece and in ``total``; runs left as asked; runs with a piece that cannot be judged, by why.

    ``late`` are those of all that would have got their piece while they waited.

    ``decided`` are all of these runs. All runs of the window had ``allocated_gpu_hours``, None where no size is known,
    of which a report says that smaller pieces would leave ``could_free_gpu_hours`` to others.
    """

    decided: int
    pieces: tuple[ShadowPiece, ...]
    total: ShadowPiece
    left: tuple[ShadowLeft, ...]
    not_judged: tuple[ShadowLeft, ...]
    late: ShadowLate
    allocated_gpu_hours: float | None
    could_free_gpu_hours: float


_PIECE_KINDS = kinds_of("would VARCHAR, place VARCHAR, gpus DOUBLE, mem_mib BIGINT, sm_part DOUBLE, enforced BOOLEAN")


def shadow_use(database: DuckDBPyConnection, config: SiteConfig, window: Window, by: str) -> Shadow:
    """Return what the decisions of shadow mode would have come to; ``database`` has ``usage`` of the window.

    Args:
        database: one of a store, aggregated.
        config: the site, which says what its pieces are.
        window: that was aggregated.
        by: one of CONVENTIONS, by which a slice is part of a GPU.
    """
    decided_runs = query("facts/sql/shadow_decisions", decided_runs=with_decisions())
    database.execute(f"CREATE TEMP TABLE shadowed AS {decided_runs}")
    wishes = database.execute("SELECT DISTINCT would, place FROM shadowed WHERE would != ''").fetchall()
    wished_pieces = [(would, place, find_piece(would, place, config, by)) for would, place in wishes]
    make_rows(
        database, "pieces", _PIECE_KINDS, [(would, place, *piece) for would, place, piece in wished_pieces if piece]
    )
    edges = {"since": window.since_s, "until": min(window.until_s, window.now_s)}
    runs_judged = query(
        "facts/sql/shadow_judged",
        completed=COMPLETED,
        covered_pct=COVERED_PCT,
        longest_wait_s=_LONGEST_WAIT_S,
        shortest_s=SHORTEST_S,
        upper_on_slice=upper_on_slice_sql("active_pct", "sm_part"),
    )
    database.execute(f"CREATE TEMP TABLE judged AS {runs_judged}", {**edges, "cluster": config.cluster})
    *pieces, total = records(ShadowPiece, database, query("facts/sql/shadow_pieces"))
    counts = f"count(*) AS runs, {_HOURS} AS allocated_gpu_hours"
    not_judged = f"SELECT why, {counts} FROM judged WHERE why IS NOT NULL GROUP BY why ORDER BY runs DESC, why"
    left_as_asked = f"SELECT would_not, {counts} FROM shadowed WHERE would = '' GROUP BY 1 ORDER BY runs DESC, 1"
    late = (
        "SELECT count(*), count(*) FILTER (fitted OR over), count(*) FILTER (over AND enforced), count(earlier_s), "
        f"count(*) FILTER (earlier_s >= {_SOONER_S}) FROM judged WHERE arm = '{LATE}'"
    )
    make_run_fits(database, config, by)
    ((decided, allocated, could_free),) = database.execute(_OF_ALL_RUNS).fetchall()
    return Shadow(
        decided=decided,
        pieces=tuple(pieces),
        total=total,
        left=_in_words(database.execute(left_as_asked).fetchall()),
        not_judged=tuple(records(ShadowLeft, database, not_judged)),
        late=ShadowLate(*database.execute(late).fetchall()[0]),
        allocated_gpu_hours=allocated,
        could_free_gpu_hours=could_free,
    )


def _in_words(rows: Iterable[tuple[str, int, float | None]]) -> tuple[ShadowLeft, ...]:
    """Return them with words for why; all words that are none of ours a user wrote, and they count as one."""
    by_reason: dict[str, ShadowLeft] = {}
    for word, runs, hours in rows:
        reason = words(because(f"would-not-{word}")) if word in WOULD_NOT else _NOT_KNOWN_WHY
        before = by_reason.get(reason, ShadowLeft(reason, 0, None))
        known_hours = [value for value in (before.allocated_gpu_hours, hours) if value is not None]
        by_reason[reason] = ShadowLeft(reason, before.runs + runs, sum(known_hours) if known_hours else None)
    return tuple(by_reason.values())


def find_piece(would: str, partition: str, config: SiteConfig, by: str) -> Piece | None:
    """Return what the site's pools in a partition give for these gres; None where that is not known.

    Args:
        would: one slice or shares of one GPU, as --gres has them; whoever wrote it.
        partition: the one in which it would have been asked for.
        config: the site.
        by: one of CONVENTIONS.
    """
    try:
        gres = parse_gres(would)
    except InputError:
        return None
    pools = [pool for pool in config.pool if len(gres) == 1 and partition in pool.partitions and offers(pool, gres[0])]
    offered = [_in_pool(gres[0], pool, by) for pool in pools]
    sized = [piece for piece in offered if piece is not None]
    if not sized or len(sized) < len(offered):
        return None
    return Piece(
        gpus=max(piece.gpus for piece in sized),
        mem_mib=min(piece.mem_mib for piece in sized),
        sm_part=min((piece.sm_part for piece in sized if piece.sm_part is not None), default=None),
        enforced=sized[0].enforced,
    )


def _in_pool(gres: Gres, pool: Pool, by: str) -> Piece | None:
    gpus = equivalent_in_pool(gres, pool, by)
    if gpus is None or gres.name not in ("gpu", "mps", "shard"):
        return None
    if gres.name == "gpu":
        part = next(part for part in pool.slice if part.type == gres.type)
        if gres.quantity != 1 or not pool.sm_count or not part.sm_count or not part.mem_mib:
            return None
        return Piece(gpus, part.mem_mib, part.sm_count / pool.sm_count, enforced=True)
    share = gres.quantity / shares_per_gpu(pool, gres.name)
    if pool.gpu_mem_mib is None or not 0 < share <= 1:
        return None
    return Piece(share, int(pool.gpu_mem_mib * share), None, enforced=gres.name == "mps")

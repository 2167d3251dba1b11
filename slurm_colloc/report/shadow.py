# SPDX-License-Identifier: Apache-2.0
"""Results of shadow mode, as a table, JSON or CSV. No I/O but what the caller does with the text."""

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import NamedTuple

from slurm_colloc.core.sharing_model import ShadowLate, ShadowLeft, ShadowPiece
from slurm_colloc.core.units import counted, in_words, printable
from slurm_colloc.report.charts import short
from slurm_colloc.report.columns import Column, Listing, Table
from slurm_colloc.report.text import window_in_words
from slurm_colloc.report.usage import hours_digits, number, percent

SCHEMA = 3


class ShadowReport(NamedTuple):
    """All that a shadow report says.

    ``runs`` had a GPU, or a share of one, in the window; on ``decided`` of them csub decided in shadow mode. ``pieces``
    add up to ``total``, ``left`` would have been left as asked, and of ``not_judged``, a part of the total, it is not
    known whether the piece holds them. ``equivalents`` says by what a slice is part of a GPU; less than ``covered_pct``
    sampled shows no peak. ``late`` are those of the total that would have got their piece while they waited.
    All runs of the window had ``allocated_gpu_hours``, and ``could_free_gpu_hours`` is what a report of it says that
    pieces would leave. ``visible`` says whose runs these are where they are not everybody's.
    """

    cluster: str
    since: datetime
    until: datetime
    equivalents: str
    covered_pct: int
    runs: int
    decided: int
    pieces: tuple[ShadowPiece, ...]
    total: ShadowPiece
    left: tuple[ShadowLeft, ...]
    not_judged: tuple[ShadowLeft, ...]
    late: ShadowLate
    allocated_gpu_hours: float | None
    could_free_gpu_hours: float
    visible: str = ""


def listing_of(report: ShadowReport) -> Listing:
    """Return the answer, what it is made of by pieces, and what is not known."""
    total, digits = report.total, _digits(report)
    columns = [
        Column("PIECE", "piece"),
        Column("RUNS", "runs", 0, 3),
        Column("JUDGED", "judged", 0, 4),
        Column("FIT", "fitted", 0, 1),
        Column("OUT OF MEM", "out_of_memory", 0, 2),
    ]
    if total.fitted:
        columns += [
            Column(f"{name.upper()} GPU-h", _of_fitted(f"{field}_gpu_hours"), digits, rank)
            for name, field, rank in (("alloc", "allocated", 7), ("piece", "piece", 8), ("freed", "freed", 0))
        ]
    if total.waits_known:
        columns += [Column("EARLIER", _earlier, None, 5), Column("OF", "waits_known", 0, 6)]
    table = Table(columns, [*report.pieces, total], summed=True, name_columns=40)
    return Listing(heading(report), [table], footnotes(report), SCHEMA, report, ShadowPiece, report.pieces)


def _of_fitted(field: str) -> Callable[[ShadowPiece], float | None]:
    """Return what gives hours of a piece; where no run fits none are known."""
    return lambda piece: getattr(piece, field) if piece.fitted else None


def _earlier(piece: ShadowPiece) -> str:
    duration_s = piece.earlier_median_s
    words = "" if duration_s is None else in_words(abs(duration_s))
    return f"{words} later" if duration_s is not None and duration_s < 0 else words


def _digits(report: ShadowReport) -> int:
    return hours_digits(max(report.total.allocated_gpu_hours, report.total.lost_gpu_hours))


def heading(report: ShadowReport) -> str:
    """Return the answer in one line."""
    total, place = report.total, f"on {printable(report.cluster)}, {window_in_words(report.since, report.until)}"
    pct = percent(total.freed_gpu_hours, report.allocated_gpu_hours)
    if pct is None or not total.judged:
        return f"It is not known what csub would have freed {place}: no run could be judged"
    freed = f"{short(total.freed_gpu_hours)} of {short(report.allocated_gpu_hours)} GPU-hours ({pct:.0f} %)"
    harmed = f"{total.out_of_memory or 'none'} of {counted(total.judged, 'run')} judged"
    return f"csub would have freed {freed} {place}; {harmed} would have run out of GPU memory"


def footnotes(report: ShadowReport) -> list[str]:
    """Return counts, method and gaps, by which a reader trusts or doubts the figures."""
    total = report.total
    lines = [
        *map(printable, filter(None, [report.visible])),
        f"runs with a GPU in window: {report.runs}; decided on: {report.decided}; "
        f"with a piece: {total.runs}; judged: {total.judged}",
        *_of_late(report.late),
        *(f"{_runs(report, part)} would have kept what they asked for: {part.why}" for part in report.left),
        *(f"{_runs(report, part)} not judged: {part.why}" for part in report.not_judged),
        "FIT: completed, and the highest sample of its GPU memory is at most what the piece holds by site.toml (of "
        f"mps: its memory limit), with {report.covered_pct} % of its time sampled where our samplers looked. OUT OF "
        "MEM: a sample is above that, however the run ended.",
    ]
    if total.over_share:
        lines.append(f"above a shard, which nobody enforces: {counted(total.over_share, 'run')} of those judged")
    lines += [
        f"ALLOC: whole-GPU equivalents (MIG by {report.equivalents}) times hours, of the runs that FIT.",
        "PIECE: the GPU-hours that the pieces would have held (mps:45 is 45 of usually 100 shares of a GPU), slower "
        "runs included (as slow as few jobs become on so few of a GPU's SMs). FREED: ALLOC less PIECE.",
    ]
    if report.could_free_gpu_hours:
        lines.append(
            f"At most possible: {short(report.could_free_gpu_hours)} GPU-h (COULD FREE of 'colloc report'), were no "
            "run slower, each on the first piece it fits. FREED counts what csub knew at submission, and slower runs."
        )
    if total.lost_gpu_hours:
        lines.append(
            f"at worst {number(total.lost_gpu_hours, _digits(report))} GPU-h would have been wasted by runs that were "
            "too large for their piece, failed, and ran again as asked; not in FREED"
        )
    if total.waits_known:
        lines.append(
            f"EARLIER: by how much the OF runs would begin sooner (median); {total.sooner} of {total.waits_known} "
            "would. One piece that was free counts for every job submitted meanwhile: do not add these times up."
        )
    return lines


def _of_late(late: ShadowLate) -> Iterator[str]:
    """Yield what late binding would have come to, and what of that nobody knows."""
    if not late.runs:
        return
    yield f"late binding would have changed {counted(late.runs, 'run')}:"
    sooner = f"known of {late.waits_known}: {late.sooner} an hour sooner, or more"
    harmed = f"known of {late.judged}: {late.harmed} would have run out of GPU memory"
    yield f"  when they would have begun: {sooner if late.waits_known else 'not known of any'}"
    yield f"  whether the piece holds them: {harmed if late.judged else 'not known of any'}; whether slower: not known"


def _runs(report: ShadowReport, part: ShadowLeft) -> str:
    hours = part.allocated_gpu_hours
    return counted(part.runs, "run") + (f" ({number(hours, _digits(report))} GPU-h)" if hours is not None else "")

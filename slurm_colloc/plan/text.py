# SPDX-License-Identifier: Apache-2.0
"""An answer of the planner as a table for people and as JSON. Pure."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from slurm_colloc.core.units import counted, in_words, printable
from slurm_colloc.plan.answer import MOST_ERROR_PCT, Answer, Compared, PoolCompared
from slurm_colloc.plan.change import Asked
from slurm_colloc.plan.scenario import Range
from slurm_colloc.plan.unreplayed import Unreplayed

SCHEMA = 3
# Between figures that are nearer to each other than this the replay does not choose.
_LEAST_GAIN = 0.95
# A change that shortens the wait in fewer of the draws may have been luck.
_SURE = 0.9


def as_json(answer: Answer) -> str:
    """Return all of an answer: seconds, GPU-hours, parts of one; null is not known."""
    fields = {name: plain(value) for name, value in answer._asdict().items()}
    if sharing := answer.sharing:
        fields["sharing"] = plain(sharing._asdict() | {"pieces": sharing.by_piece, "slowdown": sharing.slowdown})
    fields["recommendation"] = _recommendation(answer)
    return json.dumps({"schema": SCHEMA, **fields}, indent=2) + "\n"


def plain(value: Any) -> Any:
    """Return a value as JSON has it, tuples with names as objects."""
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    return {name: plain(one) for name, one in value.items()} if hasattr(value, "items") else value


def _recommendation(answer: Answer) -> str:
    """Return what is recommended, or why nothing is."""
    if not answer.recommends:
        return (
            f"none: the replay of today misses the mean wait that was by {answer.error_pct:.0f} %, more than "
            f"{MOST_ERROR_PCT:.0f} %"
        )
    if answer.compared and not answer.asked.cuts:
        return "leave the GPUs whole: of the geometries compared none has jobs end sooner"
    if answer.stranded:
        lost = counted(answer.stranded, "job")
        return f"not {_what_is_asked(answer.asked)}: no node would hold {lost} of the window"
    after = answer.total.then_mean_s
    if after is None:
        return "none, since nothing else than today was asked for"
    what, before = _what_is_asked(answer.asked), answer.total.today_mean_s
    change = f"mean wait {in_words(before.value)} -> {in_words(after.value)}"
    if after.value > before.value * _LEAST_GAIN:
        return f"no reason for {what}: {change}"
    if not answer.draws:
        return f"{what}, as far as so short a window tells ({change})"
    if answer.sooner < _SURE * answer.draws:
        change += f"; shorter in {answer.sooner} of {answer.draws} draws of its weeks only"
        return f"{what}, as far as the window tells ({change})"
    return f"{what}: {change}"


def _geometry(pool: PoolCompared, one: Compared) -> str:
    """Return how a geometry cuts the GPUs of a pool."""
    return "; ".join(str(cut) for cut in one.cuts if cut.pool == pool.pool) or "all whole"


def _reason(pool: PoolCompared) -> str:
    """Return which geometry of a pool is best, and why."""
    best, *others = pool.geometries
    fit = f"{pool.fitting:.1f} jobs at a time fit a slice, for {pool.gpus} GPUs"
    if not others:
        return f"  {pool.pool}: {_geometry(pool, best)}: {fit}, which fill no node"
    gain = f"{in_words(best.mean_turnaround_s)} to the end, next best {in_words(others[0].mean_turnaround_s)}"
    return f"  {pool.pool}: {_geometry(pool, best)}: {gain} ({_geometry(pool, others[0])}); {fit}"


def _what_is_asked(asked: Asked) -> str:
    """Return what a question changes, in words."""
    parts = {
        "MPS shares": asked.mps,
        "shards": asked.shards,
        f"{asked.gpus:+d} GPUs": asked.gpus,
        f"{asked.demand:g} times the demand": asked.demand != 1,
        f"csub for {100 * asked.adoption:g} % of jobs": asked.shares and asked.adoption < 1,
    }
    return ", ".join([*map(str, asked.cuts), *(part for part, changed in parts.items() if changed)]) or "today"


def as_table(answer: Answer, cluster: str, window: tuple[str, str]) -> str:
    """Return an answer for people.

    Args:
        answer: what to show.
        cluster: its name.
        window: its ends, as they are shown.
    """
    return "".join(f"{printable(line)}\n" for line in _lines(answer, cluster, window))


def _lines(answer: Answer, cluster: str, window: tuple[str, str]) -> Iterator[str]:
    held = "" if answer.load is None else f", {100 * answer.load:.0f} % held"
    jobs = counted(answer.jobs, "job")
    yield f"{cluster}, {window[0]} to {window[1]}: {jobs}, {answer.gpus} whole GPUs{held}"
    side = "longer" if answer.bias_pct > 0 else "shorter"
    yield (
        f"today's replay against the waits that were: {answer.error_pct:.0f} % {side}, "
        f"{abs(answer.bias_pct):.1f} % of the turnaround"
    )
    if not answer.asked.nothing:
        yield f"then: {_what_is_asked(answer.asked)}"
    yield ""
    yield from table(list(_rows_of_waits(answer)))
    yield ""
    for pool in answer.compared:
        yield f"pool {pool.pool}, mean wait and mean time from submission to end of all jobs:"
        for one in pool.geometries:
            yield f"  {in_words(one.mean_wait_s):>8} {in_words(one.mean_turnaround_s):>8}  {_geometry(pool, one)}"
    yield from _story(answer)
    yield ""
    yield from (f"note: {line}" for line in _notes(answer))


def _story(answer: Answer) -> Iterator[str]:
    """Yield what comes of it: the pieces, what is lacking, and the recommendation with its reasons."""
    yield from _shared(answer)
    for name, limits in (("today", answer.today_limits), ("then", answer.then_limits)):
        lacked = [f"{what} {100 * limits[what]:.0f} %" for what in sorted(limits, key=lambda what: -limits[what])]
        if lacked:
            yield f"what the first in the queue lacked, {name}: {', '.join(lacked)}"
    yield f"recommendation: {_recommendation(answer)}"
    yield from map(_reason, answer.compared) if answer.recommends else unreplayed_hours(answer.unreplayed)


def unreplayed_hours(beyond: Unreplayed | None) -> Iterator[str]:
    """Yield by how much jobs waited longer than in the replay, and what may explain it."""
    if beyond is None or not beyond.hours:
        return
    yield f"jobs waited {beyond.hours:,.1f} h longer than in the replay of today, of which they waited"
    if beyond.at_limit_hours is not None:
        yield f"  {beyond.at_limit_hours:,.1f} h while a QOS, account or user was at its limit on GPUs"
    yield (
        f"  {beyond.beside_free_hours:,.1f} h beside enough free GPUs: a limit, a reservation, nodes that were down, "
        "or cores and memory that other jobs had"
    )
    others = beyond.hours - beyond.beside_free_hours
    yield f"  {others:,.1f} h for GPUs of others: preemption, or priority by TRES, QOS or partition"


def _rows_of_waits(answer: Answer) -> Iterator[list[str]]:
    """Yield the table of waits, its titles first; partitions are in it if there are several."""
    then = not answer.asked.nothing
    yield ["WAITS", "JOBS", "WERE", "TODAY", "9 OF 10", "MEDIAN", *(["THEN", "9 OF 10", "MEDIAN"] if then else [])]
    partitions = [waits._replace(name=f"partition {waits.name}") for waits in answer.partitions]
    for waits in (*answer.classes, *(partitions if len(partitions) > 1 else [])):
        yield [
            *(waits.name, str(waits.jobs), in_words(waits.measured_mean_s)),
            *_cells(waits.today_mean_s, waits.today_median_s),
            *(_cells(waits.then_mean_s, waits.then_median_s) if then else []),
        ]


def _cells(mean: Range | None, median: float | None) -> list[str]:
    if mean is None or median is None:
        return ["-"] * 3
    ends = "-" if mean.low is None or mean.high is None else f"{in_words(mean.low)} to {in_words(mean.high)}"
    return [in_words(mean.value), ends, in_words(median)]


def table(cells: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows of cells as lines, columns below each other."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        first, *rest = zip(row, widths, strict=True)
        yield "  ".join([first[0].ljust(first[1]), *(text.rjust(width) for text, width in rest)]).rstrip()


def _shared(answer: Answer) -> Iterator[str]:
    sharing = answer.sharing
    if sharing is None:
        return
    on_pieces = ", ".join(f"{count} on {piece}" for piece, count in sorted(sharing.by_piece.items()))
    yield (
        f"of {counted(sharing.one_gpu, 'job')} of one GPU {on_pieces or 'none on a piece'}; nothing measured of "
        f"{sharing.not_measured}, no piece holds {sharing.nothing_holds}, not by csub {sharing.not_adopted}"
    )
    if sharing.slowdown is None:
        return
    yield (
        f"they could free {answer.could_free_gpu_hours:.0f} GPU-hours, as 'colloc report' counts them; slower, they "
        f"hold {answer.freed_gpu_hours:.0f} less: by {100 * (sharing.slowdown.expected - 1):.0f} % on average, few by "
        f"more than {100 * (sharing.slowdown.upper - 1):.0f} %"
    )


def _notes(answer: Answer) -> Iterator[str]:
    """Yield what a reader must know to trust or doubt the figures."""
    yield (
        f"9 of 10 is of {answer.draws} draws of the waits of the window's {answer.weeks} weeks, each as replayed"
        if answer.draws
        else f"no ranges: a queue lasts from day to day, and the window has {counted(answer.weeks, 'whole week')} of 4"
    )
    if answer.too_large:
        yield f"left out, because no node holds them: {counted(answer.too_large, 'job')}"
    for why, count in sorted(answer.rejected.items()):
        yield f"left out, {counted(count, 'run')}: {why}"
    if answer.sharing is not None:
        yield (
            "jobs keep the cores and the memory that they had; a piece holds what was measured of its job, so "
            "that none runs out of memory here: how many would have, 'colloc report --shadow' says"
        )
    yield from answer.left_out

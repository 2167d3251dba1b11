# SPDX-License-Identifier: Apache-2.0
"""An answer of the planner as a table for people and as JSON. Pure."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from slurm_colloc.core.units import counted, in_words, printable
from slurm_colloc.plan.answer import MOST_ERROR_PCT, Answer, Compared, PoolCompared
from slurm_colloc.plan.change import Asked
from slurm_colloc.plan.scenario import Range

SCHEMA = 2
# Between figures that are nearer to each other than this the replay does not choose.
_LEAST_GAIN = 0.95
# A change that shortens the wait in fewer of the draws may have been luck.
_SURE = 0.9


def as_json(answer: Answer) -> str:
    """Return all of an answer: seconds, GPU-hours, parts of one; null is not known."""
    shown = {name: plain(value) for name, value in answer._asdict().items()}
    shown["sharing"] = _sharing(answer)
    shown["recommendation"] = _recommendation(answer)
    return json.dumps({"schema": SCHEMA, **shown}, indent=2) + "\n"


def plain(value: Any) -> Any:
    """Return a value as JSON has it, tuples with names as objects."""
    if hasattr(value, "_asdict"):
        return {name: plain(one) for name, one in value._asdict().items()}
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    return {name: plain(one) for name, one in value.items()} if hasattr(value, "items") else value


def _sharing(answer: Answer) -> dict[str, Any] | None:
    if answer.sharing is None:
        return None
    found = answer.sharing
    kinds: dict[str, int] = {}
    for one in found.pieces.values():
        kinds[one.piece] = kinds.get(one.piece, 0) + 1
    expected = [one.slowdown.expected for one in found.pieces.values()]
    upper = [one.slowdown.upper for one in found.pieces.values()]
    return {
        "runs_by_piece": kinds,
        "one_gpu": found.one_gpu,
        "not_measured": found.not_measured,
        "nothing_holds": found.nothing_holds,
        "not_adopted": found.not_adopted,
        "slowdown_mean": sum(expected) / len(expected) if expected else None,
        "slowdown_upper_max": max(upper) if upper else None,
    }


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
    if answer.sooner < _SURE * answer.draws:
        why = f"shorter in {answer.sooner} of {answer.draws} draws of its weeks only"
        return f"{what}, as far as the window tells ({change}; {why})"
    if not answer.draws:
        return f"{what}, as far as so short a window tells ({change})"
    return f"{what}: {change}"


def _geometry(pool: PoolCompared, one: Compared) -> str:
    """Return how a geometry cuts the GPUs of a pool."""
    return "; ".join(str(cut) for cut in one.cuts if cut.pool == pool.pool) or "all whole"


def _reason(pool: PoolCompared) -> str:
    """Return which geometry of a pool is best, and why."""
    best, *others = pool.geometries
    fit = f"{pool.fitting:.1f} jobs at a time fit a slice, for {pool.gpus} GPUs"
    if not others:
        return f"{pool.pool}: {_geometry(pool, best)}: {fit}, which fill no node"
    gain = f"{in_words(best.mean_turnaround_s)} to the end, next best {in_words(others[0].mean_turnaround_s)}"
    return f"{pool.pool}: {_geometry(pool, best)}: {gain} ({_geometry(pool, others[0])}); {fit}"


def _what_is_asked(asked: Asked) -> str:
    """Return what a question changes, in words."""
    parts = [
        *map(str, asked.cuts),
        *(["MPS shares"] if asked.mps else []),
        *(["shards"] if asked.shards else []),
        *([f"{asked.gpus:+d} GPUs"] if asked.gpus else []),
        *([f"{asked.demand:g} times the demand"] if asked.demand != 1 else []),
        *([f"csub for {100 * asked.adoption:g} % of jobs"] if asked.shares and asked.adoption < 1 else []),
    ]
    return ", ".join(parts) or "today"


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
    yield from table(_rows_of_waits(answer))
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
        if limits:
            said = ", ".join(
                f"{what} {100 * part:.0f} %" for what, part in sorted(limits.items(), key=lambda one: -one[1])
            )
            yield f"what the first in the queue lacked, {name}: {said}"
    yield f"recommendation: {_recommendation(answer)}"
    if answer.recommends:
        yield from (f"  {_reason(pool)}" for pool in answer.compared)


def _rows_of_waits(answer: Answer) -> Iterator[list[str]]:
    """Yield the table of waits, its titles first; of partitions only where there are several."""
    then = any(one.then_mean_s is not None for one in answer.classes)
    yield ["WAITS", "JOBS", "WERE", "TODAY", "9 OF 10", "MEDIAN", *(["THEN", "9 OF 10", "MEDIAN"] if then else [])]
    partitions = [one._replace(name=f"partition {one.name}") for one in answer.partitions]
    for one in (*answer.classes, *(partitions if len(partitions) > 1 else [])):
        after = _cells(one.then_mean_s, one.then_median_s) if then else []
        yield [
            *(one.name, str(one.jobs), in_words(one.measured_mean_s)),
            *_cells(one.today_mean_s, one.today_median_s),
            *after,
        ]


def _cells(mean: Range | None, median: float | None) -> list[str]:
    if mean is None or median is None:
        return ["-", "-", "-"]
    return [in_words(mean.value), _ends(mean), in_words(median)]


def _ends(figure: Range) -> str:
    if figure.low is None or figure.high is None:
        return "-"
    return f"{in_words(figure.low)} to {in_words(figure.high)}"


def table(rows: Iterator[list[str]]) -> Iterator[str]:
    """Yield rows of cells as lines, columns below each other."""
    cells: Sequence[Sequence[str]] = list(rows)
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        first, *rest = zip(row, widths, strict=True)
        yield "  ".join([first[0].ljust(first[1]), *(text.rjust(width) for text, width in rest)]).rstrip()


def _shared(answer: Answer) -> Iterator[str]:
    found, freed, at_best = answer.sharing, answer.freed_gpu_hours, answer.could_free_gpu_hours
    if found is None or freed is None or at_best is None:
        return
    shown = _sharing(answer) or {}
    of = ", ".join(f"{count} on {piece}" for piece, count in sorted(shown["runs_by_piece"].items()))
    yield (
        f"of {counted(found.one_gpu, 'job')} of one GPU {of or 'none on a piece'}; nothing measured of "
        f"{found.not_measured}, no piece holds {found.nothing_holds}, not by csub {found.not_adopted}"
    )
    if not found.pieces:
        return
    between = f" (9 of 10: {freed.low:.0f} to {freed.high:.0f})" if freed.low is not None else ""
    yield (
        f"they could free {at_best:.0f} GPU-hours, as 'colloc report' counts them; slower, they hold {freed.value:.0f} "
        f"less{between}"
    )
    yield (
        f"slower on their pieces by {100 * (shown['slowdown_mean'] - 1):.0f} % on average; few by more than "
        f"{100 * (shown['slowdown_upper_max'] - 1):.0f} %"
    )


def _notes(answer: Answer) -> Iterator[str]:
    """Yield what a reader must know to trust or doubt the figures."""
    if answer.draws:
        yield f"9 of 10 is of {answer.draws} draws of the waits of the window's {answer.weeks} weeks, each as replayed"
    else:
        yield f"no ranges: a queue lasts from day to day, and the window has {counted(answer.weeks, 'whole week')} of 4"
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


FORMATS = ("table", "json")

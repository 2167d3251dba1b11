# SPDX-License-Identifier: Apache-2.0
"""How each policy would have placed past runs, and what each margin kept, as tables for people or machines."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from slurm_colloc.estimate.bounds import LEVEL, lower_bound, upper_bound
from slurm_colloc.report.replay import CSUB, Kept, Score
from slurm_colloc.report.speeds import MAY_BE_OVER, Speed
from slurm_colloc.report.text import csv_table
from slurm_colloc.units import printable

SCHEMA = 3


class Evaluation(NamedTuple):
    """A replay: how it was done, what of the tables was used, and what came of it.

    rows in = used + rejected. ``not_placed`` counts completed runs that no placement was made of, ``censored`` those
    that did not complete: they are known as bounds and placed by nobody. ``times_measured`` are csub's placements of
    runs whose time on pieces was measured, of ``placements``; ``without_speed`` those whose SM activity is not known.
    """

    mode: str
    max_slowdown: float
    rows_in: int
    used: int
    rejected: Mapping[str, int]
    censored: int
    clock_back: int
    not_read: tuple[str, ...]
    not_placed: Mapping[str, int]
    placements: int
    times_measured: int
    without_speed: int
    scores: tuple[Score, ...]
    speeds: tuple[Speed, ...]
    kept: tuple[Kept, ...]


def rates(score: Score) -> dict[str, float | None]:
    """Return the rates of a score with their upper bounds; None of no placements that could show one."""
    of = {
        "missed": (score.missed, score.placements),
        "out_of_memory": (score.out_of_memory, score.placements),
        "too_slow": (score.too_slow, score.speed_judged),
        "on_piece": (score.both, score.fit_piece),
    }
    found: dict[str, float | None] = {
        "over_ideal": score.over_ideal,
        "memory_over_ideal": score.memory_over_ideal,
    }
    for name, (count, all_of_them) in of.items():
        found[f"{name}_rate"] = count / all_of_them if all_of_them else None
        found[f"{name}_upper"] = upper_bound(count, all_of_them) if all_of_them else None
    return found


def as_text(shown: Evaluation) -> str:
    """Return the headline, a table of policies, one of margins, and what the figures are of."""
    head = (
        "known",
        "policy",
        "placed",
        "GPU-hours over ideal",
        "by memory",
        "of pieces",
        "out of memory",
        "too slow",
        "over q99",
    )
    lines: list[tuple[str, ...]] = [(*head, "q50 error: median", "p95")]
    lines += [_line(score) for score in shown.scores]
    margins: list[tuple[str, ...]] = [("margin", "source", "promised", "kept", "answers", "")]
    margins += [_margin(one) for one in shown.kept]
    tables = [lines, _speed_lines(shown), margins]
    shown_tables = [line for table in tables if len(table) > 1 for line in ("", *_table(table))]
    return "\n".join([*_headline(shown), *shown_tables, "", *_words(shown)]) + "\n"


def _headline(shown: Evaluation) -> list[str]:
    return [
        f"{one.known or 'known by earlier runs'}: {one.over_ideal:.2f} times the GPU-hours that perfect knowledge gives"
        for one in shown.scores
        if one.policy == CSUB
    ]


def _table(lines: Sequence[tuple[str, ...]]) -> Iterable[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return ["  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def _line(score: Score) -> tuple[str, ...]:
    of = rates(score)

    def rate(name: str) -> str:
        share = of[f"{name}_rate"]
        return "-" if share is None else f"{100 * share:.1f} % (<= {100 * (of[f'{name}_upper'] or 0):.1f})"

    on_piece = of["on_piece_rate"]
    return (
        score.known or "earlier",
        score.policy,
        str(score.placements),
        f"{score.over_ideal:.2f}",
        f"{score.memory_over_ideal:.2f}",
        "-" if on_piece is None else f"{100 * on_piece:.0f} % of {score.fit_piece}",
        rate("out_of_memory"),
        rate("too_slow"),
        rate("missed"),
        "-" if score.median_error is None else f"{100 * score.median_error:.1f} %",
        "-" if score.p95_error is None else f"{100 * score.p95_error:.1f} %",
    )


def _speed_lines(shown: Evaluation) -> list[tuple[str, ...]]:
    head = (
        f"on slices, at most {shown.max_slowdown:g}x",
        "by",
        "measured",
        "accepted",
        "over",
        "near the bound",
        "over",
    )
    lines: list[tuple[str, ...]] = [(*head, "of what perfect knowledge accepts")]
    for one in shown.speeds:
        worse = one.near_chance < 1 - LEVEL
        lines.append(
            (
                printable(one.gpu_model),
                one.telemetry,
                str(one.placements),
                str(one.accepted),
                _share(one.over, one.accepted),
                str(one.near),
                _share(one.near_over, one.near) + (f", more than {MAY_BE_OVER:.0%}" if worse else ""),
                _share(one.both, one.within),
            )
        )
    return lines


def _share(count: int, of: int) -> str:
    return f"{count} ({100 * count / of:.1f} %)" if of else "-"


def _verdict(one: Kept) -> str:
    """Return whether a margin keeps less than it promises beyond doubt, or misses more than twice as often."""
    said = "broken" if lower_bound(one.missed, one.answers) > 1 - one.promised else ""
    return said + (", over twice" if said and one.missed > 2 * (1 - one.promised) * one.answers else "")


def _margin(one: Kept) -> tuple[str, ...]:
    return (
        one.margin,
        printable(one.source) or "all",
        f"{100 * one.promised:.1f} %",
        f"{100 * (1 - one.missed / one.answers):.1f} %",
        str(one.answers),
        _verdict(one),
    )


def _words(shown: Evaluation) -> list[str]:
    rejected = f"{sum(shown.rejected.values())} rejected{_counts(shown.rejected)}"
    lines = [
        "placed as csub places a job, by memory, speed and cores; what gets no piece has a whole GPU, what runs out of "
        "memory has one once more; by memory, and out of memory: as if no piece were too slow",
        f"too slow: measured to be slowed more than {shown.max_slowdown:g} times, or busier than its share holds; of "
        "pieces: of the runs for which perfect knowledge takes one",
        f"of {shown.placements} placements the time on pieces was measured for {shown.times_measured}, for the others "
        "perfect knowledge goes by memory; SM activity is not known of "
        f"{shown.without_speed}, which csub is taken not to refuse for it",
        f"{shown.rows_in} rows in, {shown.used} used, {rejected}; "
        f"{shown.censored} of those used did not complete and count as bounds only",
        f"bounds hold with {LEVEL:.0%} certainty where placements are independent; those that share a run are not",
    ]
    if shown.not_read:
        lines.append(f"columns not read: {', '.join(map(printable, shown.not_read))}")
    if shown.not_placed:
        lines.append(f"not placed{_counts(shown.not_placed)}")
    if shown.clock_back:
        lines.append(f"{shown.clock_back} rows are earlier than the row above them; they were put in order of time")
    return lines


def _counts(counts: Mapping[str, int]) -> str:
    found = "; ".join(f"{printable(why)}: {number}" for why, number in sorted(counts.items()))
    return f" ({found})" if found else ""


def as_json(shown: Evaluation) -> str:
    """Return all figures; ``*_upper`` are one-sided bounds on the rates."""
    whole = {"schema": SCHEMA, "level": LEVEL, **shown._asdict()}
    whole["scores"] = [{**score._asdict(), **rates(score)} for score in shown.scores]
    whole["speeds"] = [{**one._asdict(), "near_chance": one.near_chance} for one in shown.speeds]
    whole["kept"] = [one._asdict() for one in shown.kept]
    return json.dumps(whole, indent=2) + "\n"


def as_csv(shown: Evaluation) -> str:
    """Return one row for each score."""
    rows = [{**score._asdict(), **rates(score)} for score in shown.scores]
    return csv_table(rows[0] if rows else Score._fields, (row.values() for row in rows))


FORMATS: Mapping[str, Callable[[Evaluation], str]] = {"text": as_text, "json": as_json, "csv": as_csv}

# SPDX-License-Identifier: Apache-2.0
"""How each policy would have placed past runs, as a table for people or machines."""

import json
from collections.abc import Callable, Mapping
from typing import NamedTuple

from slurm_colloc.estimate.bounds import LEVEL, lower_bound, upper_bound
from slurm_colloc.estimate.replay import Score
from slurm_colloc.report import spreadsheet
from slurm_colloc.units import printable

SCHEMA = 1
# Of those answered; what fails is bounded from above, what is as it should be from below, too.
_RATES = ("underestimates", "out_of_memory", "exact", "too_big")


class Evaluation(NamedTuple):
    """A replay: how it was done, what of the table was used, and the scores.

    rows in = used + rejected. ``not_placed`` counts completed runs that no placement was made of, ``censored`` those
    that did not complete: they are known as bounds and placed by nobody.
    """

    mode: str
    pieces: Mapping[str, tuple[int, ...]]
    headroom_mib: int
    rows_in: int
    used: int
    rejected: Mapping[str, int]
    censored: int
    clock_back: int
    not_placed: Mapping[str, int]
    scores: tuple[Score, ...]


def rates(score: Score) -> dict[str, float | None]:
    """Return each rate of those answered with its bounds, and memory given over needed; None of no answers."""
    found: dict[str, float | None] = {
        "abstained_rate": score.abstained / score.placements,
        "abstained_upper": upper_bound(score.abstained, score.placements),
    }
    for name in _RATES:
        count = getattr(score, name)
        found[f"{name}_rate"] = count / score.answered if score.answered else None
        found[f"{name}_upper"] = upper_bound(count, score.answered)
    found["exact_lower"] = lower_bound(score.exact, score.answered)
    found["allocated_over_ideal"] = score.allocated_mib / score.ideal_mib if score.ideal_mib else None
    return found


def as_text(shown: Evaluation) -> str:
    """Return a table for a terminal, and below it what the figures are of."""
    head = ("known", "policy", "placed", "answered", "under q99", "out of memory", "exact", "too big", "alloc/ideal")
    lines: list[tuple[str, ...]] = [(*head, "q50 error: median", "p95")]
    lines += [_line(score) for score in shown.scores]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    table = ["  ".join(word.ljust(width) for word, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([*table, "", *_words(shown)]) + "\n"


def _line(score: Score) -> tuple[str, ...]:
    of = rates(score)

    def rate(name: str) -> str:
        share = of[f"{name}_rate"]
        return "-" if share is None else f"{100 * share:.1f} % (<= {100 * (of[f'{name}_upper'] or 0):.1f})"

    exact, ratio = of["exact_rate"], of["allocated_over_ideal"]
    return (
        score.known or "earlier",
        f"  {score.rung}" if score.rung else score.policy,
        str(score.placements),
        f"{score.answered} ({100 * score.answered / score.placements:.1f} %)",
        rate("underestimates"),
        rate("out_of_memory"),
        "-" if exact is None else f"{100 * exact:.1f} % (>= {100 * (of['exact_lower'] or 0):.1f})",
        rate("too_big"),
        "-" if ratio is None else f"{ratio:.2f}",
        "-" if score.median_error is None else f"{100 * score.median_error:.1f} %",
        "-" if score.p95_error is None else f"{100 * score.p95_error:.1f} %",
    )


def _words(shown: Evaluation) -> list[str]:
    sizes = "; ".join(
        f"{printable(model) or 'any GPU'}: {', '.join(map(str, sizes))} MiB" for model, sizes in shown.pieces.items()
    )
    rejected = f"{sum(shown.rejected.values())} rejected{_counts(shown.rejected)}"
    lines = [
        "placed by memory alone: csub also refuses what would be too slow, so a site gives more than alloc/ideal says",
        f"{shown.rows_in} rows in, {shown.used} used, {rejected}; "
        f"{shown.censored} of those used did not complete and count as bounds only",
        f"pieces: {sizes}; {shown.headroom_mib} MiB of each are kept free",
        f"bounds hold with {LEVEL:.0%} certainty where placements are independent; those that share a run are not",
    ]
    if shown.not_placed:
        lines.append(f"not placed{_counts(shown.not_placed)}")
    if shown.clock_back:
        lines.append(f"{shown.clock_back} rows are earlier than the row above them; they were put in order of time")
    return lines


def _counts(counts: Mapping[str, int]) -> str:
    found = "; ".join(f"{printable(why)}: {number}" for why, number in sorted(counts.items()))
    return f" ({found})" if found else ""


def as_json(shown: Evaluation) -> str:
    """Return all figures; rates are parts of those answered, ``*_upper`` and ``*_lower`` their one-sided bounds."""
    whole = {"schema": SCHEMA, "level": LEVEL, **shown._asdict()}
    whole["scores"] = [{**score._asdict(), **rates(score)} for score in shown.scores]
    return json.dumps(whole, indent=2) + "\n"


def as_csv(shown: Evaluation) -> str:
    """Return one row for each score."""
    rows = [{**score._asdict(), **rates(score)} for score in shown.scores]
    return spreadsheet.as_csv(rows[0] if rows else Score._fields, (row.values() for row in rows))


FORMATS: Mapping[str, Callable[[Evaluation], str]] = {"text": as_text, "json": as_json, "csv": as_csv}

# SPDX-License-Identifier: Apache-2.0
"""What the page of an answer shows: its tables, and the queue over time as lines. Pure."""

from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from slurm_colloc.plan.answer import Answer, Waiting
from slurm_colloc.plan.text import asked_in_words, geometry, heading, notes, rows_of_waits, story, verdict
from slurm_colloc.units import in_words

WIDTH, HEIGHT = 960, 260
_LINES = (("were", "as it was"), ("today", "today, replayed"), ("then", "then"))


def page_values(answer: Answer, cluster: str, window: tuple[str, str]) -> dict[str, Any]:
    """Return the variables of the template plan.html.j2."""
    titles, *rows = rows_of_waits(answer)
    most = max((number for one in answer.queue for number in one[1:] if number is not None), default=0)
    return {
        "heading": heading(answer, cluster, window),
        "asked": asked_in_words(answer.asked),
        "error": verdict(answer),
        "titles": titles,
        "waits": rows,
        "story": list(story(answer)),
        "pools": [
            (pool, [(geometry(pool, one), *map(in_words, one[1:])) for one in pool.geometries])
            for pool in answer.compared
        ],
        "footnotes": list(notes(answer)),
        "chart": {
            "from": window[0],
            "until": window[1],
            "most": most,
            "width": WIDTH,
            "height": HEIGHT,
            "lines": list(_lines(answer.queue, most)),
        },
    }


def _lines(queue: Sequence[Waiting], most: int) -> Iterator[tuple[str, str, str, str]]:
    """Yield of each line its class, its name, what it says in words, and its points."""
    for name, title in _LINES:
        values = [getattr(one, name) for one in queue]
        if None in values:
            continue
        points = " ".join(
            f"{WIDTH * at / (len(values) - 1):.1f},{HEIGHT - HEIGHT * value / max(1, most):.1f}"
            for at, value in enumerate(values)
        )
        yield name, title, f"{fmean(values):.1f} on average, {max(values)} at most", points

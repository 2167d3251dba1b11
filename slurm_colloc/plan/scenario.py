# SPDX-License-Identifier: Apache-2.0
"""Runs replayed on a site, and how much the weeks of a window differ. Pure."""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import NamedTuple

from slurm_colloc.plan.model import Site, Started
from slurm_colloc.plan.past import Past, Run
from slurm_colloc.plan.replay import replay
from slurm_colloc.plan.sharing import Sharing

TOTAL = "all"
_WEEK_S, _HOUR_S = 7 * 86400.0, 3600.0
# A start so much later has another place in Slurm's rounds of half a minute and a minute.
_ROUND_S = 11.0
_LEAST_WEEKS, _DRAWS, _ENDS = 4, 1000, 0.05


class Range(NamedTuple):
    """A figure, and where nine of ten draws of the window's weeks have it; None where it has too few."""

    value: float
    low: float | None = None
    high: float | None = None


class Scenario:
    """Runs replayed on a site, several times if they are few, as seconds decide which is first for a GPU."""

    def __init__(
        self, runs: Iterable[Run], site: Site, enough: Callable[[Started], bool] | None = None, starts: int = 1
    ) -> None:
        jobs = [run.job for run in runs]
        draw = random.Random(34)  # noqa: S311 - the same question has the same answer
        self.wait_s, self.end_s = defaultdict[int, float](float), defaultdict[int, float](float)
        for at in range(starts):
            # Jobs come at other moments of the scheduler's rounds, and of each other.
            moved = [job._replace(submit_s=job.submit_s + (at and at * _ROUND_S + draw.random())) for job in jobs]
            done = replay(site, moved, enough)
            for one in done.started:
                self.wait_s[one.job.number] += one.wait_s / starts
                self.end_s[one.job.number] += (one.end_s - at * _ROUND_S) / starts
        self.never = {job.number for job in done.never}
        self.limits = done.limits

    def waits(self, runs: Iterable[Run]) -> list[float]:
        """Return what those of the runs waited that started."""
        return [self.wait_s[run.job.number] for run in runs if run.job.number in self.wait_s]

    def turnarounds(self, runs: Iterable[Run]) -> list[float]:
        """Return how long they took from submission to end."""
        return [self.end_s[run.job.number] - run.job.submit_s for run in runs if run.job.number in self.end_s]


def freed_gpu_hours(past: Past, sharing: Sharing, *, slower: bool = True) -> float:
    """Return the GPU-hours that runs of the window hold less on pieces, slower as they are, or as a report has it."""
    pieces = ((run.job.run_s, sharing.pieces.get(run.job.number)) for run in past.counted)
    return sum(
        run_s / _HOUR_S * (1 - piece.gpus * (piece.slowdown.expected if slower else 1.0))
        for run_s, piece in pieces
        if piece
    )


def mean(sums: Iterable[tuple[float, int]], weights: Iterable[int] = repeat(1)) -> float:
    """Return the mean of figures by their sums and numbers, each counted so many times; 0 of none."""
    weighted = [(weight * total, weight * count) for weight, (total, count) in zip(weights, sums, strict=False)]
    return sum(total for total, _ in weighted) / max(1, sum(count for _, count in weighted))


class Weeks:
    """Draws of a window's whole weeks, the last with the days that are left, by the waits of one replay.

    Waits are drawn and not jobs: jobs of weeks drawn anew would find the queue empty that a backlog had filled.
    """

    def __init__(self, past: Past) -> None:
        self._since_s, self.count = past.since_s, int(past.span_s // _WEEK_S)
        draw = random.Random(33)  # noqa: S311 - the same question has the same answer
        every = range(self.count)
        drawn = [draw.choices(every, k=self.count) for _ in range(_DRAWS)] if self.count >= _LEAST_WEEKS else []
        self.draws = [[weeks.count(week) for week in every] for weeks in drawn]

    def sums(self, runs: Iterable[Run], figures: Mapping[int, float]) -> list[tuple[float, int]]:
        """Return of each week the sum of the figures that runs submitted in it have, by job number, and how many do."""
        weeks: list[list[float]] = [[] for _ in range(max(1, self.count))]
        for run in runs:
            if run.job.number in figures:
                week = int((run.job.submit_s - self._since_s) // _WEEK_S)
                weeks[min(week, len(weeks) - 1)].append(figures[run.job.number])
        return [(sum(of_week), len(of_week)) for of_week in weeks]

    def means(self, sums: Sequence[tuple[float, int]]) -> list[float]:
        """Return the mean in each draw, 0 in one that has none of the runs."""
        return [mean(sums, weeks) for weeks in self.draws]

    def ends(self, figures: Sequence[float]) -> tuple[float | None, float | None]:
        """Return between which ends nine of ten draws lie; None for too few weeks."""
        if not figures:
            return None, None
        ordered = sorted(figures)
        cut = int(_ENDS * len(ordered))
        return ordered[cut], ordered[-1 - cut]

    def range_of(self, runs: Sequence[Run], figures: Mapping[int, float]) -> Range:
        """Return the mean of the figures of these runs, of which at least one has one."""
        sums = self.sums(runs, figures)
        return Range(mean(sums), *self.ends(self.means(sums)))

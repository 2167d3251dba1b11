# SPDX-License-Identifier: Apache-2.0
"""Runs replayed on a site, and replays of weeks of them drawn anew. Pure."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean

from slurm_colloc.plan.change import Asked, otherwise
from slurm_colloc.plan.model import Site
from slurm_colloc.plan.past import Past, Run
from slurm_colloc.plan.replay import replay
from slurm_colloc.plan.sharing import Sharing

TOTAL, PARTITION = "all", "partition "
_DAY_S, _HOUR_S = 86400.0, 3600.0
_LEAST_BLOCKS = 4
_RESAMPLES, _LEAST_RESAMPLES, _RESAMPLED_JOBS = 20, 5, 250_000
_ENDS = 0.05


def groups_of(run: Run) -> tuple[str, ...]:
    """Return in which rows of the table of waits a run counts: its class, its partition, all."""
    return run.kind, PARTITION + run.job.partition, TOTAL


class Scenario:
    """Runs replayed on a site."""

    def __init__(self, runs: Iterable[Run], site: Site) -> None:
        jobs = [run.job for run in runs]
        done = replay(site, jobs)
        self.wait_s = {one.job.number: one.wait_s for one in done.started}
        self.end_s = {one.job.number: one.end_s for one in done.started}
        self.never = {job.number for job in done.never}
        self.limits = done.limits

    def waits(self, runs: Iterable[Run]) -> list[float]:
        """Return what those of the runs waited that started."""
        return [self.wait_s[run.job.number] for run in runs if run.job.number in self.wait_s]

    def turnarounds(self, runs: Iterable[Run]) -> list[float]:
        """Return how long they took from submission to end."""
        return [self.end_s[run.job.number] - run.job.submit_s for run in runs if run.job.number in self.end_s]


def freed_gpu_hours(runs: Iterable[Run], sharing: Sharing, *, slower: bool = True) -> float:
    """Return by how many GPU-hours less the runs on pieces hold, slower as they are, or as a report has it."""
    found = 0.0
    for run in runs:
        if piece := sharing.pieces.get(run.job.number):
            found += run.job.run_s / _HOUR_S * (1 - piece.gpus * (piece.slowdown.expected if slower else 1.0))
    return found


class Resampled:
    """The mean waits of each class, and what is freed, in replays of weeks (of days, if there are few) drawn anew."""

    def __init__(
        self,
        past: Past,
        asked: Asked,
        sites: tuple[Site, Site],
        sharing: Sharing | None,
        step: Callable[[int, int], None],
    ) -> None:
        self.today: list[Mapping[str, float]] = []
        self.then: list[Mapping[str, float]] = []
        self.freed: list[float] = []
        span_s = past.until_s - past.since_s
        block_s = 7 * _DAY_S if span_s >= _LEAST_BLOCKS * 7 * _DAY_S else _DAY_S
        self.blocks, self.resamples = int(span_s // block_s), 0
        if self.blocks < _LEAST_BLOCKS:
            return
        counted = [run for run in past.runs if run.counted]
        by_block: list[list[Run]] = [[] for _ in range(self.blocks)]
        for run in counted:
            at = int((run.job.submit_s - past.since_s) // block_s)
            if at < self.blocks:
                by_block[at].append(run)
        affordable = _RESAMPLED_JOBS // (len(counted) * (1 if asked.nothing else 2))
        self.resamples = max(_LEAST_RESAMPLES, min(_RESAMPLES, affordable))
        draw = random.Random(33)  # noqa: S311 - the same question has the same answer
        for number in range(self.resamples):
            step(number, self.resamples)
            runs: list[Run] = []
            pieces = {}
            for place in range(self.blocks):
                taken = draw.randrange(self.blocks)
                for run in by_block[taken]:
                    job = run.job._replace(
                        number=len(runs),
                        submit_s=run.job.submit_s + (place - taken) * block_s,
                        array=f"{run.job.array} {place}",
                    )
                    if sharing and (piece := sharing.pieces.get(run.job.number)):
                        pieces[job.number] = piece
                    runs.append(run._replace(job=job))
            self.today.append(_means(runs, Scenario(runs, sites[0])))
            moved = sharing._replace(pieces=pieces) if sharing else None
            if moved:
                self.freed.append(freed_gpu_hours(runs, moved))
            if not asked.nothing:
                self.then.append(_means(runs, Scenario(otherwise(runs, moved, asked), sites[1])))

    @property
    def sooner(self) -> int:
        """Return in how many resamples all jobs wait less in the what-if, on average."""
        # A draw of days on which nobody submitted anything has no waits.
        pairs = [pair for pair in zip(self.today, self.then, strict=False) if all(TOTAL in waits for waits in pair)]
        return sum(then[TOTAL] < today[TOTAL] for today, then in pairs)

    def ends(self, figures: Sequence[float]) -> tuple[float | None, float | None]:
        """Return between which ends nine of ten of these figures lie."""
        if len(figures) < _LEAST_RESAMPLES:
            return None, None
        ordered = sorted(figures)
        cut = int(_ENDS * len(ordered))
        return ordered[cut], ordered[-1 - cut]

    def of(self, name: str, which: Sequence[Mapping[str, float]]) -> tuple[float | None, float | None]:
        """Return the ends of a class's mean wait."""
        return self.ends([one[name] for one in which if name in one])


def _means(runs: Sequence[Run], done: Scenario) -> dict[str, float]:
    by_group: dict[str, list[float]] = {}
    for run in runs:
        if run.job.number in done.wait_s:
            for name in groups_of(run):
                by_group.setdefault(name, []).append(done.wait_s[run.job.number])
    return {name: fmean(waits) for name, waits in by_group.items()}

# SPDX-License-Identifier: Apache-2.0
"""How many GPUs keep the waits of today, without sharing and with it, and what waits are with it on all. Pure.

What is compared is replays with replays, of the same jobs: of each class the mean wait may grow by a bound. The least
number of GPUs that keeps it is searched for, whole nodes first, then single GPUs of one node: so many keep the bound,
and one GPU less does not. A replay that breaks it beyond hope is not run to its end.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from math import ceil, inf
from statistics import fmean
from typing import NamedTuple

from slurm_colloc.core.config import Pool, SiteConfig
from slurm_colloc.core.errors import InputError
from slurm_colloc.plan.answer import comparable, held_s, settled
from slurm_colloc.plan.change import Asked, changed, gpus_of, otherwise, pools_with_whole, resized
from slurm_colloc.plan.geometry import Cut, best_cuts, profiles_of
from slurm_colloc.plan.model import Started
from slurm_colloc.plan.past import CLASSES, PIECES, Past, Run
from slurm_colloc.plan.scenario import TOTAL, Range, Scenario, Weeks, freed_gpu_hours
from slurm_colloc.plan.sharing import Sharing, demand, share
from slurm_colloc.plan.site import Rules, site_of

# "No longer than today": no class's mean wait grows by more than the larger of these.
MORE_S, MORE_PART = 300.0, 0.1
# A replay is given up once a class has waited so many times as long as it may, as some draw of weeks may bear more; of
# many jobs sooner, as it takes long.
_HOPELESS, _HOPELESS_OF_MANY = 3.0, 1.25
# The replay and the site may differ by so much of the mean wait, or so little that it says nothing of a bound.
MOST_ERROR_PCT, MOST_ERROR_S = 25.0, 30.0

# Few jobs are replayed several times, from other seconds on.
_MOST_STARTS, _REPLAYED_JOBS = 8, 10_000
_MOST_GROWTH, _GROWTH_STEP = 3.0, 0.1
# In pools of more nodes a part of one is not looked for.
_NODES_IN_PARTS = 32


class Bound(NamedTuple):
    """How long a class may wait on average: as long as today and a little, or so many seconds by class."""

    more_s: float = MORE_S
    more_part: float = MORE_PART
    most_s: Mapping[str, float] = {}

    def of(self, name: str, today_s: float) -> float:
        """Return the longest mean wait of a class whose jobs wait so long today."""
        return self.most_s.get(name, today_s + max(self.more_s, self.more_part * today_s))


class Waits(NamedTuple):
    """Waits of jobs in seconds, by the week with the longest mean, too."""

    mean_s: float
    median_s: float
    p95_s: float
    worst_week_s: float


class ClassNeed(NamedTuple):
    """Jobs of a class: today, with sharing on all GPUs and on as few as do, and there with a node less."""

    name: str
    jobs: int
    today: Waits
    on_all: Waits
    on_need: Waits | None
    node_down: Waits | None


class Point(NamedTuple):
    """A replay: on how many GPUs, by whom csub was used (0: no sharing), the mean wait, None where it was given up."""

    gpus: int
    adoption: float
    keeps: bool
    mean_s: float | None


class Need(NamedTuple):
    """What sharing is worth.

    ``whole`` and ``shared`` GPUs keep the waits of today without sharing and with it, ``whole_nodes`` and
    ``shared_nodes`` where only whole nodes count; None where not even all do, or nothing is known to fit a piece.
    ``worth`` is their difference.
    ``by_adoption`` says how many keep them where csub places but a part of the jobs. ``growth`` is by how many times
    as many jobs sharing is used up, None beyond what was tried.
    """

    gpus: int
    jobs: int
    measured_mean_s: float
    error_pct: float
    error_s: float
    load: float
    bound: Bound
    whole: int | None
    whole_nodes: int | None
    shared: int | None
    shared_nodes: int | None
    worth: Range | None
    by_adoption: Mapping[float, int | None]
    growth: float | None
    classes: tuple[ClassNeed, ...]
    points: tuple[Point, ...]
    sharing: Sharing
    weeks: int
    assumed: int
    left_out: tuple[str, ...]
    cuts: tuple[Cut, ...]


class Trial(NamedTuple):
    """A replay held against today: of each class the sums of waits by week, today and then; ``done`` is whole."""

    keeps: bool
    sums: Mapping[str, tuple[list[tuple[float, int]], list[tuple[float, int]]]]
    done: Scenario | None
    sharing: Sharing | None


def need(
    past: Past,
    config: SiteConfig,
    rules: Rules,
    asked: Asked,
    bound: Bound,
    adoptions: Sequence[float],
    step: Callable[[int, int], None],
) -> Need:
    """Return what sharing is worth on a site.

    Args:
        past: the jobs of the window.
        config: the site as it is.
        rules: Slurm's.
        asked: the pieces that there are to be; without any the site's own.
        bound: how long jobs may wait.
        adoptions: for which parts of the jobs, besides all, it is told what they need.
        step: told how many replays are done, of about how many.

    Raises:
        InputError: there is nothing to compare, or nothing that may be shared.
    """
    search = _Search(past, config, rules, asked, bound, step, 7 * (3 + len(adoptions)))
    full, all_jobs = search.full, 1.0
    plain = search.least(0.0, (1 + search.load) / 2)
    most = sum(plain.gpus.values()) / sum(full.values()) if plain else 1.0
    on_all = search.trial(full, all_jobs)
    assert on_all.sharing is not None
    freed_s = 3600 * sum(freed_gpu_hours((run for run in past.runs if run.counted), on_all.sharing).values())
    fewer = freed_s / (past.until_s - past.since_s) / sum(full.values())
    shared = search.least(all_jobs, (most + search.load - fewer) / 2) if on_all.sharing.pieces else None
    least = sum(shared.gpus.values()) / sum(full.values()) if shared else most
    by_adoption = {part: search.least(part, most - part * (most - least)) for part in adoptions if shared}
    growth = search.growth(1 / least) if shared else None
    measured_s = fmean(run.waited_s for run in search.known)
    missed_s = abs(fmean(search.today.waits(search.known)) - measured_s)
    return Need(
        gpus=gpus_of(config),
        jobs=len(search.known),
        measured_mean_s=measured_s,
        error_pct=100 * missed_s / measured_s,
        error_s=missed_s,
        load=search.load,
        bound=bound,
        whole=plain and sum(plain.gpus.values()),
        whole_nodes=plain and sum(plain.nodes.values()),
        shared=shared and sum(shared.gpus.values()),
        shared_nodes=shared and sum(shared.nodes.values()),
        worth=search.worth(plain, shared),
        by_adoption={part: found and sum(found.gpus.values()) for part, found in by_adoption.items()},
        growth=growth,
        classes=tuple(search.classes(shared)),
        points=tuple(search.points()),
        sharing=on_all.sharing,
        weeks=search.weeks.count,
        assumed=past.assumed,
        left_out=(*rules.left_out, *search.why_not),
        cuts=search.asked.cuts,
    )


class _Least(NamedTuple):
    """The fewest GPUs of each pool that keep a bound: in whole nodes, and with one node that has fewer."""

    nodes: Mapping[str, int]
    gpus: Mapping[str, int]


class _Search:
    """Replays of one question, each made once."""

    def __init__(
        self,
        past: Past,
        config: SiteConfig,
        rules: Rules,
        asked: Asked,
        bound: Bound,
        step: Callable[[int, int], None],
        expected: int,
    ) -> None:
        self.past, self._config, self._rules, self._bound = past, config, rules, bound
        self._step, self._expected = step, expected
        self._pools = sorted(pools_with_whole(config), key=lambda pool: -gpus_of(config._replace(pool=(pool,))))
        if not self._pools:
            raise InputError("site.toml has no pool with whole GPUs to plan for")
        self.full = {pool.name: gpus_of(config._replace(pool=(pool,))) for pool in self._pools}
        self._starts = max(1, min(_MOST_STARTS, _REPLAYED_JOBS // max(1, len(past.runs))))
        self.today = Scenario(past.runs, site_of(config, rules), starts=self._starts)
        self.known = comparable(past, [run for run in past.runs if run.counted], self.today)
        self.asked, _, self.why_not = settled(past, config, rules, asked, self.today)
        self.weeks = Weeks(past)
        self._sizes_cuts = asked.best_cuts or not all(cut.nodes for cut in asked.cuts)
        self._trials: dict[tuple[tuple[int, ...], float, float], Trial] = {}
        self._demand = cache(lambda pool: demand(past, pool, profiles_of(pool), config))
        self.load = sum(held_s(run, past) for run in past.runs) / sum(self.full.values())
        self.load /= past.until_s - past.since_s

    def trial(self, gpus: Mapping[str, int], adoption: float, growth: float = 1.0, *, whole: bool = False) -> Trial:
        """Return what a replay with so many GPUs says; ``whole``: to its end, whatever jobs wait."""
        key = tuple(gpus.values()), adoption, growth
        found = self._trials.get(key)
        if found is None or (whole and found.done is None):
            hopeless = _HOPELESS if self._starts > 1 else _HOPELESS_OF_MANY
            self._step(len(self._trials), max(self._expected, len(self._trials) + 1))
            found = self._trials[key] = self._replayed(gpus, adoption, growth, inf if whole else hopeless)
        return found

    def _replayed(self, gpus: Mapping[str, int], adoption: float, growth: float, hopeless: float) -> Trial:
        config, sharing = resized(self._config, gpus), None
        asked = Asked(demand=self.asked.demand * growth)
        if adoption:
            try:
                asked = self.asked._replace(cuts=self._cuts(config), adoption=adoption, demand=asked.demand)
                config = changed(config, asked)
            except InputError:  # so few nodes cannot be cut as asked
                return Trial(keeps=False, sums={}, done=None, sharing=None)
            sharing = share(self.past, config, adoption)
        classes: dict[str, list[Run]] = {}
        for run in self.known:
            classes.setdefault(_class(run, sharing, alike=len(self._pools) == 1), []).append(run)
        named = {run.job.number: name for name, runs in classes.items() for run in runs}
        most_s = {
            name: hopeless * self._starts * len(runs) * self._bound.of(name, fmean(self.today.waits(runs)))
            for name, runs in classes.items()
        }
        waited_s = dict.fromkeys(classes, 0.0)

        def enough(started: Started) -> bool:
            name = named.get(started.job.number)
            if name is None:
                return False
            waited_s[name] += started.wait_s
            return waited_s[name] > most_s[name]

        done = self.today
        if adoption or asked.demand != 1 or gpus != self.full:
            done = Scenario(
                otherwise(self.past.runs, sharing, asked), site_of(config, self._rules), enough, self._starts
            )
        if any(waited_s[name] > most_s[name] for name in classes):
            return Trial(keeps=False, sums={}, done=None, sharing=sharing)
        sums = {}
        for name, runs in classes.items():
            both = [run for run in runs if run.job.number in done.wait_s]
            sums[name] = self.weeks.sums(both, self.today.wait_s), self.weeks.sums(both, done.wait_s)
        keeps = done.never <= self.today.never and all(
            _mean(then) <= self._bound.of(name, _mean(today)) for name, (today, then) in sums.items()
        )
        return Trial(keeps, sums, done, sharing)

    def _cuts(self, config: SiteConfig) -> tuple[Cut, ...]:
        """Return the cuts of the question, of as many nodes as the demand needs where it named no number."""
        if not self._sizes_cuts:
            return self.asked.cuts
        found: list[Cut] = []
        whole = {pool.name: pool for pool in self._pools}
        for pool in config.pool:
            if pool.name in whole:
                among = [cut.geometry for cut in self.asked.cuts if cut.pool == pool.name]
                found += best_cuts(pool, self._demand(whole[pool.name]), among) if among else []
        return tuple(found)

    def least(self, adoption: float, guess: float) -> _Least | None:
        """Return the fewest GPUs that keep the bound, None where not even all do; their part of all is a guess."""
        if not self.trial(self.full, adoption).keeps:
            return None
        gpus = dict(self.full)
        for pool in self._pools:
            each = pool.gpus_per_node

            def nodes_keep(count: int, pool: Pool = pool, each: int = each) -> bool:
                return self.trial(gpus | {pool.name: count * each}, adoption).keeps

            nodes = gpus[pool.name] // each
            gpus[pool.name] = each * _first(nodes_keep, 0, nodes, ceil(guess * nodes))
        in_nodes = dict(gpus)
        for pool in self._pools:

            def keep(count: int, pool: Pool = pool) -> bool:
                return self.trial(gpus | {pool.name: count}, adoption).keeps

            most = gpus[pool.name]
            if most <= _NODES_IN_PARTS * pool.gpus_per_node:
                gpus[pool.name] = _first(keep, most - pool.gpus_per_node, most, most - pool.gpus_per_node // 2)
        return _Least(in_nodes, gpus)

    def growth(self, guess: float) -> float | None:
        """Return by how many times as many jobs all GPUs with sharing no longer keep the bound."""
        most = round((_MOST_GROWTH - 1) / _GROWTH_STEP)

        def breaks(steps: int) -> bool:
            return not self.trial(self.full, 1.0, 1 + steps * _GROWTH_STEP).keeps

        found = _first(breaks, 0, most + 1, ceil((guess - 1) / _GROWTH_STEP))
        return 1 + found * _GROWTH_STEP if found <= most else None

    def worth(self, plain: _Least | None, shared: _Least | None) -> Range | None:
        """Return how many GPUs fewer keep the bound with sharing, and where nine of ten draws of weeks have it."""
        if plain is None or shared is None:
            return None
        value = sum(plain.gpus.values()) - sum(shared.gpus.values())
        drawn = [self._drawn(0.0), self._drawn(1.0)]
        return Range(value, *self.weeks.ends([a - b for a, b in zip(*drawn, strict=True)]))

    def _drawn(self, adoption: float) -> list[float]:
        """Return of each draw of weeks the fewest of the GPUs tried that keep its bound, as all above them do."""
        tried = sorted(
            ((sum(gpus), trial) for (gpus, by, more), trial in self._trials.items() if (by, more) == (adoption, 1.0)),
            key=lambda one: -one[0],
        )
        found = [float(tried[0][0])] * len(self.weeks.draws)
        keeping = [True] * len(found)
        for gpus, trial in tried:
            means = [
                (name, self.weeks.means(today), self.weeks.means(then)) for name, (today, then) in trial.sums.items()
            ]
            for at in range(len(found)):
                keeping[at] = (
                    keeping[at]
                    and bool(means)
                    and all(then[at] <= self._bound.of(name, today[at]) for name, today, then in means)
                )
                if keeping[at]:
                    found[at] = gpus
        return found

    def classes(self, shared: _Least | None) -> Iterable[ClassNeed]:
        """Yield the waits of each class, and of all."""
        on_all = self.trial(self.full, 1.0, whole=True)
        on_need = down = None
        if shared:
            on_need = self.trial(shared.gpus, 1.0, whole=True).done
            first = self._pools[0]
            left = shared.gpus[first.name] - first.gpus_per_node
            down = self.trial({**shared.gpus, first.name: left}, 1.0, whole=True).done if left > 0 else None
        names = [_class(run, on_all.sharing, alike=len(self._pools) == 1) for run in self.known]
        order = sorted(set(names), key=lambda name: [name.startswith(one) for one in CLASSES][::-1])
        for name in (*order, TOTAL):
            runs = [run for run, one in zip(self.known, names, strict=True) if name in (one, TOTAL)]
            today, then = self._waits(runs, self.today), self._waits(runs, on_all.done)
            if today and then:
                yield ClassNeed(name, len(runs), today, then, self._waits(runs, on_need), self._waits(runs, down))

    def _waits(self, runs: Sequence[Run], done: Scenario | None) -> Waits | None:
        waits = sorted(done.waits(runs)) if done else []
        if done is None or not waits:
            return None
        weeks = [total / count for total, count in self.weeks.sums(runs, done.wait_s) if count]
        return Waits(
            fmean(waits), waits[len(waits) // 2], waits[min(len(waits) - 1, int(0.95 * len(waits)))], max(weeks)
        )

    def points(self) -> Iterable[Point]:
        """Yield all that was replayed of today's number of jobs."""
        for (gpus, adoption, growth), trial in sorted(self._trials.items()):
            if growth == 1.0:
                waits = trial.done.waits(self.known) if trial.done else []
                yield Point(sum(gpus), adoption, trial.keeps, fmean(waits) if waits else None)


def _class(run: Run, sharing: Sharing | None, *, alike: bool) -> str:
    """Return the class in which a run counts: on a piece or by its GPUs, and by their kind if not all are alike."""
    name = PIECES if run.kind == PIECES or (sharing and run.job.number in sharing.pieces) else run.kind
    return name if alike else f"{name}, {run.job.shape.kind}"


def _mean(sums: Iterable[tuple[float, int]]) -> float:
    both = list(sums)
    return sum(one for one, _ in both) / max(1, sum(count for _, count in both))


def _first(holds: Callable[[int], bool], low: int, high: int, guess: int) -> int:
    """Return the least number above ``low`` that holds, where ``high`` does; near the guess in few questions."""
    step, probe = 1, max(low + 1, min(high - 1, guess))
    while high - low > 1:
        if holds(probe):
            high, probe = probe, probe - step
        else:
            low, probe = probe, probe + step
        step *= 2
        if not low < probe < high:
            probe = (low + high) // 2
    return high

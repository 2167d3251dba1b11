# SPDX-License-Identifier: Apache-2.0
"""How many GPUs keep the waits of today, without sharing and with it, and what waits are with it on all. Pure.

Replays are compared with replays, of the same jobs: the mean wait of each class may grow by a bound. The least number
of GPUs that keeps it is searched for, whole nodes first, then single GPUs of one node: that number keeps the bound, and
one GPU less does not. A replay that breaks it beyond hope is not run to its end.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from math import ceil, inf
from statistics import fmean
from typing import NamedTuple

from slurm_colloc.core.config import Pool, SiteConfig
from slurm_colloc.core.errors import InputError
from slurm_colloc.plan.answer import MOST_ERROR_PCT, comparable, load, missed, settled
from slurm_colloc.plan.change import Asked, changed, gpus_of, otherwise, pools_with_whole, resized, whole_gpus
from slurm_colloc.plan.geometry import Cut, best_cuts, profiles_of
from slurm_colloc.plan.model import Started
from slurm_colloc.plan.past import CLASSES, PIECES, Past, Run
from slurm_colloc.plan.scenario import TOTAL, Range, Scenario, Weeks, freed_gpu_hours, mean
from slurm_colloc.plan.sharing import Sharing, demand, share
from slurm_colloc.plan.site import Rules, site_of
from slurm_colloc.plan.unreplayed import Unreplayed, unreplayed

# "No longer than today": no class's mean wait grows by more than the larger of these.
MORE_S, MORE_PART = 300.0, 0.1
# A replay is given up once a class has waited so many times as long as it may, as some draw of weeks may bear more, and
# sooner where jobs are many, as it takes long.
_HOPELESS, _HOPELESS_OF_MANY = 3.0, 1.25
# The replay and the site may differ by so little that it says nothing of a bound.
_MOST_ERROR_S = 30.0
# Few jobs are replayed several times, from other seconds on.
_MOST_STARTS, _REPLAYED_JOBS = 8, 10_000
_MOST_GROWTH, _GROWTH_STEP = 3.0, 0.1
# A part of a node is not looked for in pools of more nodes.
_NODES_IN_PARTS = 32


class Bound(NamedTuple):
    """How long a class may wait on average: as long as today and a little, or so many seconds by class."""

    more_s: float = MORE_S
    more_part: float = MORE_PART
    most_s: Mapping[str, float] = {}

    def of(self, name: str, today_s: float) -> float:
        """Return the longest mean wait of a class whose jobs wait so long today."""
        return self.most_s.get(name.partition(", ")[0], today_s + max(self.more_s, self.more_part * today_s))


class Waits(NamedTuple):
    """Waits of jobs in seconds, by the week with the longest mean, too."""

    mean_s: float
    median_s: float
    p95_s: float
    worst_week_s: float


class ClassNeed(NamedTuple):
    """Jobs of a class: today, with sharing on all GPUs, on as few as do, and there with a node and with a GPU less.

    ``on_fewer`` is of all GPUs where not even these do.
    """

    name: str
    jobs: int
    today: Waits
    on_all: Waits
    on_need: Waits | None
    node_down: Waits | None
    on_fewer: Waits | None


class Point(NamedTuple):
    """A replay: its GPUs, the part of jobs that csub places (0 is no sharing), the mean wait, None if given up."""

    gpus: int
    adoption: float
    keeps: bool
    mean_s: float | None


class Need(NamedTuple):
    """The worth of sharing, and what it is made of.

    ``whole`` and ``shared`` GPUs keep the waits of today without sharing and with it, ``whole_nodes`` and
    ``shared_nodes`` where only whole nodes count; None where not even all do, or nothing is known to fit a piece.
    ``worth`` is their difference. The GPUs that keep them where csub places but a part of the jobs are ``by_adoption``.
    Sharing is used up by ``growth`` times as many jobs, None beyond what was tried.
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
    unreplayed: Unreplayed | None
    left_out: tuple[str, ...]
    cuts: tuple[Cut, ...]

    @property
    def is_trusted(self) -> bool:
        """Return whether the replay of today is near enough to what was."""
        return self.error_pct <= MOST_ERROR_PCT or self.error_s <= _MOST_ERROR_S


class Trial(NamedTuple):
    """A replay held against today: the sums of waits of each class by week, today and then; ``done`` is whole."""

    keeps: bool = False
    sums: Mapping[str, tuple[list[tuple[float, int]], list[tuple[float, int]]]] = {}
    done: Scenario | None = None


def need(
    past: Past,
    config: SiteConfig,
    rules: Rules,
    change: Asked,
    bound: Bound,
    adoptions: Sequence[float],
    step: Callable[[int, int], None],
) -> Need:
    """Return what sharing is worth on a site.

    Args:
        past: the jobs of the window.
        config: the site as it is.
        rules: Slurm's.
        change: the pieces that there are to be, or the site's own.
        bound: how long jobs may wait.
        adoptions: the parts of the jobs, besides all, for which their need is told.
        step: told how many replays are done, of about how many.

    Raises:
        InputError: there is nothing to compare, or nothing that may be shared.
    """
    replays = 7 * (3 + len(adoptions))
    search = _Search(past, config, rules, change, bound, lambda done: step(done, max(replays, done + 1)))
    plain = search.least(0.0, (1 + search.load) / 2)
    most = search.part(plain)
    freed = freed_gpu_hours(past, search.sharing) * 3600 / past.span_s / gpus_of(config)
    shared = search.least(1.0, (most + search.load - freed) / 2) if search.sharing.pieces else None
    least = search.part(shared)
    by_adoption = {part: search.least(part, most - part * (most - least)) for part in adoptions if shared}
    measured_s, missed_s = missed(search.runs, search.today)
    return Need(
        gpus=gpus_of(config),
        jobs=len(search.runs),
        measured_mean_s=measured_s,
        error_pct=100 * abs(missed_s) / measured_s,
        error_s=abs(missed_s),
        load=search.load,
        bound=bound,
        whole=plain and plain.total,
        whole_nodes=plain and plain.in_nodes,
        shared=shared and shared.total,
        shared_nodes=shared and shared.in_nodes,
        worth=search.worth(plain, shared),
        by_adoption={part: fewest and fewest.total for part, fewest in by_adoption.items()},
        growth=search.growth(1 / least) if shared else None,
        classes=tuple(search.classes(shared)),
        points=tuple(search.points()),
        sharing=search.sharing,
        weeks=search.weeks.count,
        assumed=past.assumed,
        unreplayed=unreplayed(past, site_of(config, rules), search.today.wait_s, rules.caps),
        left_out=(*rules.left_out, *search.why_not),
        cuts=search.change.cuts,
    )


class _Least(NamedTuple):
    """The fewest GPUs of each pool that keep a bound, and how many all are if they come by whole nodes."""

    gpus: Mapping[str, int]
    in_nodes: int

    @property
    def total(self) -> int:
        return sum(self.gpus.values())


class _Search:
    """Replays of one question, each made once."""

    def __init__(
        self,
        past: Past,
        config: SiteConfig,
        rules: Rules,
        change: Asked,
        bound: Bound,
        step: Callable[[int], None],
    ) -> None:
        self._past, self._config, self._rules, self._bound, self._step = past, config, rules, bound, step
        self._gpus = {pool.name: whole_gpus(pool) for pool in pools_with_whole(config)}
        self._pools = sorted(pools_with_whole(config), key=whole_gpus, reverse=True)
        self.load = load(past, config) or 0.0
        self._starts = max(1, min(_MOST_STARTS, _REPLAYED_JOBS // max(1, len(past.runs))))
        self.today = Scenario(past.runs, site_of(config, rules), starts=self._starts)
        self.runs = comparable(past, self.today)
        self.change, _, self.why_not = settled(past, config, rules, change, self.today)
        self.sharing = share(past, changed(config, self.change), 1.0)
        self.weeks = Weeks(past)
        self._sizes_cuts = change.best_cuts or not all(cut.nodes for cut in change.cuts)
        self._trials: dict[tuple[tuple[int, ...], float, float], Trial] = {}
        self._demand = cache(lambda pool: demand(past, pool, profiles_of(pool), config))

    def part(self, least: _Least | None) -> float:
        """Return which part of all GPUs keeps the bound; all where not even they do."""
        return least.total / gpus_of(self._config) if least else 1.0

    def _trial(self, gpus: Mapping[str, int], adoption: float, growth: float = 1.0, *, to_end: bool = False) -> Trial:
        """Return what a replay with so many GPUs says, ``to_end`` however long jobs wait."""
        key = tuple(gpus.values()), adoption, growth
        if key not in self._trials or (to_end and self._trials[key].done is None):
            hopeless = _HOPELESS if self._starts > 1 else _HOPELESS_OF_MANY
            self._step(len(self._trials))
            self._trials[key] = self._replayed(gpus, adoption, growth, inf if to_end else hopeless)
        return self._trials[key]

    def _replayed(self, gpus: Mapping[str, int], adoption: float, growth: float, hopeless: float) -> Trial:
        config, sharing = resized(self._config, gpus), None
        change = Asked(demand=self.change.demand * growth)
        if adoption:
            try:
                change = self.change._replace(cuts=self._cuts(config), adoption=adoption, demand=change.demand)
                config = changed(config, change)
            except InputError:  # these nodes are too few to be cut so
                return Trial()
            sharing = share(self._past, config, adoption)
        classes = self._classes(sharing)
        class_of = {run.job.number: name for name, runs in classes.items() for run in runs}
        # The seconds that each class may still wait before all hope is gone.
        left_s = {
            name: hopeless * self._starts * len(runs) * self._bound.of(name, fmean(self.today.waits(runs)))
            for name, runs in classes.items()
        }

        def hope_is_gone(started: Started) -> bool:
            name = class_of.get(started.job.number)
            if name is None:
                return False
            left_s[name] -= started.wait_s
            return left_s[name] < 0

        done = self.today
        if adoption or change.demand != 1 or gpus != self._gpus:
            then = otherwise(self._past.runs, sharing, change)
            done = Scenario(then, site_of(config, self._rules), hope_is_gone, self._starts)
        if min(left_s.values()) < 0:
            return Trial()
        sums = {}
        for name, runs in classes.items():
            both = [run for run in runs if run.job.number in done.wait_s]
            sums[name] = self.weeks.sums(both, self.today.wait_s), self.weeks.sums(both, done.wait_s)
        keeps = done.never <= self.today.never and all(
            mean(then) <= self._bound.of(name, mean(today)) for name, (today, then) in sums.items()
        )
        return Trial(keeps, sums, done)

    def _classes(self, sharing: Sharing | None) -> dict[str, list[Run]]:
        """Return the runs on pieces and those by their GPUs, each kind of GPU by itself if not all are alike."""
        classes: dict[str, list[Run]] = {}
        for run in self.runs:
            name = PIECES if sharing and run.job.number in sharing.pieces else run.kind
            kind = f", {run.job.shape.kind}" if len(self._pools) > 1 else ""
            classes.setdefault(name + kind, []).append(run)
        return classes

    def _cuts(self, config: SiteConfig) -> tuple[Cut, ...]:
        """Return the cuts of the change, of as many nodes as the demand needs where it named no number."""
        if not self._sizes_cuts:
            return self.change.cuts
        pools = {pool.name: pool for pool in self._pools}
        return tuple(
            cut
            for pool in config.pool
            if (among := [cut.geometry for cut in self.change.cuts if cut.pool == pool.name])
            for cut in best_cuts(pool, self._demand(pools[pool.name]), among)
        )

    def least(self, adoption: float, guess: float) -> _Least | None:
        """Return the fewest GPUs that keep the bound, None where not even all do; their part of all is a guess."""
        if not self._trial(self._gpus, adoption).keeps:
            return None
        gpus = dict(self._gpus)

        def fewest(pool: Pool, unit: int, low: int, probe: int) -> int:
            def keep(count: int) -> bool:
                return self._trial(gpus | {pool.name: count * unit}, adoption).keeps

            return unit * _first(keep, low, gpus[pool.name] // unit, probe)

        for pool in self._pools:
            gpus[pool.name] = fewest(pool, pool.gpus_per_node, 0, ceil(guess * gpus[pool.name] / pool.gpus_per_node))
        in_nodes = sum(gpus.values())
        for pool in self._pools:
            most, node = gpus[pool.name], pool.gpus_per_node
            if most <= _NODES_IN_PARTS * node:
                gpus[pool.name] = fewest(pool, 1, most - node, most - node // 2)
        return _Least(gpus, in_nodes)

    def growth(self, guess: float) -> float | None:
        """Return by how many times as many jobs all GPUs with sharing no longer keep the bound."""
        most = round((_MOST_GROWTH - 1) / _GROWTH_STEP)

        def breaks(steps: int) -> bool:
            return not self._trial(self._gpus, 1.0, 1 + steps * _GROWTH_STEP).keeps

        steps = _first(breaks, 0, most + 1, ceil((guess - 1) / _GROWTH_STEP))
        return 1 + steps * _GROWTH_STEP if steps <= most else None

    def worth(self, plain: _Least | None, shared: _Least | None) -> Range | None:
        """Return how many GPUs fewer keep the bound with sharing, and where nine of ten draws of weeks have it."""
        if plain is None or shared is None:
            return None
        fewer = [a - b for a, b in zip(self._drawn(0.0), self._drawn(1.0), strict=True)]
        return Range(plain.total - shared.total, *self.weeks.ends(fewer))

    def _drawn(self, adoption: float) -> list[int]:
        """Return of each draw of weeks the fewest of the GPUs tried that keep its bound, as all above them do."""
        trials = sorted(
            ((sum(gpus), trial) for (gpus, by, growth), trial in self._trials.items() if (by, growth) == (adoption, 1)),
            key=lambda tried: -tried[0],
        )
        fewest = [trials[0][0]] * len(self.weeks.draws)
        keeping: Sequence[int] = range(len(fewest))
        for gpus, trial in trials:
            means = [
                (name, self.weeks.means(today), self.weeks.means(then)) for name, (today, then) in trial.sums.items()
            ]
            keeping = [
                draw
                for draw in keeping
                if means and all(then[draw] <= self._bound.of(name, today[draw]) for name, today, then in means)
            ]
            for draw in keeping:
                fewest[draw] = gpus
        return fewest

    def classes(self, shared: _Least | None) -> Iterable[ClassNeed]:
        """Yield the waits of each class, and of all."""
        on_all = self._trial(self._gpus, 1.0, to_end=True).done
        on_need = node_down = None
        on_fewer = on_all
        if shared:
            last = [pool.name for pool in self._pools if shared.gpus[pool.name]][-1]
            on_fewer = self._trial({**shared.gpus, last: shared.gpus[last] - 1}, 1.0, to_end=True).done
            on_need = self._trial(shared.gpus, 1.0, to_end=True).done
            largest = self._pools[0]
            gpus = {**shared.gpus, largest.name: shared.gpus[largest.name] - largest.gpus_per_node}
            node_down = self._trial(gpus, 1.0, to_end=True).done if gpus[largest.name] > 0 else None
        classes = self._classes(self.sharing)
        order = sorted(classes, key=lambda name: CLASSES.index(name.partition(", ")[0]))
        for name in (*order, TOTAL):
            runs = classes.get(name, self.runs)
            today, then = self._waits(runs, self.today), self._waits(runs, on_all)
            if today and then:
                others = (self._waits(runs, done) for done in (on_need, node_down, on_fewer))
                yield ClassNeed(name, len(runs), today, then, *others)

    def _waits(self, runs: Sequence[Run], done: Scenario | None) -> Waits | None:
        if done is None or not (waits := sorted(done.waits(runs))):
            return None
        weeks = [total / count for total, count in self.weeks.sums(runs, done.wait_s) if count]
        return Waits(fmean(waits), waits[len(waits) // 2], waits[int(0.95 * len(waits))], max(weeks))

    def points(self) -> Iterable[Point]:
        """Yield all that was replayed of today's number of jobs."""
        for (gpus, adoption, growth), trial in sorted(self._trials.items()):
            if growth == 1.0:
                waits = trial.done.waits(self.runs) if trial.done else []
                yield Point(sum(gpus), adoption, trial.keeps, fmean(waits) if waits else None)


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

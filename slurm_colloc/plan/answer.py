# SPDX-License-Identifier: Apache-2.0
"""Replays today and the change side by side, with the spread over the window's weeks. Pure functions."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import NamedTuple

from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.errors import InputError
from slurm_colloc.gpu.mig import plain
from slurm_colloc.plan.change import Asked, changed, gpus_of, otherwise, pools_with_whole, whole_gpus
from slurm_colloc.plan.geometry import Cut, alternatives, best_cuts, profiles_of, unlisted
from slurm_colloc.plan.past import CLASSES, PIECES, Past, Run
from slurm_colloc.plan.scenario import TOTAL, Range, Scenario, Weeks, freed_gpu_hours
from slurm_colloc.plan.sharing import Sharing, demand, share
from slurm_colloc.plan.site import Rules, site_of
from slurm_colloc.plan.unreplayed import Unreplayed, unreplayed

# A replay that is off by more recommends nothing.
MOST_ERROR_PCT = 25.0
_COMPARED = 4


class ClassWaits(NamedTuple):
    """Jobs of a class or a partition: how many, what they waited in truth, replayed as today, and in the what-if."""

    name: str
    jobs: int
    measured_mean_s: float
    today_mean_s: Range
    today_median_s: float
    then_mean_s: Range | None
    then_median_s: float | None


class Compared(NamedTuple):
    """A geometry that was replayed: the mean wait of all jobs, and their mean time from submission to end."""

    cuts: tuple[Cut, ...]
    mean_wait_s: float
    mean_turnaround_s: float


class PoolCompared(NamedTuple):
    """The geometries that were replayed of one pool, the best first; no cuts are its GPUs whole.

    ``fitting`` jobs at a time, on average, would fit a slice of one of its ``gpus``.
    """

    pool: str
    gpus: int
    fitting: float
    geometries: tuple[Compared, ...]


class Answer(NamedTuple):
    """All that is said of one question.

    No node holds ``too_large`` jobs today, and ``stranded`` more in the what-if.
    ``error_pct`` is by how much the replay of today misses the mean wait that was, in percent of that; ``bias_pct`` is
    the same in percent of the mean turnaround, negative for too short. ``*_limits`` is what the first of those that
    waited lacked: GPUs, cores or memory, by part of the time. ``load`` is the part of whole GPUs that jobs had, None
    without any. ``could_free_gpu_hours`` is what jobs on pieces would leave to others at the same speed, as a
    report has it, ``freed_gpu_hours`` what they do, slower as they are. ``weeks`` are those of
    the window; the mean wait of all is shorter in the what-if in ``sooner`` of the ``draws`` of them.
    """

    asked: Asked
    since_s: float
    until_s: float
    gpus: int
    gpus_then: int
    jobs: int
    rejected: Mapping[str, int]
    too_large: int
    stranded: int
    load: float | None
    error_pct: float
    bias_pct: float
    classes: tuple[ClassWaits, ...]
    partitions: tuple[ClassWaits, ...]
    sharing: Sharing | None
    freed_gpu_hours: float | None
    could_free_gpu_hours: float | None
    today_limits: Mapping[str, float]
    then_limits: Mapping[str, float]
    compared: tuple[PoolCompared, ...]
    weeks: int
    draws: int
    sooner: int
    unreplayed: Unreplayed | None
    left_out: tuple[str, ...]

    @property
    def recommends(self) -> bool:
        """Return whether the replay of today is near enough to what was."""
        return self.error_pct <= MOST_ERROR_PCT

    @property
    def total(self) -> ClassWaits:
        """Return the figures of all jobs."""
        return self.classes[-1]


def answer(past: Past, config: SiteConfig, rules: Rules, change: Asked, step: Callable[[int, int], None]) -> Answer:
    """Return what the replay says of a what-if.

    Args:
        past: the jobs of the window.
        config: the site as it is.
        rules: Slurm's.
        change: the what-if.
        step: told how many of the two replays are done.

    Raises:
        InputError: there are no jobs, none of them waited, or the what-if is none that this site can have.
    """
    step(0, 2)
    site = site_of(config, rules)
    today = Scenario(past.runs, site)
    step(1, 2)
    runs = comparable(past, today)
    change, compared, why_not = settled(past, config, rules, change, today)
    then, sharing = (None, None) if change.nothing else _replayed(past, config, rules, change)
    weeks = Weeks(past)
    means = [weeks.means(weeks.sums(runs, done.wait_s)) for done in (then, today) if done]
    measured_s, missed_s = missed(runs, today)
    classes: dict[str, list[Run]] = {name: [] for name in CLASSES}
    partitions = defaultdict[str, list[Run]](list)
    for run in runs:
        classes[run.kind].append(run)
        partitions[run.job.partition].append(run)
    assumed = []
    if past.assumed:
        assumed = [f"of {past.assumed} jobs of one GPU the use is assumed (--assume), not measured"]
    return Answer(
        asked=change,
        since_s=past.since_s,
        until_s=past.until_s,
        gpus=gpus_of(config),
        gpus_then=gpus_of(config) + change.gpus,
        jobs=len(past.counted),
        rejected=past.rejected,
        too_large=len(today.never),
        stranded=len(then.never - today.never) if then else 0,
        load=load(past, config),
        error_pct=100 * abs(missed_s) / measured_s,
        bias_pct=100 * missed_s / fmean(run.waited_s + run.job.run_s for run in runs),
        classes=tuple(_waits((classes | {TOTAL: runs}).items(), today, then, weeks)),
        partitions=tuple(_waits(sorted(partitions.items()), today, then, weeks)),
        sharing=sharing,
        freed_gpu_hours=freed_gpu_hours(past, sharing) if sharing else None,
        could_free_gpu_hours=freed_gpu_hours(past, sharing, slower=False) if sharing else None,
        today_limits=today.limits,
        then_limits=then.limits if then else {},
        compared=compared,
        weeks=weeks.count,
        draws=len(weeks.draws),
        sooner=sum(after < before for after, before in zip(means[0], means[-1], strict=True)),
        unreplayed=unreplayed(past, site, today.wait_s, rules.caps),
        left_out=(*assumed, *rules.left_out, *why_not),
    )


def _replayed(past: Past, config: SiteConfig, rules: Rules, change: Asked) -> tuple[Scenario, Sharing | None]:
    """Return what comes of a change, and who shares then."""
    config = changed(config, change)
    sharing = share(past, config, change.adoption) if change.shares else None
    return Scenario(otherwise(past.runs, sharing, change), site_of(config, rules)), sharing


def comparable(past: Past, today: Scenario) -> list[Run]:
    """Return the runs that were submitted in the window and fit the site.

    Raises:
        InputError: there are none, or none of them had to wait.
    """
    if not past.counted:
        why = f" ({len(past.runs) + sum(past.rejected.values())} runs were on then or not usable)" if past.runs else ""
        raise InputError(f"no job with GPUs was submitted in the window{why}; name another by --since and --until")
    runs = [run for run in past.counted if run.job.number in today.wait_s]
    if not runs:
        raise InputError("no job of the window fits any node that site.toml names")
    if fmean(run.waited_s for run in runs) < 1.0:
        raise InputError(
            "no job of the window waited: there is no queue to plan for; name another by --since and --until"
        )
    return runs


def missed(runs: Sequence[Run], today: Scenario) -> tuple[float, float]:
    """Return the mean wait that was, and how much longer the replay of today has it, in seconds."""
    measured_s = fmean(run.waited_s for run in runs)
    return measured_s, fmean(today.waits(runs)) - measured_s


def load(past: Past, config: SiteConfig) -> float | None:
    """Return the part of the whole GPUs' time that runs had inside the window, as it was; None without GPUs."""

    held_s = sum(
        max(0.0, min(run.begun_s + run.job.run_s, past.until_s) - max(run.begun_s, past.since_s))
        * run.job.shape.units_in_all
        for run in past.runs
        if run.kind != PIECES
    )
    gpus = gpus_of(config)
    return held_s / (gpus * past.span_s) if gpus else None


def settled(
    past: Past, config: SiteConfig, rules: Rules, change: Asked, today: Scenario
) -> tuple[Asked, tuple[PoolCompared, ...], tuple[str, ...]]:
    """Return the change with the cuts that it is about, what was compared for it, and why some pools were not."""
    compared, why_not = _compare(past, config, rules, change, today) if change.best_cuts else ((), ())
    if compared:
        change = change._replace(cuts=compared[-1].geometries[0].cuts, best_cuts=False)
    cuts = tuple(_sized(past, config, change))
    tried = [cut for pool in compared for geometry in pool.geometries for cut in geometry.cuts]
    return change._replace(cuts=cuts), compared, (*why_not, *_by_guide(config, (*cuts, *tried)))


def _by_guide(config: SiteConfig, cuts: Sequence[Cut]) -> Iterable[str]:
    """Yield of which slices of these cuts no driver has told the size."""
    for pool in config.pool:
        slices = {plain(name) for cut in cuts if cut.pool == pool.name for name in cut.geometry}
        if names := [name for name in (unlisted(pool) if slices else ()) if name in slices]:
            yield (
                f"pool '{pool.name}': no listing of a driver is known of {', '.join(names)}, so memory and SMs are "
                "their part of the GPU by NVIDIA's guide less what slices lack at most; 'nvidia-smi mig -lgip' on "
                "such a GPU says more"
            )


def _sized(past: Past, config: SiteConfig, change: Asked) -> Iterable[Cut]:
    """Yield the cuts, those of no number of nodes with as many as the demand of the window needs.

    Raises:
        InputError: it needs none.
    """
    uncut = changed(config, change._replace(cuts=()))
    for cut in change.cuts:
        if cut.nodes:
            yield cut
            continue
        pool = next(pool for pool in uncut.pool if pool.name == cut.pool)
        sized = best_cuts(pool, demand(past, pool, profiles_of(pool), uncut), [cut.geometry])
        if not sized:
            raise InputError(
                f"the jobs of the window that are known to fit {'+'.join(cut.geometry)} would not fill one node of "
                f"pool '{cut.pool}'; name a number of nodes, as @1"
            )
        yield from sized


def _compare(
    past: Past, config: SiteConfig, rules: Rules, change: Asked, today: Scenario
) -> tuple[tuple[PoolCompared, ...], tuple[str, ...]]:
    """Replay pool by pool the geometries that serve most of its demand, and none at all, and keep the best.

    Also return why some pools are left out.

    Raises:
        InputError: all of them are: no GPU can be cut, or no job is known to fit a slice.
    """
    change = change._replace(best_cuts=False)
    uncut = changed(config, change)
    chosen: tuple[Cut, ...] = ()
    pools, why_not = [], []
    for pool in pools_with_whole(uncut):
        try:
            jobs_at_once = demand(past, pool, profiles_of(pool), uncut)
        except InputError as error:
            why_not.append(str(error))
            continue
        if not jobs_at_once:
            why_not.append(
                f"no job of pool '{pool.name}' is known to fit a slice: of jobs of one GPU the memory peak and the SM "
                "activity must have been measured, which 'colloc report' says of how many they were"
            )
            continue
        compared = []
        for cuts in ([], *alternatives(pool, jobs_at_once, _COMPARED)):
            question = change._replace(cuts=(*chosen, *cuts))
            done, _ = _replayed(past, config, rules, question)
            if len(done.never) <= len(today.never):  # a geometry that leaves nothing for some jobs is none
                means = fmean(done.waits(past.counted)), fmean(done.turnarounds(past.counted))
                compared.append(Compared(question.cuts, *means))
        compared.sort(key=lambda geometry: geometry.mean_turnaround_s)
        chosen = compared[0].cuts
        pools.append(PoolCompared(pool.name, whole_gpus(pool), sum(jobs_at_once.values()), tuple(compared)))
    if not pools:
        raise InputError(why_not[0])
    return tuple(pools), tuple(why_not)


def _waits(
    groups: Iterable[tuple[str, Sequence[Run]]], today: Scenario, then: Scenario | None, weeks: Weeks
) -> Iterable[ClassWaits]:
    for name, runs in groups:
        if not runs:
            continue
        after = then.waits(runs) if then else []
        yield ClassWaits(
            name,
            len(runs),
            fmean(run.waited_s for run in runs),
            weeks.range_of(runs, today.wait_s),
            median(today.waits(runs)),
            weeks.range_of(runs, then.wait_s) if then and after else None,
            median(after) if after else None,
        )

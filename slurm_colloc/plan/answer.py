# SPDX-License-Identifier: Apache-2.0
"""Replays today and the change side by side, with the spread over the window's weeks. Pure functions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import fmean, median
from typing import NamedTuple

from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.errors import InputError
from slurm_colloc.gpu.mig import plain
from slurm_colloc.plan.change import Asked, changed, gpus_of, otherwise, pools_with_whole
from slurm_colloc.plan.geometry import Cut, alternatives, best_cuts, profiles_of, unlisted
from slurm_colloc.plan.past import CLASSES, Past, Run
from slurm_colloc.plan.scenario import PARTITION, TOTAL, Range, Scenario, Weeks, freed_gpu_hours, groups_of
from slurm_colloc.plan.sharing import Sharing, demand, share
from slurm_colloc.plan.site import Rules, site_of
from slurm_colloc.slurm.hostlist import expand

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
    """A geometry that was replayed: what all jobs waited, and how long they took from submission to end, on average."""

    cuts: tuple[Cut, ...]
    mean_wait_s: float
    mean_turnaround_s: float


class PoolCompared(NamedTuple):
    """The geometries that were replayed of one pool, the best first; no cuts are its GPUs whole.

    So many jobs at a time, on average, would fit a slice of one of its ``gpus``.
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
    where there are none. ``could_free_gpu_hours`` is what jobs on pieces would leave to others at the same speed, as a
    report has it, and ``freed_gpu_hours`` what they do, slower as they are. ``weeks`` are those of the window, and
    ``sooner`` in how many of the ``draws`` of them the mean wait of all is shorter in the what-if.
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
    freed_gpu_hours: Range | None
    could_free_gpu_hours: float | None
    today_limits: Mapping[str, float]
    then_limits: Mapping[str, float]
    compared: tuple[PoolCompared, ...]
    weeks: int
    draws: int
    sooner: int
    left_out: tuple[str, ...]

    @property
    def recommends(self) -> bool:
        """Return whether the replay of today is near enough to what was."""
        return self.error_pct <= MOST_ERROR_PCT

    @property
    def total(self) -> ClassWaits:
        """Return the figures of all jobs."""
        return self.classes[-1]


def answer(past: Past, config: SiteConfig, rules: Rules, asked: Asked, step: Callable[[int, int], None]) -> Answer:
    """Return what the replay says of a what-if.

    Args:
        past: the jobs of the window.
        config: the site as it is.
        rules: Slurm's.
        asked: what is to be otherwise.
        step: told how many of the two replays are done.

    Raises:
        InputError: there are no jobs, none of them waited, or the what-if is none that this site can have.
    """
    site = site_of(config, rules)
    step(0, 2)
    today = Scenario(past.runs, site)
    step(1, 2)
    counted = [run for run in past.runs if run.counted]
    known = comparable(past, counted, today)
    asked, compared, why_not = settled(past, config, rules, asked, today)
    then_config = changed(config, asked)
    then_site = site_of(then_config, rules)
    sharing = share(past, then_config, asked.adoption) if asked.shares else None
    then = None if asked.nothing else Scenario(otherwise(past.runs, sharing, asked), then_site)
    weeks = Weeks(past)
    means = [weeks.means(weeks.sums(known, one.wait_s)) for one in (then, today) if one]
    measured_s = fmean(run.waited_s for run in known)
    missed_s = fmean(today.waits(known)) - measured_s
    partitions = sorted({run.job.partition for run in known})
    assumed = [f"of {past.assumed} jobs of one GPU the use is assumed (--assume), not measured"] * bool(past.assumed)
    whole_s = sum(held_s(run, past) for run in past.runs)
    return Answer(
        asked=asked,
        since_s=past.since_s,
        until_s=past.until_s,
        gpus=gpus_of(config),
        gpus_then=gpus_of(config) + asked.gpus,
        jobs=len(counted),
        rejected=past.rejected,
        too_large=len(today.never),
        stranded=len(then.never - today.never) if then else 0,
        load=whole_s / (gpus_of(config) * (past.until_s - past.since_s)) if gpus_of(config) else None,
        error_pct=100 * abs(missed_s) / measured_s,
        bias_pct=100 * missed_s / fmean(run.waited_s + run.job.run_s for run in known),
        classes=tuple(_waits((*CLASSES, TOTAL), known, today, then, weeks)),
        partitions=tuple(_waits([PARTITION + name for name in partitions], known, today, then, weeks)),
        sharing=sharing,
        freed_gpu_hours=_freed(counted, sharing, weeks) if sharing else None,
        could_free_gpu_hours=sum(freed_gpu_hours(counted, sharing, slower=False).values()) if sharing else None,
        today_limits=today.limits,
        then_limits=then.limits if then else {},
        compared=compared,
        weeks=weeks.count,
        draws=len(weeks.draws),
        sooner=sum(after < before for after, before in zip(means[0], means[-1], strict=True)),
        left_out=(*assumed, *rules.left_out, *why_not),
    )


def comparable(past: Past, counted: Sequence[Run], today: Scenario) -> list[Run]:
    """Return the runs that were submitted in the window and fit the site.

    Raises:
        InputError: there are none, or none of them had to wait.
    """
    if not counted:
        why = f" ({len(past.runs) + sum(past.rejected.values())} runs were on then or not usable)" if past.runs else ""
        raise InputError(f"no job with GPUs was submitted in the window{why}; name another by --since and --until")
    known = [run for run in counted if run.job.number in today.wait_s]
    if not known:
        raise InputError("no job of the window fits any node that site.toml names")
    if fmean(run.waited_s for run in known) < 1.0:
        raise InputError(
            "no job of the window waited: there is no queue to plan for; name another by --since and --until"
        )
    return known


def settled(
    past: Past, config: SiteConfig, rules: Rules, asked: Asked, today: Scenario
) -> tuple[Asked, tuple[PoolCompared, ...], tuple[str, ...]]:
    """Return the question with the cuts that it is about, what was compared for it, and why some pools were not."""
    compared: tuple[PoolCompared, ...] = ()
    why_not: tuple[str, ...] = ()
    if asked.best_cuts:
        compared, why_not = _compare(past, config, rules, asked, today)
        asked = asked._replace(cuts=compared[-1].geometries[0].cuts, best_cuts=False)
    cuts = tuple(_sized(past, config, asked))
    others = [cut for pool in compared for one in pool.geometries for cut in one.cuts]
    return asked._replace(cuts=cuts), compared, (*why_not, *_by_guide(config, (*cuts, *others)))


def _by_guide(config: SiteConfig, cuts: Sequence[Cut]) -> Iterable[str]:
    """Yield of which slices of these cuts no driver has told the size."""
    for pool in config.pool:
        cut = {plain(name) for one in cuts if one.pool == pool.name for name in one.geometry}
        if names := [name for name in (unlisted(pool) if cut else ()) if name in cut]:
            yield (
                f"pool '{pool.name}': no listing of a driver is known of {', '.join(names)}, so memory and SMs are "
                "their part of the GPU by NVIDIA's guide less what slices lack at most; 'nvidia-smi mig -lgip' on "
                "such a GPU says more"
            )


def held_s(run: Run, past: Past) -> float:
    """Return the seconds of whole GPUs that a run had inside the window, as it was."""
    begun_s = run.job.submit_s + (run.waited_s if run.counted else 0.0)
    inside_s = min(begun_s + run.job.run_s, past.until_s) - max(begun_s, past.since_s)
    return max(0.0, inside_s) * run.job.shape.units * run.job.shape.nodes if run.kind != CLASSES[0] else 0.0


def _sized(past: Past, config: SiteConfig, asked: Asked) -> Iterable[Cut]:
    """Yield the cuts, those of no number of nodes with as many as the demand of the window needs.

    Raises:
        InputError: it needs none.
    """
    here = changed(config, asked._replace(cuts=()))
    for cut in asked.cuts:
        if cut.nodes:
            yield cut
            continue
        pool = next(pool for pool in here.pool if pool.name == cut.pool)
        found = best_cuts(pool, demand(past, pool, profiles_of(pool), here), [cut.geometry])
        if not found:
            raise InputError(
                f"the jobs of the window that are known to fit {'+'.join(cut.geometry)} would not fill one node of "
                f"pool '{cut.pool}'; name a number of nodes, as @1"
            )
        yield from found


def _compare(
    past: Past, config: SiteConfig, rules: Rules, asked: Asked, today: Scenario
) -> tuple[tuple[PoolCompared, ...], tuple[str, ...]]:
    """Replay pool by pool the geometries that serve most of its demand, and none at all, and keep the best.

    Also return why some pools are left out.

    Raises:
        InputError: all of them are: no GPU can be cut, or no job is known to fit a slice.
    """
    here = changed(config, asked._replace(best_cuts=False))
    counted = [run for run in past.runs if run.counted]
    chosen: tuple[Cut, ...] = ()
    found, why_not = [], []
    for pool in pools_with_whole(here):
        try:
            wanted = demand(past, pool, profiles_of(pool), here)
        except InputError as error:
            why_not.append(str(error))
            continue
        if not wanted:
            why_not.append(
                f"no job of pool '{pool.name}' is known to fit a slice: of jobs of one GPU the memory peak and the SM "
                "activity must have been measured, which 'colloc report' says of how many they were"
            )
            continue
        compared = []
        for cuts in ([], *alternatives(pool, wanted, _COMPARED)):
            question = asked._replace(best_cuts=False, cuts=(*chosen, *cuts))
            cut = changed(config, question)
            sharing = share(past, cut, asked.adoption) if question.shares else None
            done = Scenario(otherwise(past.runs, sharing, question), site_of(cut, rules))
            if len(done.never) > len(today.never):  # a geometry that leaves nothing for some jobs is none
                continue
            compared.append(Compared(question.cuts, fmean(done.waits(counted)), fmean(done.turnarounds(counted))))
        compared.sort(key=lambda one: one.mean_turnaround_s)
        chosen = compared[0].cuts
        gpus = pool.gpus_per_node * len(expand(pool.nodes))
        found.append(PoolCompared(pool.name, gpus, sum(wanted.values()), tuple(compared)))
    if not found:
        raise InputError(why_not[0] if why_not else "site.toml has no pool with whole GPUs to plan for")
    return tuple(found), tuple(why_not)


def _freed(runs: Sequence[Run], sharing: Sharing, weeks: Weeks) -> Range:
    """Return the GPU-hours that runs on pieces hold less, in the window and in draws of as many weeks."""
    by_run = freed_gpu_hours(runs, sharing)
    by_week = [(one, 1) for one, _ in weeks.sums(runs, by_run)]
    return Range(sum(by_run.values()), *weeks.ends([mean * weeks.count for mean in weeks.means(by_week)]))


def _waits(
    groups: Iterable[str], known: Sequence[Run], today: Scenario, then: Scenario | None, weeks: Weeks
) -> Iterable[ClassWaits]:
    for name in groups:
        runs = [run for run in known if name in groups_of(run)]
        if not runs:
            continue
        before, after = today.waits(runs), then.waits(runs) if then else []
        yield ClassWaits(
            name.removeprefix(PARTITION),
            len(runs),
            fmean(run.waited_s for run in runs),
            weeks.range_of(runs, today.wait_s),
            median(before),
            weeks.range_of(runs, then.wait_s) if then and after else None,
            median(after) if after else None,
        )

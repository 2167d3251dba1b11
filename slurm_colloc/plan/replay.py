# SPDX-License-Identifier: Apache-2.0
"""Slurm's queue, replayed: jobs in the order of their priority, and backfill behind the first that has to wait.

As slurm.conf(5) and sched_config describe it, and as tests/recorded/plan saw it on real clusters. The main scheduler
starts jobs strictly in order, and a job that has to wait ends that for its partition. Backfill looks at
bf_max_job_test of them each bf_interval, by time limits: for one that has to wait it keeps its nodes, whole, from the
time when it could start, so that a later one may use them only if it is over by then.

Left out: reservations, preemption, licenses, limits of associations and QOS, what waits for other jobs or for a time,
arrays' own limits, nodes that were down.
"""

from bisect import bisect_right, insort
from collections.abc import Iterable, Mapping, Sequence
from heapq import heappop, heappush
from math import floor, inf

from slurm_colloc.plan.model import Job, Replayed, Shape, Site, Started
from slurm_colloc.plan.nodes import NOW, Node, Ranked
from slurm_colloc.plan.priority import Ordering

# So often in all it is looked at what the first in the queue lacks.
_LOOKS = 2000


def replay(site: Site, jobs: Iterable[Job]) -> Replayed:
    """Return when each job would have started, by this site's configuration.

    Args:
        site: nodes and rules.
        jobs: in any order; their numbers are different.
    """
    return _Replay(site, sorted(jobs, key=lambda job: (job.submit_s, job.number))).run()


class _Replay:
    def __init__(self, site: Site, jobs: list[Job]) -> None:
        self._rules = site.scheduler
        self._jobs = jobs
        self._nodes = [Node(kind) for kind in site.nodes]
        self._within: dict[str, list[int]] = {}
        for index, kind in enumerate(site.nodes):
            for name in kind.partitions:
                self._within.setdefault(name, []).append(index)
        self._ranked: dict[tuple[str, Shape], Ranked] = {}
        self._of_node: list[list[set[int]]] = [[] for _ in self._nodes]
        self._ordering = Ordering(site.priority, jobs, len(self._nodes), sum(kind.cpus for kind in site.nodes))
        # (minus priority, submitted, number, job), the first first.
        self._waiting: list[tuple[float, float, int, Job]] = []
        self._waiting_of: dict[tuple[str, Shape], int] = {}
        self._ends: list[tuple[float, int, Started, tuple[int, ...], float]] = []
        self._started: list[Started] = []
        self._lacked: dict[str, int] = {}
        self._look_s = -inf
        self._look_each_s = (jobs[-1].submit_s - jobs[0].submit_s) / _LOOKS if jobs else inf
        self._never: list[Job] = []

    def run(self) -> Replayed:
        """Go from event to event until nothing runs or waits."""
        next_job, backfill_s, each_s = 0, inf, self._rules.bf_interval_s
        while next_job < len(self._jobs) or self._ends or self._waiting:
            at_s = min(
                self._jobs[next_job].submit_s if next_job < len(self._jobs) else inf,
                self._ends[0][0] if self._ends else inf,
                backfill_s,
            )
            if at_s == inf:  # nothing runs, and what waits can never start
                self._never += [entry[3] for entry in self._waiting]
                break
            events = False
            while self._ends and self._ends[0][0] <= at_s:
                self._end(at_s)
                events = True
            if self._ordering.due(at_s):
                self._waiting = sorted(self._entry(entry[3], at_s) for entry in self._waiting)
                events = True
            while next_job < len(self._jobs) and self._jobs[next_job].submit_s <= at_s:
                self._submit(self._jobs[next_job], at_s)
                next_job, events = next_job + 1, True
            if at_s >= backfill_s:
                backfill_s = inf
                if self._waiting:
                    self._backfill(at_s)
            if events:
                self._in_order(at_s)
                if self._rules.backfill and self._waiting and backfill_s == inf:
                    # It comes round whatever happens, not when something does.
                    backfill_s = (at_s // each_s + 1) * each_s
        total = sum(self._lacked.values())
        limits = {name: number / total for name, number in sorted(self._lacked.items())}
        return Replayed(tuple(self._started), tuple(self._never), limits)

    def _entry(self, job: Job, at_s: float) -> tuple[float, float, int, Job]:
        return (-self._ordering.of(job, at_s), job.submit_s, job.number, job)

    def _submit(self, job: Job, at_s: float) -> None:
        key = job.partition, job.shape
        if key not in self._ranked:
            ranked = Ranked(job.shape, self._nodes, self._within.get(job.partition, ()))
            self._ranked[key] = ranked
            for index in self._within.get(job.partition, ()):
                self._of_node[index].append(ranked.changed)
        if sum(at_s < inf for at_s, _, _ in self._ranked[key].order()) < job.shape.nodes:
            self._never.append(job)
            return
        insort(self._waiting, self._entry(job, at_s))
        self._waiting_of[key] = self._waiting_of.get(key, 0) + 1

    def _start(self, job: Job, nodes: tuple[int, ...], at_s: float) -> None:
        run_s = min(job.run_s, job.limit_s)
        limit_s = at_s + job.limit_s
        for index in nodes:
            self._nodes[index].take(job.number, job.shape, limit_s)
            self._touch(index)
        started = Started(job, at_s, at_s + run_s, nodes[0])
        self._started.append(started)
        heappush(self._ends, (started.end_s, job.number, started, nodes, limit_s))
        self._ordering.begins(job, at_s)
        self._waiting_of[job.partition, job.shape] -= 1

    def _end(self, at_s: float) -> None:
        _, number, started, nodes, limit_s = heappop(self._ends)
        for index in nodes:
            self._nodes[index].give_back(number, started.job.shape, limit_s)
            self._touch(index)
        self._ordering.ends(started.job, at_s)

    def _touch(self, index: int) -> None:
        for changed in self._of_node[index]:
            changed.add(index)

    def _in_order(self, at_s: float) -> None:
        """Start jobs by priority, in each partition up to the first that has to wait."""
        blocked: set[str] = set()
        started: set[int] = set()
        for _, _, number, job in self._waiting:
            if job.partition in blocked:
                if len(blocked) == len(self._within):
                    break
                continue
            free = self._ranked[job.partition, job.shape].order()[: job.shape.nodes]
            if len(free) == job.shape.nodes and free[-1][0] == NOW:
                self._start(job, tuple(index for _, _, index in free), at_s)
                started.add(number)
            else:
                if not blocked and at_s >= self._look_s:
                    self._look(job, at_s)
                blocked.add(job.partition)
        self._leave(started)

    def _look(self, job: Job, at_s: float) -> None:
        """Count what a job lacks that waits with nobody before it."""
        self._look_s = at_s + self._look_each_s
        bare = job.shape._replace(cpus=0, mem_mib=0)
        nodes = [self._nodes[index] for index in self._within[job.partition]]
        lacked = "GPUs"
        if sum(node.fits(bare) for node in nodes) >= job.shape.nodes:
            with_cores = sum(node.fits(bare._replace(cpus=job.shape.cpus)) for node in nodes)
            lacked = "memory" if with_cores >= job.shape.nodes else "cores"
        self._lacked[lacked] = self._lacked.get(lacked, 0) + 1

    def _leave(self, started: set[int]) -> None:
        if started:
            self._waiting = [entry for entry in self._waiting if entry[2] not in started]

    def _backfill(self, at_s: float) -> None:
        ahead = self._waiting[: self._rules.bf_max_job_test]
        chances = _Chances(ahead, self._ranked)
        # Of each node that is kept for a job: from when, and until when.
        kept: dict[int, tuple[float, float]] = {}
        started: set[int] = set()
        if not chances.left(0, at_s, kept):
            return
        for place, (_, _, number, job) in enumerate(ahead):
            start_s, nodes = self._first_start(job, at_s, kept)
            if start_s <= at_s:
                self._start(job, nodes, at_s)
                started.add(number)
                fewer = True
            else:
                fewer = start_s < at_s + self._rules.bf_window_s and self._keep(job, start_s, nodes, kept)
            if fewer and not chances.left(place + 1, at_s, kept):
                break
        self._leave(started)

    def _keep(self, job: Job, start_s: float, nodes: tuple[int, ...], kept: dict[int, tuple[float, float]]) -> bool:
        """Keep nodes for a job; return whether that is sooner than they were kept already."""
        grain_s = self._rules.bf_resolution_s
        from_s = floor(start_s / grain_s) * grain_s
        until_s = -floor(-(start_s + job.limit_s) / grain_s) * grain_s
        sooner = False
        for index in nodes:
            first_s, last_s = kept.get(index, (inf, -inf))
            sooner = sooner or from_s < first_s
            kept[index] = (min(first_s, from_s), max(last_s, until_s))
        return sooner

    def _first_start(
        self, job: Job, at_s: float, kept: dict[int, tuple[float, float]]
    ) -> tuple[float, tuple[int, ...]]:
        """Return when a job could start beside what is kept for others, and on which nodes."""
        wanted, limit_s = job.shape.nodes, job.limit_s
        order = self._ranked[job.partition, job.shape].order()
        found: list[tuple[float, int]] = []
        most_s, best = inf, -1
        for fits_s, _, index in order:
            if fits_s >= most_s:
                break
            # What is over its limit and not gone yet ends any moment, but has not.
            start_s = at_s if fits_s == NOW else fits_s if fits_s > at_s else at_s + 1
            if index in kept:
                first_s, last_s = kept[index]
                if start_s < last_s and start_s + limit_s > first_s:
                    start_s = last_s
            if start_s >= most_s:
                continue
            if wanted == 1:
                most_s, best = start_s, index
                if start_s <= at_s:
                    break
            else:
                insort(found, (start_s, index))
                if len(found) >= wanted:
                    del found[wanted:]
                    most_s = found[-1][0]
        if wanted == 1:
            return most_s, (best,)
        return most_s, tuple(index for _, index in found)


class _Chances:
    """Which of those that backfill looks at could start at once: where none can, looking further changes nothing."""

    def __init__(
        self, ahead: Sequence[tuple[float, float, int, Job]], ranked: Mapping[tuple[str, Shape], Ranked]
    ) -> None:
        # By what is asked for: at which places, and the least time limit from there on.
        self._limits: dict[tuple[str, Shape], tuple[list[int], list[float]]] = {}
        self._ranked = ranked
        free: dict[tuple[str, Shape], bool] = {}
        for place in range(len(ahead) - 1, -1, -1):
            job = ahead[place][3]
            key = job.partition, job.shape
            if key not in free:
                free[key] = ranked[key].free_now
            if not free[key]:
                continue
            # From the last place to the first.
            places, limits = self._limits.setdefault(key, ([], []))
            places.append(-place)
            limits.append(min(job.limit_s, limits[-1]) if limits else job.limit_s)

    def left(self, place: int, at_s: float, kept: Mapping[int, tuple[float, float]]) -> bool:
        """Return whether one from this place on may find a node that has room now and is not kept too soon."""
        for key, (places, limits) in self._limits.items():
            at = bisect_right(places, -place) - 1
            if at < 0:
                continue
            over_s = at_s + limits[at]
            for fits_s, _, index in self._ranked[key].order():
                if fits_s != NOW:
                    break
                if index not in kept or over_s <= kept[index][0]:
                    return True
        return False

# SPDX-License-Identifier: Apache-2.0
"""Slurm's queue, replayed: jobs in the order of their priority, and backfill behind the first that has to wait.

As slurm.conf(5) and sched_config describe it, and as tests/recorded/plan saw it on real clusters. The main scheduler
starts jobs strictly in order, and a job that has to wait ends that for its partition. Backfill looks at
bf_max_job_test of them each bf_interval, by time limits: for one that has to wait it keeps its nodes, whole, from the
time when it could start, so that a later one may use them only if it is over by then.

Left out: reservations, preemption, licenses, limits of associations and QOS, nodes that were down.
"""

from bisect import bisect_left, bisect_right, insort
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from itertools import chain, islice
from math import inf

from slurm_colloc.plan.model import Job, Replayed, Shape, Site, Started
from slurm_colloc.plan.nodes import NOW, Kept, Node, Ranked, chosen
from slurm_colloc.plan.priority import Ordering

# One that waits: minus its priority, when it was submitted, its number, itself, and the nodes as they are for it.
_Entry = tuple[float, float, int, Job, Ranked]
# The first in the queue is asked so often in all what it lacks.
_LOOKS = 2000
# The first of the times within which Slurm looks at the ends of running jobs together.
_FIRST_SPAN_S = 30.0
# Jobs further behind in the queue are looked at less closely, and not put between others.
_IN_SPANS = 20


def replay(site: Site, jobs: Iterable[Job], enough: Callable[[Started], bool] | None = None) -> Replayed:
    """Return when each job would have started, by this site's configuration.

    Args:
        site: nodes and rules.
        jobs: in any order; their numbers are different.
        enough: told of each start; the answer ends with the one for which it returns True.
    """
    return _Replay(site, sorted(jobs, key=lambda job: (-job.submit_s, -job.number)), enough).run()


class _Replay:
    def __init__(self, site: Site, jobs: list[Job], enough: Callable[[Started], bool] | None) -> None:
        self._enough, self._over, self._rules = enough, False, site.scheduler
        # The last first.
        self._jobs = jobs
        self._nodes = [Node(kind) for kind in site.nodes]
        self._partitions = [kind.partitions for kind in site.nodes]
        self._one_user = site.one_user
        # The users whose jobs run on each node, and whether they keep all others away.
        self._users = [Counter[tuple[str, bool]]() for _ in site.nodes]
        self._within: dict[str, list[int]] = {}
        for index, kind in enumerate(site.nodes):
            for name in kind.partitions:
                self._within.setdefault(name, []).append(index)
        # None is of jobs that no node can ever hold.
        self._ranked: dict[tuple[str, Shape], Ranked | None] = {}
        self._of_node: list[list[set[int]]] = [[] for _ in self._nodes]
        # Jobs that run on the nodes of each partition: (latest end, number, node), in order.
        self._running: dict[str, list[tuple[float, int, int]]] = {name: [] for name in self._within}
        self._ordering = Ordering(site.priority, jobs, len(self._nodes), sum(kind.cpus for kind in site.nodes))
        # The first first.
        self._waiting: list[_Entry] = []
        self._ends: list[tuple[float, int, Started, tuple[int, ...], float]] = []
        self._started: list[Started] = []
        self._lacked = Counter[str]()
        self._look_s = -inf
        self._look_each_s = (jobs[0].submit_s - jobs[-1].submit_s) / _LOOKS if jobs else inf
        # The tasks of each array with a throttle that wait or run, and those that it holds.
        self._at_once: Counter[str] = Counter()
        self._throttled: dict[str, deque[Job]] = {}
        self._never: list[Job] = []

    def run(self) -> Replayed:
        """Go from event to event until nothing runs or waits."""
        backfill_s, each_s = inf, self._rules.bf_interval_s
        # When those submitted are looked at, and when that was last.
        look_s, looked_s, delay_s = inf, -inf, self._rules.batch_sched_delay_s
        while (self._jobs or self._ends or self._waiting) and not self._over:
            submit_s = self._jobs[-1].submit_s if self._jobs else inf
            at_s = min(submit_s, self._ends[0][0] if self._ends else inf, backfill_s, look_s)
            if at_s == inf:  # nothing runs, and what waits can never start
                self._never += [entry[3] for entry in self._waiting]
                self._never += chain.from_iterable(self._throttled.values())
                break
            events = False
            while self._ends and self._ends[0][0] <= at_s:
                self._end(at_s)
                events = True
            if self._ordering.due(at_s):
                self._waiting = sorted(self._entry(job, ranked, at_s) for *_, job, ranked in self._waiting)
                events = True
            while self._jobs and self._jobs[-1].submit_s <= at_s:
                self._submit(self._jobs.pop(), at_s)
                look_s = min(look_s, max(at_s, looked_s + delay_s))
            if at_s >= look_s:
                look_s, looked_s, events = inf, at_s, True
            if at_s >= backfill_s:
                backfill_s = inf
                if self._waiting:
                    self._backfill(at_s)
            if events:
                self._in_order(at_s)
            if self._rules.backfill and self._waiting and backfill_s == inf and (events or look_s < inf):
                # It comes round whatever happens, not when something does.
                backfill_s = (at_s // each_s + 1) * each_s
        limits = {name: number / self._lacked.total() for name, number in sorted(self._lacked.items())}
        return Replayed(tuple(self._started), tuple(self._never), limits)

    def _entry(self, job: Job, ranked: Ranked, at_s: float) -> _Entry:
        return (-self._ordering.of(job, at_s), job.submit_s, job.number, job, ranked)

    def _submit(self, job: Job, at_s: float) -> None:
        key = job.partition, job.shape
        if key not in self._ranked:
            which = self._within.get(job.partition, ())
            nodes = Ranked(job.shape, self._nodes, which)
            for index in which:
                self._of_node[index].append(nodes.changed)
            possible = sum(fits_s < inf for fits_s, _ in nodes.order()) >= job.shape.nodes
            self._ranked[key] = nodes if possible else None
        ranked = self._ranked[key]
        if ranked is None:
            self._never.append(job)
            return
        if job.at_once:
            if self._at_once[job.array] >= job.at_once:
                self._throttled.setdefault(job.array, deque()).append(job)
                return
            self._at_once[job.array] += 1
        insort(self._waiting, self._entry(job, ranked, at_s))

    def _start(self, job: Job, nodes: tuple[int, ...], at_s: float) -> None:
        run_s = min(job.run_s, job.limit_s)
        limit_s = at_s + job.limit_s
        for index in nodes:
            self._nodes[index].take(job.number, job.shape, limit_s)
            self._touch(index)
            self._users[index][job.user, job.partition in self._one_user] += 1
            for name in self._partitions[index]:
                insort(self._running[name], (limit_s, job.number, index))
        started = Started(job, at_s, at_s + run_s, nodes[0])
        self._started.append(started)
        if self._enough and self._enough(started):
            self._over = True
        heappush(self._ends, (started.end_s, job.number, started, nodes, limit_s))
        self._ordering.uses(job, at_s, begins=True)

    def _end(self, at_s: float) -> None:
        _, number, started, nodes, limit_s = heappop(self._ends)
        for index in nodes:
            self._nodes[index].give_back(number, started.job.shape, limit_s)
            self._touch(index)
            self._users[index][started.job.user, started.job.partition in self._one_user] -= 1
            for name in self._partitions[index]:
                del self._running[name][bisect_left(self._running[name], (limit_s, number, index))]
        self._ordering.uses(started.job, at_s, begins=False)
        if started.job.at_once:
            self._at_once[started.job.array] -= 1
            if held := self._throttled.get(started.job.array):
                self._submit(held.popleft()._replace(submit_s=at_s), at_s)

    def _closed(self, job: Job) -> set[int]:
        """Return the nodes on which ExclusiveUser lets a job not start now."""
        alone = job.partition in self._one_user
        return {
            index
            for index in (self._within[job.partition] if self._one_user else ())
            for (user, keeps_away), jobs in self._users[index].items()
            if jobs and user != job.user and (alone or keeps_away)
        }

    def _touch(self, index: int) -> None:
        for changed in self._of_node[index]:
            changed.add(index)

    def _in_order(self, at_s: float) -> None:
        """Start jobs by priority; the first of a partition that has to wait ends that for the partition's nodes."""
        blocked: set[str] = set()
        nodes: set[int] = set()
        started: set[int] = set()
        for _, _, number, job, ranked in self._waiting:
            if job.partition in blocked:
                continue
            free = ranked.now(nodes | self._closed(job))
            if len(free) >= job.shape.nodes:
                self._start(job, chosen(free, job.shape.nodes), at_s)
                started.add(number)
                continue
            if not blocked and at_s >= self._look_s:
                self._look(job, at_s)
            blocked.add(job.partition)
            nodes.update(self._within[job.partition])
            if len(nodes) == len(self._nodes):
                break
        self._leave(started)

    def _look(self, job: Job, at_s: float) -> None:
        """Count what a job lacks that waits with nobody before it."""
        self._look_s = at_s + self._look_each_s

        def fits(shape: Shape) -> bool:
            nodes = (self._nodes[index] for index in self._within[job.partition])
            return sum(node.earliest(shape) == NOW for node in nodes) >= shape.nodes

        lacked = "GPUs"
        if fits(job.shape._replace(cpus=0, mem_mib=0)):
            lacked = "memory" if fits(job.shape._replace(mem_mib=0)) else "cores"
        self._lacked[lacked] += 1

    def _leave(self, started: set[int]) -> None:
        if started:
            self._waiting = [entry for entry in self._waiting if entry[2] not in started]

    def _backfill(self, at_s: float) -> None:
        ahead = self._waiting[: self._rules.bf_max_job_test]
        chances = _Chances(ahead)
        kept = Kept(self._rules, len(self._nodes))
        started: set[int] = set()
        if not chances.left(0, at_s, kept):
            return
        for place, (_, _, number, job, ranked) in enumerate(ahead):
            start_s, nodes = self._first_start(job, ranked, at_s, kept, in_spans=place < _IN_SPANS)
            if start_s <= at_s:
                self._start(job, nodes, at_s)
                started.add(number)
                fewer = True
            else:
                fewer = start_s <= at_s + self._rules.bf_window_s and kept.keep(nodes, start_s, job.limit_s)
            if fewer and not chances.left(place + 1, at_s, kept):
                break
        self._leave(started)

    def _first_start(
        self, job: Job, ranked: Ranked, at_s: float, kept: Kept, *, in_spans: bool
    ) -> tuple[float, tuple[int, ...]]:
        """Return when a job could start beside what is kept for others, and on which nodes.

        Slurm tries from now on, and then from each end of what is kept; those before the soonest start that can be
        lead to none.
        """
        wanted, order, closed = job.shape.nodes, ranked.order(), self._closed(job)
        if closed:  # for as long as backfill looks ahead: it does not ask when others end
            order = [one for one in order if one[1] not in closed]
        first, last, limit_s = kept.first, kept.last, job.limit_s
        soonest, soonest_s = [(inf, -1)] * wanted, inf
        for fits_s, index in order:
            if fits_s >= soonest_s:
                break
            free_s = fits_s if fits_s > at_s else at_s
            if free_s < last[index] and free_s + limit_s >= first[index]:
                free_s = kept.free_from(index, free_s, limit_s) if in_spans else last[index]
            if free_s < soonest_s:
                if wanted == 1:
                    soonest, soonest_s = [(free_s, index)], free_s
                    continue
                insort(soonest, (free_s, index))
                soonest.pop()
                soonest_s = soonest[-1][0]
        if soonest_s == inf:
            return inf, ()
        if soonest_s == at_s:
            taken = kept.between(at_s, at_s + job.limit_s) | closed
            return at_s, chosen(ranked.now(taken), wanted)
        if not in_spans:
            return soonest_s, tuple(index for _, index in soonest)
        from_s = max(at_s, kept.end_before(soonest_s))
        while True:
            start_s, nodes = self._will_run(job, order, at_s, from_s, kept, closed)
            later_s = kept.end_after(from_s)
            if start_s <= later_s and not kept.overlap(nodes, start_s, job.limit_s):
                return start_s, nodes
            later_s = min(start_s, later_s)
            from_s = later_s if later_s > from_s else from_s + self._rules.bf_resolution_s

    def _will_run(
        self, job: Job, order: Sequence[tuple[float, int]], at_s: float, from_s: float, kept: Kept, closed: set[int]
    ) -> tuple[float, tuple[int, ...]]:
        """Return when a job that has to wait could start, on nodes not kept meanwhile, if all run to their limits.

        Slurm looks only after all have ended that end within 30 s of the first, then within 60, 120, 240 s and so on
        (bf_window_linear in slurm.conf(5)), and expects the start at the last end that it looked at.
        """
        wanted, new = job.shape.nodes, not self._rules.before_24_11
        taken = kept.between(from_s, from_s + job.limit_s) | closed

        def fitting(until_s: float) -> list[int]:
            return [index for _, index in order[: bisect_right(order, (until_s, inf))] if index not in taken]

        known_s = NOW
        if from_s > at_s:
            known_s = from_s if new else NOW
            free = fitting(known_s)
            if len(free) >= wanted:
                return from_s, chosen(sorted(free), wanted)
        fits_s = next(islice((fits_s for fits_s, index in order if index not in taken), wanted - 1, None), inf)
        if fits_s == inf:
            return inf, ()
        # Jobs on these nodes in the order of their ends, from the first that is not known to be over by then.
        running = self._running[job.partition]
        place = bisect_right(running, (known_s, inf))
        while running[place][2] in taken:
            place += 1
        span_s = _FIRST_SPAN_S
        begin_s = (running[place][0] // span_s + 1) * span_s
        while True:
            place = bisect_right(running, (begin_s + span_s, inf)) - 1
            # It stops only behind an end that it counts.
            while running[place][2] in taken and place < len(running) - 1:
                place += 1
            until_s = max(begin_s + span_s, running[place][0])
            if fits_s <= until_s:
                break
            span_s = span_s + self._rules.bf_window_linear_s if self._rules.bf_window_linear_s else 2 * span_s
        nodes = chosen(sorted(fitting(until_s)), wanted)
        if new:
            last_s = max(self._nodes[index].last_end(until_s) for index in nodes)
        else:
            while running[place][2] in taken:
                place -= 1
            last_s = running[place][0]
        # A job that is over its limit and not gone yet ends any moment, but has not.
        return max(at_s + 1, from_s, last_s), nodes


class _Chances:
    """Which of those that backfill looks at could start at once; looking further changes nothing if none can."""

    def __init__(self, ahead: Sequence[_Entry]) -> None:
        # The places of each request, from the last to the first, and the least time limit from there on.
        self._limits: dict[Ranked, tuple[list[int], list[float]]] = {}
        full: set[Ranked] = set()
        for place in range(len(ahead) - 1, -1, -1):
            _, _, _, job, ranked = ahead[place]
            if ranked in full:
                continue
            if ranked not in self._limits:
                if ranked.order()[0][0] != NOW:
                    full.add(ranked)
                    continue
                self._limits[ranked] = [], [inf]
            places, limits = self._limits[ranked]
            places.append(-place)
            limits.append(min(job.limit_s, limits[-1]))

    def left(self, place: int, at_s: float, kept: Kept) -> bool:
        """Return whether one from this place on may find a node that has room now and is not kept too soon."""
        for ranked, (places, limits) in self._limits.items():
            over_s = at_s + limits[bisect_right(places, -place)]
            for fits_s, index in ranked.order():
                if fits_s != NOW or over_s == inf:
                    break
                if over_s < kept.first[index]:
                    return True
        return False

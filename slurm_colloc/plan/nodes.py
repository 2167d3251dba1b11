# SPDX-License-Identifier: Apache-2.0
"""Free GPUs, cores and memory of nodes, now and when time limits are over, and the nodes that backfill keeps."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from math import inf

from slurm_colloc.plan.model import NodeKind, Scheduler, Shape

NOW = 0.0
_NOTHING = Shape("", 0, 0, 0)
# A moment, and the cores, memory and units of each kind that a job could have from then on.
_Step = tuple[float, int, int, Mapping[str, int]]


class Node:
    """One node: free gres, cores and memory, and what runs until when at the latest."""

    def __init__(self, kind: NodeKind) -> None:
        self._free = dict(kind.gres)
        self._cpus, self._mem_mib = kind.cpus, kind.mem_mib
        self._shared_kind, self._per_gpu = kind.shared_kind, dict(kind.shares)
        # The kind of shares that a GPU gives and how many are left, by its opener: the job that was the first there.
        self._shared: dict[int, tuple[str, int]] = {}
        # (latest end, number, shape), in order.
        self.running: list[tuple[float, int, Shape]] = []
        self._shared_by: dict[int, int] = {}
        self._steps: list[_Step] = []

    def take(self, number: int, shape: Shape, until_s: float) -> None:
        """Start a job that fits."""
        self._steps = []
        self._cpus -= shape.cpus
        self._mem_mib -= shape.mem_mib
        insort(self.running, (until_s, number, shape))
        if shape.kind not in self._per_gpu:
            self._free[shape.kind] = self._free.get(shape.kind, 0) - shape.units
            return
        # The fullest GPU that has enough.
        fitting = (
            (units, opener)
            for opener, (name, units) in self._shared.items()
            if name == shape.kind and units >= shape.units
        )
        units, opener = min(fitting, default=(self._per_gpu[shape.kind], number))
        if opener == number:
            self._free[self._shared_kind] -= 1
        self._shared[opener] = shape.kind, units - shape.units
        self._shared_by[number] = opener

    def give_back(self, number: int, shape: Shape, until_s: float) -> None:
        """End a job."""
        self._steps = []
        del self.running[bisect_left(self.running, (until_s, number))]
        self._cpus += shape.cpus
        self._mem_mib += shape.mem_mib
        if shape.kind not in self._per_gpu:
            self._free[shape.kind] += shape.units
            return
        opener = self._shared_by.pop(number)
        name, units = self._shared.pop(opener)
        if units + shape.units == self._per_gpu[name]:
            self._free[self._shared_kind] += 1
        else:
            self._shared[opener] = name, units + shape.units

    def earliest(self, shape: Shape) -> float:
        """Return when such a job fits at the latest, if all run to their time limits: NOW, or inf for never."""
        if not self._steps:
            self._steps = list(self._ahead())
        kind, units, wanted_cpus, wanted_mib, _ = shape
        for at_s, cpus, mem_mib, room in self._steps:
            if cpus >= wanted_cpus and mem_mib >= wanted_mib and room.get(kind, 0) >= units:
                return at_s
        return inf

    def _ahead(self) -> Iterator[_Step]:
        """Yield what one job could have at most, now and after each end."""
        cpus, mem_mib, shared = self._cpus, self._mem_mib, dict(self._shared)
        room = self._free | dict.fromkeys(self._per_gpu, 0)
        for name, units in shared.values():
            room[name] = max(room[name], units)
        for at_s, number, held in ((NOW, -1, _NOTHING), *self.running):
            cpus += held.cpus
            mem_mib += held.mem_mib
            room = dict(room)
            if held.kind in self._per_gpu:
                opener = self._shared_by[number]
                units = shared[opener][1] + held.units
                shared[opener] = held.kind, units
                if units == self._per_gpu[held.kind]:
                    room[self._shared_kind] += 1
                room[held.kind] = max(room[held.kind], units)
            elif held.units:
                room[held.kind] += held.units
            if self._per_gpu and room[self._shared_kind]:
                room |= self._per_gpu
            yield at_s, cpus, mem_mib, room

    def last_end(self, until_s: float) -> float:
        """Return when the last of what is over by then is over at the latest; NOW where nothing is."""
        at = bisect_right(self.running, (until_s, inf))
        return self.running[at - 1][0] if at else NOW


class Ranked:
    """The nodes of one partition by when a job of one shape fits there; those that changed are looked at when asked."""

    def __init__(self, shape: Shape, nodes: Sequence[Node], which: Iterable[int]) -> None:
        self._shape, self._nodes = shape, nodes
        self.changed: set[int] = set()
        self._known = {index: nodes[index].earliest(shape) for index in which}
        self._order = sorted((at_s, index) for index, at_s in self._known.items())

    def order(self) -> list[tuple[float, int]]:
        """Return (when, node), the first first."""
        if self.changed:
            for index in self.changed:
                after, before = self._nodes[index].earliest(self._shape), self._known[index]
                if after != before:
                    self._known[index] = after
                    del self._order[bisect_left(self._order, (before, index))]
                    insort(self._order, (after, index))
            self.changed.clear()
        return self._order

    def now(self, but: Container[int]) -> list[int]:
        """Return the nodes that have room now, other than some."""
        order = self.order()
        return [index for _, index in order[: bisect_right(order, (NOW, inf))] if index not in but]


class Kept:
    """The nodes that backfill keeps, whole, for jobs that have to wait."""

    def __init__(self, rules: Scheduler, nodes: int) -> None:
        self._grain_s = rules.bf_resolution_s
        self._over_s = 0 if rules.before_24_11 else self._grain_s - 1
        self._spans: dict[int, list[tuple[float, float]]] = {}
        self._ends: list[float] = []
        # The first and the last second for which each node is kept.
        self.first, self.last = [inf] * nodes, [NOW] * nodes

    def keep(self, nodes: Iterable[int], start_s: float, limit_s: float) -> bool:
        """Keep nodes for a job; return whether one of them is kept sooner than it was."""
        from_s, until_s = self._span(start_s, limit_s)
        sooner = False
        for index in nodes:
            insort(self._spans.setdefault(index, []), (from_s, until_s))
            if until_s > self.last[index]:
                self.last[index] = until_s
            if from_s < self.first[index]:
                self.first[index], sooner = from_s, True
        insort(self._ends, until_s)
        return sooner

    def _span(self, start_s: float, limit_s: float) -> tuple[float, float]:
        from_s = start_s // self._grain_s * self._grain_s
        until_s = (start_s + limit_s + self._over_s) // self._grain_s * self._grain_s
        return from_s, max(from_s + self._grain_s, until_s)

    def between(self, from_s: float, until_s: float) -> set[int]:
        """Return the nodes that are kept within a time."""
        if not self._ends or from_s < self._ends[0]:
            return {index for index in self._spans if self.first[index] <= until_s}
        taken = set()
        for index, spans in self._spans.items():
            for begin_s, end_s in spans:
                if begin_s > until_s:
                    break
                if end_s > from_s:
                    taken.add(index)
                    break
        return taken

    def free_from(self, index: int, from_s: float, limit_s: float) -> float:
        """Return when a node that is kept is not, for as long as a job may run."""
        for begin_s, end_s in self._spans[index]:
            if begin_s > from_s + limit_s:
                break
            if end_s > from_s:
                from_s = end_s
        return from_s

    def end_before(self, at_s: float) -> float:
        """Return the last time up to then at which a node was no longer kept; NOW for none."""
        place = bisect_right(self._ends, at_s)
        return self._ends[place - 1] if place else NOW

    def end_after(self, at_s: float) -> float:
        """Return the first time after it at which a node is no longer kept; inf for none."""
        place = bisect_right(self._ends, at_s)
        return self._ends[place] if place < len(self._ends) else inf

    def overlap(self, nodes: Iterable[int], start_s: float, limit_s: float) -> bool:
        """Return whether one of the nodes is kept while a job would have it."""
        from_s, until_s = self._span(start_s, limit_s)
        return any(
            begin_s < until_s and end_s > from_s for index in nodes for begin_s, end_s in self._spans.get(index, ())
        )


def chosen(usable: Sequence[int], wanted: int) -> tuple[int, ...]:
    """Return which of the nodes on which a job fits it gets, as select/cons_tres chooses.

    The first ones of the shortest row of neighbours that is long enough; else all of the longest, and so on.
    """
    if wanted == 1 and usable[-1] - usable[0] == len(usable) - 1:
        return (usable[0],)
    rows: list[list[int]] = []
    for index in usable:
        if rows and rows[-1][-1] == index - 1:
            rows[-1].append(index)
        else:
            rows.append([index])
    nodes: list[int] = []
    while lacking := wanted - len(nodes):
        row = min((row for row in rows if len(row) >= lacking), key=len, default=None) or max(rows, key=len)
        rows.remove(row)
        nodes += row[:lacking]
    return tuple(nodes)

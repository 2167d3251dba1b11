# SPDX-License-Identifier: Apache-2.0
"""Which job held which GPU, as 'colloc holders' saw it on one host, and whose the readings of an exporter are by that.

A file for each UTC day, a row for each job and GPU that was seen together. Slurm gives a job its GPUs for all of its
time: one look tells whose they were from its start to its end, and only a job that no look saw is not told.
"""

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple

from slurm_colloc.core.units import whole
from slurm_colloc.core.usage_model import DeviceAllocation, NodeSample
from slurm_colloc.core.value_types import read_as
from slurm_colloc.gpu.mig import parse_profile
from slurm_colloc.slurm.jobs import Held

SUFFIX = ".csv"


class Holding(NamedTuple):
    """A job that had a GPU, a slice, or a share of one, by its number on the node.

    It had it from ``from_s`` on, and was last seen to at ``seen_s``; the run itself began at ``start_s``. ``weight`` is
    its part beside those of others, None of a GPU of its own.
    """

    job_id: str
    start_s: int
    node: str
    type: str
    unit: int
    weight: float | None
    from_s: int
    seen_s: int


_HEADER = ",".join(Holding._fields)


class Holdings(NamedTuple):
    """Holdings of some time, and how many rows of their files are none."""

    rows: tuple[Holding, ...]
    rejected: int


def after_a_look(earlier: Iterable[Holding], held: Iterable[Held], at_s: int) -> list[Holding]:
    """Return the holdings of a day after one more look, at ``at_s``."""
    rows = {holding[:5]: holding for holding in earlier}
    runs = {key[:2] for key in rows}
    for holding in held:
        for index in holding.gres_indices if holding.start_s is not None else ():
            key = holding.job_id, holding.start_s or 0, holding.node, holding.type, index
            # A job that was seen without this unit got it since.
            from_s = at_s if key[:2] in runs else key[1]
            before = rows.get(key) or Holding(*key, holding.weight, from_s, at_s)
            rows[key] = before._replace(seen_s=at_s)
    return list(rows.values())


def text_of(rows: Iterable[Holding]) -> str:
    """Return the file of a day: no cell holds a comma."""
    lines = [",".join("" if cell is None else str(cell) for cell in row) for row in rows]
    return "\n".join([_HEADER, *lines, ""])


def parse_holders(text: str) -> Holdings:
    """Return what such a file holds."""
    holdings, rejected = [], 0
    for line in text.split("\n"):
        if line in ("", _HEADER):
            continue
        try:
            job_id, start_s, node, gres_type, unit, weight, *seen_s = line.split(",")
            share = float(weight) if weight else None
            row = [job_id, int(start_s), node, gres_type, int(unit), share, *map(int, seen_s)]
            holdings.append(read_as(Holding, row))
        except (ValueError, TypeError):
            rejected += 1
    return Holdings(tuple(holdings), rejected)


class Timeline:
    """The jobs on each unit at each time; ``ends`` are starts and ends of each job's runs, None of one that goes on."""

    def __init__(self, holdings: Iterable[Holding], ends: Mapping[str, Sequence[tuple[float, float | None]]]) -> None:
        # The last that is known of each counts.
        in_order = sorted(holdings, key=lambda holding: holding.seen_s)
        rows = {holding[:5]: holding for holding in in_order}
        last_s = {holding[:2]: holding.seen_s for holding in in_order}
        self._of_unit: dict[tuple[str, int], list[tuple[float, float, Holding]]] = defaultdict(list)
        for holding in rows.values():
            # One that was seen later without this GPU gave it back.
            given_back = holding.seen_s < last_s[holding[:2]]
            # Its run ended by the accounting, else it was last seen: it goes on, or is not there.
            runs = () if given_back else ends.get(holding.job_id, ())
            ended = [end_s for start_s, end_s in runs if start_s <= holding.from_s < (inf if end_s is None else end_s)]
            end_s = holding.seen_s if not ended or ended[-1] is None else ended[-1]
            self._of_unit[holding.node, holding.unit].append((holding.from_s, end_s, holding))
        for spans in self._of_unit.values():
            spans.sort()
        self.jobs = frozenset(holding.job_id for holding in rows.values())
        self._nodes = Counter({node: 0 for node, _ in self._of_unit})
        for node, index in self._of_unit:
            self._nodes[node] = max(self._nodes[node], index + 1)

    def units(self, node: str) -> int:
        """Return how many units a node has at least, by the numbers that jobs had there; it is 0 if no job was seen."""
        return self._nodes[node]

    def at(self, node: str, index: int, at_s: float) -> list[Holding]:
        """Return who had a unit at that time."""
        spans = self._of_unit.get((node, index), [])
        begun = spans[: bisect_right(spans, at_s, key=lambda span: span[0])]
        return [holding for _, end_s, holding in begun if at_s <= end_s]


def with_holders(rounds: Sequence[NodeSample], timeline: Timeline, unmatched: set[str]) -> tuple[NodeSample, ...]:
    """Return the rounds with who had their devices, and add to ``unmatched`` the nodes of which that cannot be told.

    Slurm numbers whole GPUs by the device file, which is nearly always the exporter's number, and the units of a node
    with slices by their place; see gpu/reader.py. A node whose units do not fit that is left as it was.
    """
    numbers = {node: _numbers([one for one in rounds if one.node == node]) for node in {one.node for one in rounds}}
    samples = []
    for sample in rounds:
        units, sliced = numbers[sample.node], any(device.profile for device in sample.devices)
        least = timeline.units(sample.node)
        if least and not sample.holders:
            if len(set(units.values())) < len(units) or not units or (sliced and len(units) < least):
                unmatched.add(sample.node)
            else:
                holders = [
                    DeviceAllocation(device.uuid, one.job_id, one.weight)
                    for device in sample.devices
                    for one in timeline.at(sample.node, units[device.uuid], sample.at_s)
                    if _is_of(one.type, device.profile)
                ]
                sample = sample._replace(holders=tuple(sorted(holders, key=lambda one: one[:2])))
        samples.append(sample)
    return tuple(samples)


def _numbers(rounds: Sequence[NodeSample]) -> dict[str, int]:
    """Return Slurm's number of each unit of a node; nothing where slices do not say their place."""
    units = {device.uuid: device for sample in rounds for device in sample.devices}
    if not any(device.profile for device in units.values()):
        return {uuid: device.gres_index for uuid, device in units.items()}
    places = {uuid: whole(uuid.rpartition("/")[2]) if device.profile else 0 for uuid, device in units.items()}
    if None in places.values():
        return {}
    order = sorted(units, key=lambda uuid: (units[uuid].gres_index, places[uuid] or 0))
    return {uuid: place for place, uuid in enumerate(order)}


def _is_of(gres_type: str, profile: str) -> bool:
    """Return whether a job's gres may be that unit: one that names a profile is no other."""
    named = parse_profile(gres_type)
    return named is None or named.name == profile

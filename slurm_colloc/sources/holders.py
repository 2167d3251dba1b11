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


def after_a_look(known: Iterable[Holding], held: Iterable[Held], at_s: int) -> list[Holding]:
    """Return the holdings of a day after one more look, at ``at_s``."""
    rows = {(one.job_id, one.start_s, one.node, one.type, one.unit): one for one in known}
    runs = {key[:2] for key in rows}
    for one in held:
        for index in one.gres_indices if one.start_s is not None else ():
            key = one.job_id, one.start_s or 0, one.node, one.type, index
            # What a job has that was seen without it, it got since.
            from_s = at_s if key[:2] in runs else key[1]
            before = rows.get(key) or Holding(*key, one.weight, from_s, at_s)
            rows[key] = before._replace(seen_s=at_s)
    return list(rows.values())


def text_of(rows: Iterable[Holding]) -> str:
    """Return the file of a day: no cell holds a comma."""
    cells = ["" if cell is None else str(cell) for row in rows for cell in row]
    width = len(Holding._fields)
    lines = [",".join(cells[at : at + width]) for at in range(0, len(cells), width)]
    return "\n".join([_HEADER, *lines, ""])


def parse_holders(text: str) -> Holdings:
    """Return what such a file holds."""
    found, rejected = [], 0
    for line in text.split("\n"):
        if line in ("", _HEADER):
            continue
        try:
            job_id, start_s, node, gres_type, unit, weight, *seen_s = line.split(",")
            given = float(weight) if weight else None
            row = [job_id, int(start_s), node, gres_type, int(unit), given, *map(int, seen_s)]
            found.append(read_as(Holding, row))
        except (ValueError, TypeError):
            rejected += 1
    return Holdings(tuple(found), rejected)


class Timeline:
    """Who had which unit when; ``ends`` are the runs of each job with when they ended, None of one that goes on."""

    def __init__(self, holdings: Iterable[Holding], ends: Mapping[str, Sequence[tuple[float, float | None]]]) -> None:
        rows = {(one.job_id, one.start_s, one.node, one.type, one.unit): one for one in sorted(holdings, key=_seen)}
        last_s: dict[tuple[str, int], int] = defaultdict(int)
        for one in rows.values():
            last_s[one.job_id, one.start_s] = max(one.seen_s, last_s[one.job_id, one.start_s])
        self._of_unit: dict[tuple[str, int], list[tuple[float, float, Holding]]] = defaultdict(list)
        for one in rows.values():
            # One that was seen later without this GPU gave it back.
            given_back = one.seen_s < last_s[one.job_id, one.start_s]
            end_s = one.seen_s if given_back else _end_s(one, ends.get(one.job_id, ()))
            self._of_unit[one.node, one.unit].append((one.from_s, end_s, one))
        for spans in self._of_unit.values():
            spans.sort()
        self.jobs = frozenset(one.job_id for one in rows.values())
        self._nodes = Counter({node: 0 for node, _ in self._of_unit})
        for node, index in self._of_unit:
            self._nodes[node] = max(self._nodes[node], index + 1)

    def units(self, node: str) -> int:
        """Return how many units a node has at least, by the numbers that jobs had there; 0 where none was seen."""
        return self._nodes[node]

    def at(self, node: str, index: int, at_s: float) -> list[Holding]:
        """Return who had a unit at that time."""
        spans = self._of_unit.get((node, index), [])
        begun = spans[: bisect_right(spans, at_s, key=lambda span: span[0])]
        return [one for _, end_s, one in begun if at_s <= end_s]


def _seen(one: Holding) -> int:
    return one.seen_s


def _end_s(one: Holding, runs: Sequence[tuple[float, float | None]]) -> float:
    """Return when its run ended by the accounting; of one that goes on, or is not there, when it was last seen."""
    ended = [end_s for start_s, end_s in runs if start_s <= one.from_s < (inf if end_s is None else end_s)]
    return one.seen_s if not ended or ended[-1] is None else ended[-1]


def with_holders(rounds: Sequence[NodeSample], known: Timeline, unmatched: set[str]) -> tuple[NodeSample, ...]:
    """Return the rounds with who had their devices, and add to ``unmatched`` the nodes of which that cannot be told.

    Slurm numbers whole GPUs by the device file, which is nearly always the exporter's number, and the units of a node
    with slices by their place; see gpu/reader.py. A node whose units do not fit that is left as it was.
    """
    numbers = {node: _numbers([one for one in rounds if one.node == node]) for node in {one.node for one in rounds}}
    found = []
    for seen in rounds:
        of, sliced = numbers[seen.node], any(device.profile for device in seen.devices)
        least = known.units(seen.node)
        if least and not seen.holders:
            if len(set(of.values())) < len(of) or not of or (sliced and len(of) < least):
                unmatched.add(seen.node)
            else:
                holders = [
                    DeviceAllocation(device.uuid, one.job_id, one.weight)
                    for device in seen.devices
                    for one in known.at(seen.node, of[device.uuid], seen.at_s)
                    if _is_of(one.type, device.profile)
                ]
                seen = seen._replace(holders=tuple(sorted(holders, key=lambda one: one[:2])))
        found.append(seen)
    return tuple(found)


def _numbers(rounds: Sequence[NodeSample]) -> dict[str, int]:
    """Return Slurm's number of each unit of a node; nothing where slices do not say their place."""
    units = {device.uuid: device for one in rounds for device in one.devices}
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

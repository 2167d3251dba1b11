# SPDX-License-Identifier: Apache-2.0
"""NodeSamples from a log that ``nvidia-smi --query-gpu=timestamp,uuid,... --format=csv -l N`` wrote on one node.

It says what the GPUs did, not for whom: the accounting says that, where a run had all of them. GPU_UTIL is that
of the driver's last second or less, and each reading is taken to stand for the time since the one before it.
"""

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, tzinfo
from itertools import groupby, pairwise
from statistics import median
from typing import NamedTuple

from slurm_colloc.core.errors import InputError
from slurm_colloc.core.usage_model import DeviceAllocation, DeviceSample, NodeSample
from slurm_colloc.gpu.mig import model_named
from slurm_colloc.sources.means import device_read

# A log without a header is taken to have these columns, in this order, unless --fields names others.
FIELDS = ("timestamp", "index", "uuid", "name", "utilization.gpu", "memory.used", "memory.total", "power.draw")
_ALIASES = {"gpu_uuid": "uuid", "gpu_name": "name"}
_UNITS = {"utilization.gpu": "%", "memory.used": "MiB", "memory.total": "MiB", "power.draw": "W"}
_HEADING = re.compile(r"([a-z_.]+)(?: \[.*\])?")
_VALUE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(?: (\S+))?")
_UNKNOWN = re.compile(r"\[.*\]|N/A|ERR!|")
_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-fA-F-]{1,64}")
_INDEX = re.compile(r"[0-9]{1,4}")
# A pause of more periods than this is a gap: the reading after it stands for nothing.
_VALID_PERIODS = 3


class Log(NamedTuple):
    """NodeSamples in the order of time; readings in = those in the rounds + rejected."""

    rounds: tuple[NodeSample, ...]
    readings_in: int
    rejected: Mapping[str, int]


class GpuRun(NamedTuple):
    """A run as the accounting knows it; ``gpus`` are whole ones, on each of its ``nodes``; ``end_s`` None: it runs."""

    job_id: str
    nodes: frozenset[str]
    gpus: int
    start_s: float
    end_s: float | None


class _Reading(NamedTuple):
    at_s: float
    device: DeviceSample


def parse_csv(text: str, zone: tzinfo | None, node: str = "", fields: Sequence[str] = FIELDS) -> Log:
    """Parse a log, or several one after the other.

    Args:
        text: with or without headers and units.
        zone: the zone of the timestamps, which are local ones; None: this machine's.
        node: the node on which it was written; it tells GPUs of a log without a column uuid from those of other nodes.
        fields: the columns of lines before the first header.

    Raises:
        InputError: a column that is needed is missing.
    """
    rejected: Counter[str] = Counter()
    *lines, rest = text.split("\n")
    parts: list[list[_Reading]] = [[]]
    columns = _checked(fields, node) if lines and not _is_header(lines[0]) else ()
    readings_in = 0
    for line in filter(str.strip, lines):
        cells = [cell.strip() for cell in line.split(",")]
        if _is_header(line):
            columns = _checked([_name(cell) for cell in cells], node)
            parts.append([])
            continue
        readings_in += 1
        try:
            parts[-1].append(_reading(cells, columns, zone, node))
        except InputError as error:
            rejected[str(error)] += 1
    if rest.strip():
        readings_in += 1
        rejected["the log ends within a line"] += 1
    readings = _in_order(parts, rejected)
    return Log(tuple(_rounds(readings, node)), readings_in, dict(rejected))


def _is_header(line: str) -> bool:
    return "timestamp" in map(_name, line.split(","))


def _name(cell: str) -> str:
    match = _HEADING.fullmatch(cell.strip())
    return _ALIASES.get(match[1], match[1]) if match else cell


def _checked(fields: Sequence[str], node: str) -> tuple[str, ...]:
    if "timestamp" not in fields:
        raise InputError("the log has no column timestamp; write it with --query-gpu=timestamp,uuid,…")
    if "uuid" not in fields and not ("index" in fields and node):
        raise InputError("the log has no column uuid; write it with one, or say its node if it has the column index")
    return tuple(fields)


def _reading(cells: Sequence[str], columns: Sequence[str], zone: tzinfo | None, node: str) -> _Reading:
    if len(cells) != len(columns):
        raise InputError(f"{len(cells)} columns instead of {len(columns)}")
    record = dict(zip(columns, cells, strict=True))
    index = record.get("index", "0")
    uuid = record.get("uuid", f"{node}/{index}")
    if not _INDEX.fullmatch(index) or not ("uuid" not in record or _UUID.fullmatch(uuid)):
        raise InputError("a GPU's index or uuid that is none")
    util, used, total, power = (_value(record, name) for name in _UNITS)
    if util is not None and util > 100:
        raise InputError("more than 100 %")
    model = model_named(record.get("name", ""))
    sm_count = (model and model.sm_count) or 0
    size = total if total is not None else (model and model.mem_total_mib) or 0
    reading = {"gpu_util_pct": util, "gpu_mem_used_mib": used and int(used), "power_w": power}
    device = device_read(uuid, int(index), record.get("name", ""), "", (int(size), sm_count, sm_count), reading)
    return _Reading(_at_s(record["timestamp"], zone), device)


def _value(record: Mapping[str, str], name: str) -> float | None:
    text = record.get(name, "")
    if _UNKNOWN.fullmatch(text):
        return None
    match = _VALUE.fullmatch(text)
    if match is None or match[2] not in (None, _UNITS[name]):
        raise InputError(f"a {name} that is none")
    return float(match[1])


def _at_s(text: str, zone: tzinfo | None) -> float:
    try:
        moment = datetime.strptime(text, "%Y/%m/%d %H:%M:%S.%f").replace(tzinfo=zone)
        first_s, second_s = (moment.replace(fold=fold).timestamp() for fold in (0, 1))
    except (ValueError, OverflowError):
        raise InputError("a timestamp that is none") from None
    if first_s != second_s:
        raise InputError("a local time that the clock showed twice, or never")
    return first_s


def _in_order(parts: Iterable[Sequence[_Reading]], rejected: Counter[str]) -> list[_Reading]:
    """Return the readings of all parts by time, of each GPU only those that are later than the one before."""
    last_s: dict[str, float] = {}
    kept = []
    for part in sorted(filter(None, parts), key=lambda part: [reading.at_s for reading in part]):
        for reading in part:
            if reading.at_s > last_s.get(reading.device.uuid, 0.0):
                last_s[reading.device.uuid] = reading.at_s
                kept.append(reading)
            else:
                rejected["no later than the reading before it: a clock set back, or a log given twice"] += 1
    return sorted(kept, key=lambda reading: (reading.at_s, reading.device.uuid))


def _rounds(readings: Sequence[_Reading], node: str) -> Iterator[NodeSample]:
    passes = list(_passes(readings))
    gaps = [after[0] - before[0] for before, after in pairwise(passes)]
    longest_s = _VALID_PERIODS * median(gaps) if gaps else 0.0
    last_s: dict[str, float] = {}
    for at_s, devices in passes:
        timed = []
        for device in devices:
            gap_s = at_s - last_s.get(device.uuid, at_s)
            interval_s = gap_s if gap_s <= longest_s else 0.0
            energy_j = None if device.power_w is None else device.power_w * interval_s
            timed.append((interval_s, device._replace(energy_j=energy_j)))
            last_s[device.uuid] = at_s
        for interval_s, group in groupby(sorted(timed), key=lambda timed_row: timed_row[0]):
            yield NodeSample(at_s, interval_s, node, "", tuple(device for _, device in group), (), (), ())


def _passes(readings: Iterable[_Reading]) -> Iterator[tuple[float, list[DeviceSample]]]:
    """Yield what one pass over the node's GPUs read, and when the last was: they follow within moments."""
    at_s, devices = 0.0, dict[str, DeviceSample]()
    for reading in readings:
        if reading.device.uuid in devices or (reading.at_s - at_s > 1 and devices):
            yield at_s, list(devices.values())
            devices = {}
        at_s, devices[reading.device.uuid] = reading.at_s, reading.device
    if devices:
        yield at_s, list(devices.values())


def holders_by_accounting(rounds: Iterable[NodeSample], runs: Iterable[GpuRun]) -> tuple[NodeSample, ...]:
    """Return the rounds with the run that had all GPUs of the node as holder, where one had them all the time.

    A node with another run on GPUs in that time, or with a run that had fewer than the log shows, has no holder.
    """
    rounds, runs = tuple(rounds), tuple(runs)
    uuids: dict[str, set[str]] = defaultdict(set)
    for sample in rounds:
        uuids[sample.node].update(device.uuid for device in sample.devices)
    timelines = {node: _Timeline([run for run in runs if node in run.nodes and run.gpus]) for node in uuids}
    samples = []
    for sample in rounds:
        run = timelines[sample.node].alone(sample.at_s - sample.interval_s, sample.at_s)
        if run and run.gpus == len(uuids[sample.node]) and not sample.holders:
            sample = sample._replace(
                holders=tuple(DeviceAllocation(device.uuid, run.job_id, None) for device in sample.devices)
            )
        samples.append(sample)
    return tuple(samples)


class _Timeline:
    """The runs on one node: between each two of its times they are the same."""

    def __init__(self, runs: Sequence[GpuRun]) -> None:
        changes: dict[float, list[tuple[bool, GpuRun]]] = defaultdict(list)
        for run in runs:
            changes[run.start_s].append((True, run))
            changes[run.end_s if run.end_s is not None else float("inf")].append((False, run))
        self._times = sorted(changes)
        self._alone: list[GpuRun | None] = []
        running: set[GpuRun] = set()
        for at_s in self._times:
            for begins, run in changes[at_s]:
                (running.add if begins else running.discard)(run)
            self._alone.append(next(iter(running)) if len(running) == 1 else None)

    def alone(self, since_s: float, until_s: float) -> GpuRun | None:
        """Return the only run that was there from ``since_s`` to ``until_s``, if nothing changed in that time."""
        before, last = bisect_right(self._times, since_s) - 1, bisect_left(self._times, until_s) - 1
        return self._alone[before] if before == last >= 0 else None

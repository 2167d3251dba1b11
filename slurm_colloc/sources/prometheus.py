# SPDX-License-Identifier: Apache-2.0
"""NodeSamples from a Prometheus server that scrapes the exporters a site already runs.

The names of an exporter are data: exporters.toml. Each scrape is one NodeSample; a time without one is a gap.
"""

import ipaddress
import math
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.resources import files
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from slurm_colloc.core.errors import InputError
from slurm_colloc.core.usage_model import DeviceAllocation, DeviceSample, NodeSample
from slurm_colloc.gpu.mig import model_named, parse_profile, slices_per_gpu
from slurm_colloc.sources.means import device_read
from slurm_colloc.sources.prometheus_server import Series, Server

_HOUR_S = 3600
# A reading stands for the time since the one before it; a pause of more periods than this is a gap.
_VALID_PERIODS = 1.5
# The most that a field can be: above lie DCGM's blanks (2147483632, 2^47, 9223372036854775794) in whatever unit.
_MOST = {"gpu_mem_used_mib": 2.0**24, "power_w": 1e5}
# DCGM has shown 129 % of SM activity for a slice: that is busy; 1000 % is nothing.
_MOST_PCT = 200.0
# An exporter copies these figures of the whole card onto each of its slices.
_OF_THE_CARD = ("gpu_util_pct", "power_w")
# The labels that tell a scraped target, or one of two servers that scrape it, from another.
_TARGET = ("job", "instance", "prometheus_replica", "replica")


class Exporter(NamedTuple):
    """An exporter's names: metric -> (our field, factor to our unit), and labels; the first that is there counts.

    One without ``uuid`` says only which GPU of a job it means, not which of the node. A reading that lacks the field
    ``proof`` is not taken.
    """

    name: str
    metrics: Mapping[str, tuple[str, float]]
    uuid: Sequence[str] = ()
    node: Sequence[str] = ("instance",)
    number: str = ""
    model: str = ""
    profile: str = ""
    gpu_instance: str = ""
    job: str = ""
    proof: str = ""


_TABLE = tomllib.loads(files(__package__).joinpath("exporters.toml").read_text())
EXPORTERS = tuple(Exporter(**row) for row in _TABLE["exporter"])
# A node's name names a folder of the store.
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_EXPORTER_OF = {metric: exporter for exporter in EXPORTERS for metric in exporter.metrics}


class Imported(NamedTuple):
    """NodeSamples in the order of time; ``points`` are the samples read, ``rejected`` those not taken as they were."""

    rounds: tuple[NodeSample, ...]
    points: int
    rejected: Mapping[str, int]


class _Unit(NamedTuple):
    """A GPU or slice as an exporter names it."""

    uuid: str
    card: str
    number: int
    model: str
    profile: str


class _Scrape:
    """The readings of each unit by one target at one time, and the jobs that it gave to the unit."""

    def __init__(self) -> None:
        self.readings: dict[_Unit, dict[str, float | None]] = defaultdict(dict)
        self.jobs: dict[_Unit, set[str]] = defaultdict(set)


class _Target(NamedTuple):
    """A scraped address; ``rank`` is its exporter's place in EXPORTERS."""

    rank: int
    node: str
    name: tuple[str, ...]


_Scrapes = dict[_Target, dict[float, _Scrape]]


def hours(since_s: float, until_s: float) -> Iterator[tuple[float, float]]:
    """Yield the whole hours that [since, until) touches, so that each can be written in place of what was there."""
    start_s = since_s // _HOUR_S * _HOUR_S
    while start_s < until_s:
        yield start_s, start_s + _HOUR_S
        start_s += _HOUR_S


def names_there(server: Server, since_s: float, until_s: float) -> frozenset[str]:
    """Return which of the metrics that can be read the server has in [since, until).

    Raises:
        InputError: the server does not answer, or has none of them.
    """
    names = server.names(_EXPORTER_OF, since_s, until_s)
    if not names:
        raise InputError(
            f"Prometheus at '{server.url}' has no metric of {', '.join(exporter.name for exporter in EXPORTERS)} "
            "in this window; does it scrape one of them, and does it keep data for so long?"
        )
    return names


def read_rounds(server: Server, names: Iterable[str], since_s: float, until_s: float) -> Imported:
    """Return what the exporters said in [since, until).

    Raises:
        InputError: the server does not answer, or not in the expected form.
    """
    return fold({name: server.samples(name, since_s, until_s) for name in sorted(names)})


def fold(series: Mapping[str, Sequence[Series]]) -> Imported:
    """Return the NodeSamples that the raw samples of each metric make."""
    scrapes: _Scrapes = defaultdict(lambda: defaultdict(_Scrape))
    rejected: Counter[str] = Counter()
    points = 0
    for metric, all_series in series.items():
        exporter = _EXPORTER_OF[metric]
        field, factor = exporter.metrics[metric]
        for labels, samples in all_series:
            points += len(samples)
            target = _target(exporter, labels)
            if not _NODE.fullmatch(target.node):
                rejected["a node that is no host name"] += len(samples)
                continue
            unit = _unit(exporter, labels, target.node)
            if isinstance(unit, str):
                rejected[unit] += len(samples)
                continue
            if unit.profile and field in _OF_THE_CARD:
                rejected["what a whole GPU does, said of its slice"] += len(samples)
                continue
            job = labels.get(exporter.job, "")
            for at_s, raw in samples:
                value = _value(field, raw * factor)
                rejected["no value (blank, NaN, out of range)"] += value is None
                rejected["above 100 %, taken as 100 %"] += value is not None and raw * factor > value
                scrape = scrapes[target][at_s]
                # A device's value is there once for each job on it.
                if scrape.readings[unit].get(field) is None:
                    scrape.readings[unit][field] = value
                # A site's mapping files may hold anything: only a job's id is taken.
                if job.isascii() and job.isdecimal():
                    scrape.jobs[unit].add(job)
    _drop_unproven(scrapes, rejected)
    _drop_repeated(scrapes, rejected)
    rounds = sorted(_rounds(scrapes), key=lambda one: (one.at_s, one.node))
    return Imported(tuple(rounds), points, {reason: number for reason, number in rejected.items() if number})


def _target(exporter: Exporter, labels: Mapping[str, str]) -> _Target:
    host = next((labels[name] for name in exporter.node if labels.get(name)), "")
    host = host.rsplit(":", 1)[0] if host.rsplit(":", 1)[-1].isdecimal() else host
    try:
        address = ipaddress.ip_address(host.strip("[]"))
        node = address.exploded.replace(":", "-")
    except ValueError:
        node = host.split(".")[0]
    return _Target(EXPORTERS.index(exporter), node, tuple(labels.get(name, "") for name in _TARGET))


def _unit(exporter: Exporter, labels: Mapping[str, str], node: str) -> _Unit | str:
    """Return the unit that a series is of, or why that cannot be known."""
    uuid = next((labels[name] for name in exporter.uuid if labels.get(name)), "")
    number = labels.get(exporter.number, "")
    profile = parse_profile(labels.get(exporter.profile, ""))
    if exporter.uuid and not uuid:
        return "a reading without the GPU's uuid"
    if not exporter.uuid:
        if number.startswith("MIG-") and profile is None:
            return "a MIG slice whose profile is not said"
        uuid = number if number.startswith("MIG-") else f"{node}/{labels.get(exporter.job, '')}/{number}"
    elif not uuid.startswith(("GPU-", "MIG-")):
        uuid = f"GPU-{uuid}"
    card, part = uuid, labels.get(exporter.gpu_instance, "")
    return _Unit(
        uuid=f"{uuid}/{part}" if part else uuid,
        card=card,
        number=int(number) if number.isascii() and number.isdecimal() and len(number) < 5 else 0,
        # A slice's own name goes on behind its card's.
        model=labels.get(exporter.model, "").partition(" MIG ")[0],
        profile=profile.name if profile else "",
    )


def _value(field: str, value: float) -> float | None:
    if not 0 <= value <= _MOST.get(field, _MOST_PCT):  # also refuses nan
        return None
    return value if field in _MOST else min(value, 100.0)


def _drop_unproven(scrapes: _Scrapes, rejected: Counter[str]) -> None:
    for target, times in scrapes.items():
        exporter = EXPORTERS[target.rank]
        for scrape in times.values() if exporter.proof else ():
            for unit in [unit for unit, reading in scrape.readings.items() if exporter.proof not in reading]:
                rejected[f"{exporter.name} without DCGM"] += len(scrape.readings.pop(unit))


def _drop_repeated(scrapes: _Scrapes, rejected: Counter[str]) -> None:
    """Leave one reading of each device at a time, however many watch it.

    The exporter of a node that knows jobs counts, else the first of EXPORTERS; two targets with one device are told
    apart by their readings: the one with more counts.
    """
    ranks: dict[str, tuple[bool, int]] = {}
    counts: Counter[tuple[str, _Target]] = Counter()
    for target, times in scrapes.items():
        rank = not any(scrape.jobs for scrape in times.values()), target.rank
        ranks[target.node] = min(ranks.get(target.node, rank), rank)
    for target, times in scrapes.items():
        for scrape in times.values() if target.rank == ranks[target.node][1] else ():
            counts.update((unit.card, target) for unit in scrape.readings)
    best: dict[str, _Target] = {}
    for (card, target), _ in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        best.setdefault(card, target)
    for target, times in scrapes.items():
        for scrape in times.values():
            for unit in [unit for unit in scrape.readings if best.get(unit.card) != target]:
                rejected["also read through another exporter or target"] += len(scrape.readings.pop(unit))
            cut: set[str | int] = {unit.card for unit in scrape.readings if unit.profile}
            # A slice with a uuid of its own says by its number of which card it is.
            if EXPORTERS[target.rank].uuid:
                cut |= {unit.number for unit in scrape.readings if unit.profile and unit.card.startswith("MIG-")}
            for unit in [
                reading for reading in scrape.readings if not reading.profile and cut & {reading.card, reading.number}
            ]:
                rejected["a whole GPU, said beside its slices"] += len(scrape.readings.pop(unit))


def _rounds(scrapes: _Scrapes) -> Iterator[NodeSample]:
    for target, by_time in scrapes.items():
        times = sorted(by_time)
        period_s = median([after - before for before, after in pairwise(times)]) if len(times) > 1 else 0.0
        for before_s, at_s in zip([-math.inf, *times], times, strict=False):
            interval_s = at_s - before_s if at_s - before_s <= _VALID_PERIODS * period_s else period_s
            devices, holders = _devices(EXPORTERS[target.rank], by_time[at_s], interval_s)
            if devices:
                yield NodeSample(at_s, interval_s, target.node, "", devices, (), holders, ())


def _devices(
    exporter: Exporter, scrape: _Scrape, interval_s: float
) -> tuple[tuple[DeviceSample, ...], tuple[DeviceAllocation, ...]]:
    readings = {unit: reading for unit, reading in sorted(scrape.readings.items()) if set(reading.values()) - {None}}
    jobs = {unit: scrape.jobs[unit] for unit in readings}
    if not exporter.uuid:
        readings, jobs = _told_apart(readings, jobs)
    holders = tuple(DeviceAllocation(unit.uuid, job, None) for unit in readings for job in sorted(jobs[unit]))
    devices = (
        device_read(unit.uuid, unit.number, unit.model, unit.profile, _size(unit), reading, interval_s)
        for unit, reading in readings.items()
    )
    return tuple(devices), holders


def _told_apart(
    readings: Mapping[_Unit, dict[str, float | None]], jobs: Mapping[_Unit, set[str]]
) -> tuple[dict[_Unit, dict[str, float | None]], dict[_Unit, set[str]]]:
    """Return the devices behind what several jobs call their GPU 0: the same power and all to the last digit is one."""
    by_history: dict[tuple[tuple[str, float | None], ...], list[_Unit]] = defaultdict(list)
    shared: dict[_Unit, set[str]] = {}
    for unit, reading in readings.items():
        same = by_history[tuple(sorted(reading.items()))]
        # A job's own GPUs are different ones, however alike.
        twin = next((unit_before for unit_before in same if not shared[unit_before] & jobs[unit]), None)
        if twin is None or reading.get("power_w") is None:
            same.append(unit)
            shared[unit] = set(jobs[unit])
        else:
            shared[twin] |= jobs[unit]
    return {unit: readings[unit] for unit in shared}, shared


def _size(unit: _Unit) -> tuple[int, int, int]:
    """Return memory, SMs and the whole GPU's SMs; a slice of a model not in the tables counts in slices."""
    model, profile = model_named(unit.model), parse_profile(unit.profile)
    if profile is None:
        return (model.mem_total_mib or 0, model.sm_count or 0, model.sm_count or 0) if model else (0, 0, 0)
    if model and model.sm_count and profile.name in model.profiles:
        return (*model.profiles[profile.name], model.sm_count)
    return 0, profile.compute_slices, slices_per_gpu(unit.model, profile.name)

# SPDX-License-Identifier: Apache-2.0
"""How often a run needs more later than what is foretold from it while it goes on: `tests.evaluate --series FILE...`.

A file is a table with the readings of jobs that had a whole GPU, one after the other (tests/gpu/readings.py), or a
journal of the agent. Each series is cut at the first moment at which the settling time and a tenth of it have been
sampled, as if its time limit were its length, and what csub foretells then is held against its peak. Only series at
least twice as long as the settling time count: little can come after the others' cut.
"""

import csv
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from slurm_colloc.core.usage_model import NodeSample
from slurm_colloc.estimate.bounds import upper_bound
from slurm_colloc.estimate.ladder import estimate
from slurm_colloc.estimate.question import Question
from slurm_colloc.observe.evidence import EvidenceBuilder
from tests.unit.made import decoded, device, process, seen

# Of its length.
PART = 0.1


class Series(NamedTuple):
    """What was sampled of one job, from its first reading to its last."""

    job_id: str
    rounds: Sequence[NodeSample]

    @property
    def length_s(self) -> float:
        """Return for how long."""
        return self.rounds[-1].at_s - self.rounds[0].at_s


class Settled(NamedTuple):
    """What was foretold of a series where it was cut, None where nothing, what it held then, and its peak."""

    q99_mib: float | None
    held_mib: int
    peak_mib: int


def read_series(path: Path) -> list[Series]:
    """Return the series of a file."""
    if path.suffix == ".csv":
        return list(_of_table(path))
    rounds = decoded(path.read_bytes()).rounds
    ids = dict.fromkeys(holder.job_id for one in rounds for holder in one.holders)
    return [
        Series(job_id, [one for one in rounds if job_id in {holder.job_id for holder in one.holders}]) for job_id in ids
    ]


def _of_table(path: Path) -> Iterator[Series]:
    with path.open(encoding="utf-8", newline="") as stream:
        lines = list(csv.DictReader(stream))
    groups: dict[str, list[NodeSample]] = defaultdict(list)
    for line in lines:
        job_id, at_s, mib = line["job"], float(line["at_s"]), int(line["gpu_mem_used_mib"])
        before = groups[job_id][-1].at_s if groups[job_id] else at_s
        active_pct = float(line["sm_active_pct"]) if line["sm_active_pct"] else None
        unit = device(gpu_mem_used_mib=mib, sm_active_pct=active_pct, gpu_util_pct=float(line["gpu_util_pct"]))
        own = [process(job_id, gpu_mem_used_mib=mib)] if mib else []
        groups[job_id].append(seen(at_s, [unit], own, [(unit.uuid, job_id)], interval_s=at_s - before))
    yield from (Series(job_id, rounds) for job_id, rounds in groups.items())


def settled(series: Series, settle_s: float) -> Settled:
    """Return what is foretold of a series at the moment at which it may count."""
    builder, least_s = EvidenceBuilder(series.job_id, "sig", "exclusive"), max(settle_s, series.length_s * PART)
    runs = [builder.add(one) for one in series.rounds]
    cut = next((run for run in runs if run.sampled_s >= least_s), runs[-1])
    memory = estimate(Question(runs=[cut], running=[cut], settle_s=least_s)).gpu_mem_peak_mib
    return Settled(memory and memory.q99, cut.gpu_mem_peak_mib or 0, runs[-1].gpu_mem_peak_mib or 0)


def settled_lines(of: Iterable[Series], times_s: Iterable[float]) -> Iterator[tuple[str, ...]]:
    """Yield how that is after each of some settling times."""
    yield "settling time", "series", "twice as long", "foretold", "held more later", "more than foretold", "at most"
    of = list(of)
    for settle_s in times_s:
        cut = [settled(one, settle_s) for one in of if one.length_s >= 2 * settle_s]
        told = [one for one in cut if one.q99_mib is not None]
        grew = sum(one.peak_mib > one.held_mib for one in told)
        over = sum(one.peak_mib > (one.q99_mib or 0) for one in told)
        counts = (f"{count}" for count in (len(of), len(cut), len(told), grew, over))
        yield f"{settle_s:g} s", *counts, f"{100 * upper_bound(over, len(told)):.0f} %"

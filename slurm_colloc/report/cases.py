# SPDX-License-Identifier: Apache-2.0
"""Past runs, and for each what was known before it: in order of time, or with its own configuration left out."""

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from slurm_colloc.history.signature import Parts, Signature, is_relative, is_same, parts_of
from slurm_colloc.history.snapshot import RELATIVES_READ
from slurm_colloc.model import COMPLETED, Evidence

# A sampler that watched a whole run saw at least so much.
_SAMPLES = 100
# Of one configuration, at most so many ways to know one or two others: enough for a rate, and bounded.
_MOST_WAYS = 60
_One = TypeVar("_One")
# What is known of a run that is placed: the same configuration, or so many others.
SAME = "the same job"


class Row(NamedTuple):
    """One past run: its evidence, the names of its signature's numbers, and what else was measured of it.

    ``slowdowns`` are (percent of the SMs, times as long as with all of them), as measured; empty where nobody did.
    """

    run: Evidence
    numbers: tuple[str, ...]
    peak_mib: float
    slowdowns: tuple[tuple[float, float], ...] = ()
    source: str = ""
    gpu_util_pct: float | None = None

    @property
    def completed(self) -> bool:
        """Return whether its peak is one; of any other run it is a bound."""
        return self.run.state == COMPLETED

    @classmethod
    def made(
        cls,
        job_id: str,
        known_as: Signature,
        gpu_model: str,
        state: str,
        at_s: float,
        peak_mib: float,
        sm_active_pct: float | None = None,
        dram_active_pct: float | None = None,
        cpu_cores: float | None = None,
        host_mem_mib: float | None = None,
        gpu_util_pct: float | None = None,
    ) -> "Row":
        """Return the run of a whole GPU of which these figures are known."""
        run = Evidence(
            job_id=job_id,
            signature=known_as.text,
            state=state,
            mode="exclusive",
            gpu_model=gpu_model,
            gpu_mem_peak_mib=math.ceil(peak_mib),
            sm_active_mean_pct=sm_active_pct,
            sm_active_q95_pct=sm_active_pct,
            sm_is_bound=False,
            sample_count=_SAMPLES,
            sampled_s=0.0,
            ended_s=at_s,
            elapsed_s=None,
            dram_active_q95_pct=dram_active_pct,
            cpu_cores_q95=cpu_cores,
            host_mem_peak_mib=None if host_mem_mib is None else math.ceil(host_mem_mib),
        )
        return cls(run, known_as.names, peak_mib, gpu_util_pct=gpu_util_pct)


class Case(NamedTuple):
    """One run to be placed, and the earlier runs of the same job and of its relatives that are known, oldest first.

    ``known`` says how much is known, for tables by it; empty in a replay by time.
    """

    row: Row
    runs: tuple[Row, ...]
    relatives: tuple[Row, ...]
    known: str = ""


def by_time(rows: Sequence[Row]) -> Iterator[Case]:
    """Yield each completed run, knowing those that ended before it did."""
    for family in _families(rows):
        for row, parts in family:
            if row.completed:
                yield _case(row, parts, [one for one in family if one[0].run.ended_s < row.run.ended_s])


def without_own(rows: Sequence[Row]) -> Iterator[Case]:
    """Yield each configuration that completed: knowing one run of it, and one, two or all others of its family.

    A run that was not repeated is taken for its own repeat; of several the last whose SM activity is known is taken.
    """
    for family in _families(rows):
        by_text: dict[str, list[tuple[Row, Parts]]] = defaultdict(list)
        for one in family:
            by_text[one[0].run.signature].append(one)
        for runs in by_text.values():
            done = [one for one in runs if one[0].completed]
            if not done:
                continue
            row, parts = done[0]
            repeats = [one for one, _ in reversed(done)]
            known = next((one for one in repeats if one.run.sm_active_mean_pct is not None), repeats[0])
            yield Case(row, (known,), (), SAME)
            others = [of for text, of in by_text.items() if text != row.run.signature]
            for known_as, ways in (("one other", [(one,) for one in spread(others)]), ("two others", pairs(others))):
                for some in ways:
                    yield _case(row, parts, [one for of in some for one in of], known_as)
            if others:
                yield _case(row, parts, [one for of in others for one in of], "all others")


MODES: Mapping[str, Callable[[Sequence[Row]], Iterator[Case]]] = {
    "history": by_time,
    "leave-one-out": without_own,
}


def _families(rows: Sequence[Row]) -> list[list[tuple[Row, Parts]]]:
    families: dict[str, list[tuple[Row, Parts]]] = defaultdict(list)
    for row in rows:
        parts = parts_of(row.run.signature)
        if parts is not None:
            families[parts.family].append((row, parts))
    return list(families.values())


def _case(row: Row, own: Parts, known: Sequence[tuple[Row, Parts]], how_many: str = "") -> Case:
    """Return the case as csub's look-up sorts what it finds: relatives are asked where no run of the job completed."""
    known = sorted(known, key=lambda one: one[0].run.ended_s)
    runs = tuple(one for one, parts in known if is_same(own, parts))
    if any(one.completed for one in runs):
        return Case(row, runs, (), how_many)
    relatives = [one for one, parts in known if not is_same(own, parts) and is_relative(own, parts)]
    return Case(row, runs, tuple(relatives[-RELATIVES_READ:]), how_many)


def spread(some: Sequence[_One]) -> Sequence[_One]:
    """Return all of them, or so many at even distances."""
    return some[:: max(1, math.ceil(len(some) / _MOST_WAYS))]


def pairs(of: Sequence[_One]) -> Iterator[tuple[_One, _One]]:
    """Yield all pairs in the order of itertools.combinations, or so many at even distances, without the rest."""
    many = len(of) * (len(of) - 1) // 2
    for number in range(0, many, max(1, math.ceil(many / _MOST_WAYS))):
        first, left = 0, number
        while left >= len(of) - 1 - first:
            left -= len(of) - 1 - first
            first += 1
        yield of[first], of[first + 1 + left]

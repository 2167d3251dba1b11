# SPDX-License-Identifier: Apache-2.0
"""What few readings of a whole GPU say of the job on it, against ten a second of eight jobs with phases on an H100."""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import pytest

from slurm_colloc.core.config import Observe
from slurm_colloc.core.model import Evidence
from slurm_colloc.core.usage_model import NodeSample
from slurm_colloc.estimate.bounds import FEWEST_READINGS, mean_at_most_pct, share_at_most_pct
from slurm_colloc.facts.compact import compact
from slurm_colloc.facts.evidence import measured_runs
from slurm_colloc.slurm.gres import parse_gres
from slurm_colloc.store.store import Store
from tests.unit.golden import Printed
from tests.unit.made import H100, device, near, run, seen
from tests.unit.stored import sampled

TABLE = Path(__file__).resolve().parents[1] / "gpu" / "readings_h100.csv"
# Until then its libraries are loaded.
WARM_S = 8.0


class Reading(NamedTuple):
    mib: int
    sm_pct: float | None
    util_pct: float


def jobs() -> dict[str, list[Reading]]:
    found: dict[str, list[Reading]] = defaultdict(list)
    with TABLE.open() as stream:
        for job, at_s, mib, sm, util in list(csv.reader(stream))[1:]:
            if float(at_s) > WARM_S:
                found[job].append(Reading(int(mib), float(sm) if sm else None, float(util)))
    return found


class Scraped(NamedTuple):
    """One series of readings, and what is true: the mean SM activity and the peak of memory."""

    sm_pct: list[float]
    util_pct: list[float]
    mib: list[int]
    true_pct: float
    peak_mib: int


def scraped(every: int, over: int) -> Iterator[Scraped]:
    """Yield each series that a scrape of each ``every``-th reading makes, if SM activity is a mean over ``over``."""
    for all_of in jobs().values():
        truth = fmean([one.sm_pct for one in all_of if one.sm_pct is not None])
        peak = max(one.mib for one in all_of)
        for first in range(every):
            at = range(first + over, len(all_of), every)
            spans = [[one.sm_pct for one in all_of[n - over : n] if one.sm_pct is not None] for n in at]
            means = [fmean(span) for span in spans if span]
            if len(means) >= FEWEST_READINGS:
                yield Scraped(means, [all_of[n].util_pct for n in at], [all_of[n].mib for n in at], truth, peak)


@pytest.mark.parametrize("every", [10, 20, 30, 40])
@pytest.mark.parametrize("over", [2, 10])
def test_the_mean_of_few_readings_with_its_error_is_above_the_truth(every: int, over: int) -> None:
    series = list(scraped(every, over))
    most = [mean_at_most_pct(fmean(one.sm_pct), stdev(one.sm_pct), len(one.sm_pct)) or 0.0 for one in series]
    below = [one.true_pct - high for one, high in zip(series, most, strict=True) if high < one.true_pct]
    assert len(series) >= 80
    assert len(below) <= 0.05 * len(series)
    assert max(below, default=0.0) < 1.0
    # The mean alone is below as often as not.
    assert sum(fmean(one.sm_pct) < one.true_pct for one in series) > 0.09 * len(series)


@pytest.mark.parametrize("every", [10, 20, 30, 40])
def test_the_mean_of_gpu_util_with_its_error_is_above_sm_activity(every: int) -> None:
    for one in scraped(every, 2):
        assert share_at_most_pct(fmean(one.util_pct), len(one.util_pct)) > one.true_pct


def test_the_peak_of_memory_stays_until_the_next_reading() -> None:
    assert all(max(one.mib) == one.peak_mib for every in (10, 20, 30, 40) for one in scraped(every, 2))


def test_bounds_on_a_mean() -> None:
    assert mean_at_most_pct(30.0, 10.0, 9) is None
    assert mean_at_most_pct(30.0, 0.0, 10) == 30.0
    assert mean_at_most_pct(99.0, 50.0, 10) == 100.0
    # Of Wilson's bound p the share is just as far off as 1.645 standard errors of p.
    for share, count in ((0.0, 20), (0.05, 120), (0.5, 7)):
        bound = share_at_most_pct(100 * share, count) / 100
        assert bound - share == near(1.645 * (bound * (1 - bound) / count) ** 0.5)
    assert share_at_most_pct(100.0, 20) == near(100.0)


def of_whole(at_s: float, sm: float | None = 20.0, interval_s: float = 30.0, **fields: Any) -> NodeSample:
    unit = device(process_list=False, sm_active_pct=sm, **fields)
    return seen(at_s, [unit], holders=[("GPU-0", "1")], interval_s=interval_s)


def kept(tmp_path: Path, rounds: list[NodeSample], gres: str = "gpu:h100:1") -> Evidence:
    store = Store(str(tmp_path))
    store.write_allocations("a", [run(start_s=0, end_s=600, gres=parse_gres(gres))], 1.0)
    sampled(store, rounds)
    (found,) = measured_runs(store, "c")
    return found.run


def test_readings_of_a_gpu_that_one_job_had_size_it(tmp_path: Path, printed: Printed) -> None:
    values = [10.0, 30.0] * 9
    found = kept(tmp_path, [of_whole(60.0 + 30 * n, sm) for n, sm in enumerate(values)])
    assert found.sm_active_mean_pct == near(20 + 1.83 * stdev(values) / 18**0.5)
    assert (found.gpu_mem_peak_mib, found.sm_is_bound, found.sample_count) == (3000, True, 18)
    assert found.dram_active_q95_pct == 5.0
    printed("history", found.source)


def test_facts_say_of_readings_what_readings_said(tmp_path: Path) -> None:
    found = kept(tmp_path, [of_whole(60.0 + 30 * n, 10.0 + 7 * (n % 5)) for n in range(18)])
    for _ in range(2):
        assert compact(Store(str(tmp_path)), Observe(), 20 * 86_400.0, anyway=True)
    assert Store(str(tmp_path)).samples.days(0, 86_400) == []
    ((*_, of_facts, _),) = measured_runs(Store(str(tmp_path)), "c")
    # High values are kept in steps.
    mean_pct = near(found.sm_active_mean_pct)
    of_readings = found._replace(sm_active_mean_pct=mean_pct, sm_active_q95_pct=38.0, dram_active_q95_pct=6.0)
    assert of_facts == of_readings


def test_a_reading_that_may_be_of_the_job_before_is_none(tmp_path: Path) -> None:
    before = [of_whole(10.0, 100.0, gpu_mem_used_mib=70_000), of_whole(29.0, 100.0, gpu_mem_used_mib=70_000)]
    found = kept(tmp_path, [*before, *[of_whole(60.0 + 30 * n) for n in range(18)]])
    assert (found.sm_active_mean_pct, found.gpu_mem_peak_mib) == (near(20.0), 3000)


def test_who_else_had_a_share_no_source_says(tmp_path: Path) -> None:
    found = kept(tmp_path, [of_whole(60.0 + 30 * n) for n in range(18)], "shard:2")
    assert (found.sm_active_mean_pct, found.gpu_mem_peak_mib) == (None, None)


@pytest.mark.parametrize("count", [9, 11])
def test_of_too_little_of_a_run_only_memory_is_known(tmp_path: Path, count: int) -> None:
    """Nine readings are too few, and eleven half minutes are less than 60 % of ten."""
    found = kept(tmp_path, [of_whole(60.0 + 30 * n) for n in range(count)])
    assert (found.sm_active_mean_pct, found.gpu_mem_peak_mib) == (None, 3000)


def test_scrapes_of_one_value_are_no_more_readings(tmp_path: Path) -> None:
    """Asked once in five seconds, of what is a mean over thirty."""
    values = [10.0 * (n // 6 % 2) for n in range(108)]
    found = kept(tmp_path, [of_whole(40.0 + 5 * n, sm, 5.0) for n, sm in enumerate(values)])
    assert found.sm_active_mean_pct == near(5 + 1.83 * stdev(values) / 18**0.5)


A100 = "NVIDIA A100-SXM4-40GB"


@pytest.mark.parametrize(("model", "most"), [(H100, near(40.0)), (A100, None)])
def test_gpu_util_bounds_only_where_sm_activity_can_follow(tmp_path: Path, model: str, most: object) -> None:
    rounds = [of_whole(60.0 + 30 * n, None, model=model) for n in range(18)]
    assert kept(tmp_path / "by others", rounds).sm_active_mean_pct == most
    dcgm = [of_whole(60.0 + 30 * n, 20.0, model=model) for n in range(18)]
    assert kept(tmp_path / "dcgm", dcgm).sm_active_mean_pct == near(20.0)

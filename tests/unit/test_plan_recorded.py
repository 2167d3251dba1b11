# SPDX-License-Identifier: Apache-2.0
"""The replay against real Slurm: the waits that real clusters made of the same jobs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from statistics import fmean

import pytest

from slurm_colloc.plan.replay import replay
from tests.rings import tenth
from tests.unit.plan_recorded import Recording, recording, recordings

CLASSES = {"1 GPU": (1,), "2 GPUs": (2,), "4 GPUs": (4,), "all": (1, 2, 4)}


# Who is ranked first when a GPU falls free depends on seconds: the same jobs submitted within another second wait some
# percent more or less, each replay as each real run.
REPLAYS = tenth(6)


@cache
def replayed_s(one: Recording) -> tuple[float, ...]:
    """Return what each job waits on average of some replays that begin at another time of the scheduler's rounds."""
    waits = [0.0] * len(one.jobs)
    for number in range(REPLAYS):
        draw = random.Random(number)
        begin_s = draw.uniform(0, 60)
        jobs = [job._replace(submit_s=job.submit_s + begin_s + draw.random()) for job in one.jobs]
        for started in replay(one.site, jobs).started:
            waits[started.job.number] += started.wait_s / REPLAYS
    return tuple(waits)


def mean_of(name: str, one: Recording, waits: Sequence[float]) -> float:
    return fmean(wait for job, wait in zip(one.jobs, waits, strict=True) if job.shape.units in CLASSES[name])


def turnaround_s(one: Recording) -> float:
    return fmean(job.run_s + wait for job, wait in zip(one.jobs, one.waited_s, strict=True))


def found(load: float) -> list[Recording]:
    runs = [one for one in map(recording, recordings()) if one.load == load]
    assert len(runs) >= 4
    assert {one.name[:5] for one in runs} == {"22.05", "26.05"}
    return runs


@pytest.mark.parametrize("load", [0.6, 0.9, 1.05])
def test_the_mean_wait_is_within_five_percent_of_the_turnaround(load: float) -> None:
    runs = found(load)
    bias_s = fmean(fmean(replayed_s(one)) - fmean(one.waited_s) for one in runs)
    assert abs(bias_s) <= 0.05 * fmean(map(turnaround_s, runs))


@pytest.mark.parametrize("load", [0.6, 0.9, 1.05])
def test_the_mean_wait_is_as_near_as_real_repeats_are(load: float) -> None:
    real = [fmean(one.waited_s) for one in found(load)]
    replayed = [fmean(replayed_s(one)) for one in found(load)]
    assert abs(fmean(replayed) - fmean(real)) <= max(real) - min(real)


def repeats() -> list[Recording]:
    return [one for one in map(recording, recordings()) if one.load == 0.9]


@pytest.mark.parametrize("name", CLASSES)
def test_the_mean_wait_of_a_class_is_as_near_as_a_repeat(name: str) -> None:
    real = [mean_of(name, one, one.waited_s) for one in repeats()]
    replayed = [mean_of(name, one, replayed_s(one)) for one in repeats()]
    ran = fmean(mean_of(name, one, [job.run_s for job in one.jobs]) for one in repeats())
    assert abs(fmean(replayed) - fmean(real)) <= max(0.05 * (ran + fmean(real)), max(real) - min(real))


def test_a_job_is_foretold_nearly_as_well_as_by_a_repeat() -> None:
    of_repeats = [
        fmean(abs(x - y) for x, y in zip(one.waited_s, other.waited_s, strict=True))
        for at, one in enumerate(repeats())
        for other in repeats()[:at]
    ]
    missed = [fmean(abs(x - y) for x, y in zip(one.waited_s, replayed_s(one), strict=True)) for one in repeats()]
    assert fmean(missed) <= 1.25 * fmean(of_repeats)

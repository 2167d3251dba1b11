# SPDX-License-Identifier: Apache-2.0
"""The replay against real Slurm: the waits that real clusters made of the same jobs."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

import pytest

from slurm_colloc.plan.replay import replay
from tests.unit.plan_recorded import Recording, recording, recordings

CLASSES = {"1 GPU": (1,), "2 GPUs": (2,), "4 GPUs": (4,), "all": (1, 2, 4)}


def replayed_s(one: Recording) -> list[float]:
    waits = {started.job.number: started.wait_s for started in replay(one.site, one.jobs).started}
    return [waits[job.number] for job in one.jobs]


def mean_of(name: str, one: Recording, waits: list[float] | tuple[float, ...]) -> float:
    return fmean(wait for job, wait in zip(one.jobs, waits, strict=True) if job.shape.units in CLASSES[name])


def turnaround_s(one: Recording) -> float:
    return fmean(job.run_s + wait for job, wait in zip(one.jobs, one.waited_s, strict=True))


@pytest.mark.parametrize("path", [one for one in recordings() if "105" not in one.stem], ids=lambda path: path.stem)
def test_the_mean_wait_is_within_five_percent_of_the_turnaround(path: Path) -> None:
    one = recording(path)
    assert abs(fmean(replayed_s(one)) - fmean(one.waited_s)) <= 0.05 * turnaround_s(one)


@pytest.mark.parametrize("load", [0.6, 0.9, 1.05])
def test_the_mean_wait_is_as_near_as_real_repeats_are(load: float) -> None:
    """With more asked for than there is (1.05) two real runs differ by a tenth of the turnaround."""
    found = [one for one in map(recording, recordings()) if one.load == load]
    assert len(found) >= 2
    real = [fmean(one.waited_s) for one in found]
    replayed = [fmean(replayed_s(one)) for one in found]
    near = 0.05 * fmean(map(turnaround_s, found))
    assert abs(fmean(replayed) - fmean(real)) <= max(near, max(real) - min(real))


def repeats() -> list[Recording]:
    found = [one for one in map(recording, recordings()) if one.load == 0.9]
    assert len(found) >= 2
    return found


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


def test_a_higher_load_waits_longer() -> None:
    means = sorted((one.load, fmean(replayed_s(one))) for one in map(recording, recordings()))
    assert means[0][1] < means[-1][1]
    assert means[0][0] < means[-1][0]

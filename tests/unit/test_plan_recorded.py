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


LOADS = [(load, release) for load in (0.6, 0.9, 1.05) for release in ("22.05", "26.05")]


def found(load: float, release: str) -> list[Recording]:
    """Return the repeats of one trace."""
    runs = [one for one in map(recording, recordings()) if one.load == load and one.name.startswith(release)]
    same = [one for one in runs if one.seed == runs[0].seed]
    assert len(same) >= 2
    return same


@pytest.mark.parametrize(("load", "release"), LOADS)
def test_the_mean_wait_is_within_five_percent_of_the_turnaround(load: float, release: str) -> None:
    runs = found(load, release)
    bias_s = fmean(fmean(replayed_s(one)) - fmean(one.waited_s) for one in runs)
    assert abs(bias_s) <= 0.05 * fmean(map(turnaround_s, runs))


@pytest.mark.parametrize("path", recordings(), ids=lambda path: path.stem)
def test_each_run_is_within_eight_percent_of_the_turnaround(path: Path) -> None:
    """Replays of the same jobs differ by as much if these are submitted a second later: by who is ranked first then."""
    one = recording(path)
    assert abs(fmean(replayed_s(one)) - fmean(one.waited_s)) <= 0.08 * turnaround_s(one)


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


def test_a_higher_load_waits_longer() -> None:
    means = sorted((one.load, fmean(replayed_s(one))) for one in map(recording, recordings()))
    assert means[0][1] < means[-1][1]
    assert means[0][0] < means[-1][0]

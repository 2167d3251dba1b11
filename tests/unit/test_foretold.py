# SPDX-License-Identifier: Apache-2.0
"""What foretells slowdowns, by the measured tables."""

import pytest

from tests.gpu import foretold


@pytest.mark.parametrize(
    ("low", "high", "jobs", "mean", "over"),
    [(0.0, 0.3, 45, 1.01, 1), (0.3, 0.5, 40, 1.04, 3), (0.5, 0.8, 22, 1.18, 5), (0.8, 1.0, 14, 1.33, 6)],
)
def test_what_keeps_the_gpu_busy_is_what_neighbours_slow(
    low: float, high: float, jobs: int, mean: float, over: int
) -> None:
    here = [job.slowdown for job in foretold.measured()["mixed"] if low < job.alone.busy <= high]
    assert (len(here), sum(one > foretold.BOUND for one in here)) == (jobs, over)
    assert sum(here) / len(here) == pytest.approx(mean, abs=0.005)


@pytest.mark.parametrize(
    ("name", "error_pct", "correlation"), [("SM activity", 11.4, 0.18), ("and busy time", 9.0, 0.73)]
)
def test_neighbours_are_foretold_for_a_program_that_the_factor_does_not_know(
    name: str, error_pct: float, correlation: float
) -> None:
    jobs = foretold.measured()["mixed"]
    of = foretold.judged(jobs, foretold.foretold(jobs, foretold.BESIDE[name]))
    assert (of.jobs, round(of.mean_error_pct, 1), round(of.correlation, 2)) == (121, error_pct, correlation)


def test_with_the_busy_time_the_older_mixes_foretell_the_new_ones() -> None:
    new, old, figure = foretold.measured()["mixed"], foretold.older()["mixed"], foretold.BESIDE["and busy time"]
    told = [1 + foretold.factor(old, figure) * figure(job) for job in new]
    of = foretold.judged(new, told)
    assert (len(old), round(of.mean_error_pct, 1), round(of.correlation, 2)) == (184, 8.9, 0.75)
    assert foretold.let(new, told) == (16, 63, 1)


def test_a_factor_is_chosen_without_the_program_itself() -> None:
    two = foretold.Alone(0.5, 1.0)
    jobs = [foretold.Job(name, two, slowdown, (two,)) for name, slowdown in (("a", 1.25), ("a", 1.75), ("b", 3.0))]
    assert foretold.foretold(jobs, lambda job: job.alone.active) == pytest.approx([3.0, 3.0, 1.5])


def test_mixes_are_let_up_to_the_limit_at_which_few_are_over() -> None:
    two = foretold.Alone(0.5, 1.0)
    jobs = [foretold.Job("a", two, 1.0, (two,), f"{i}") for i in range(60)]
    jobs[50] = jobs[50]._replace(slowdown=2.0)
    assert foretold.let(jobs, [float(i) for i in range(60)]) == (60, 60, 1)
    assert foretold.let(jobs, [-float(i == 50) for i in range(60)]) == (60, 60, 1)
    assert foretold.let(jobs[:51], [float(i) for i in range(51)]) == (51, 51, 1)
    assert foretold.let(jobs[10:51], [float(i) for i in range(41)]) == (40, 40, 0)
    both = [jobs[50], jobs[0]._replace(mix="50"), *jobs[:40]]
    assert foretold.let(both, [9.0, 0.0, *(1.0 for _ in range(40))]) == (40, 40, 0)

# SPDX-License-Identifier: Apache-2.0
"""The rung of runs that were cut at a time limit."""

from slurm_colloc.core.model import GPU_OOM, Evidence, Footprint, Quantiles, because
from slurm_colloc.estimate.interrupted import from_cut_runs
from slurm_colloc.estimate.ladder import estimate
from slurm_colloc.estimate.question import Question
from tests.unit.made import H100, codes, evidence, near


def cut(
    job_id: str = "1", peak_mib: int | None = 8000, grew_until_s: float | None = 20.0, **fields: object
) -> Evidence:
    return evidence(job_id, peak_mib, state="TIMEOUT", grew_until_s=grew_until_s, **fields)


def test_a_cut_run_whose_memory_was_at_rest_counts() -> None:
    found = estimate(Question(runs=[cut()]))
    assert (found.rung, found.gpu_mem_peak_mib) == ("probe", Quantiles(8000, 8000, near(9200)))
    assert found.sm_active_pct == Quantiles(20.0, 20.0, 20.0)
    assert found.run_time_s is None, "a run that was cut did not say how long it takes"
    assert found.provenance[0] == because("cut-at-rest", runs=1, gpu_model=H100)
    assert (found.provenance[1].code, found.provenance[1].params["factor"]) == ("margin", 1.15)


def test_a_completed_run_is_worth_more() -> None:
    found = estimate(Question(runs=[cut("1", 9000), evidence("2", 8000)]))
    assert (found.rung, found.gpu_mem_peak_mib) == ("exact", Quantiles(8000, 8000, near(9200)))


def test_what_still_grew_or_was_hardly_seen_says_nothing() -> None:
    growing = (cut(grew_until_s=51.0), cut(grew_until_s=None))
    for run in (
        *growing,
        cut(sample_count=2),
        cut(peak_mib=0),
        cut(peak_mib=None),
        cut(sm_active_mean_pct=0.0, sm_active_q95_pct=0.4),
    ):
        found = estimate(Question(runs=[run]))
        assert found.gpu_mem_peak_mib is None
        assert because("cut-while-growing", runs=1) in found.provenance
    assert isinstance(from_cut_runs(Question(runs=[cut(grew_until_s=50.0)])), Footprint)


def test_what_took_its_part_of_the_gpu_at_once_is_not_learned_from() -> None:
    greedy = cut(peak_mib=61200, gpu_mem_total_mib=81559, grew_until_s=5.0)
    assert estimate(Question(runs=[greedy])).gpu_mem_peak_mib is None


def test_what_was_too_little_raises_it() -> None:
    found = estimate(Question(runs=[cut(), evidence("2", 9985, state=GPU_OOM)]))
    assert found.gpu_mem_peak_mib == Quantiles(8000, 8000, 9985)
    assert because("ran-out-of-memory", least_mib=9985, job_id="2") in found.provenance


def test_without_cut_runs_there_is_nothing_to_say() -> None:
    assert codes(estimate(Question(runs=[evidence(state="FAILED")])).provenance) == ["none-completed"]

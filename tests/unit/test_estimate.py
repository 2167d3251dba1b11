# SPDX-License-Identifier: Apache-2.0
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.core.errors import InputError
from slurm_colloc.core.model import GPU_OOM, Evidence, Footprint, Quantiles, because
from slurm_colloc.estimate.exact import from_runs
from slurm_colloc.estimate.hint import parse_hint
from slurm_colloc.estimate.ladder import estimate
from slurm_colloc.estimate.question import Question
from tests.unit.made import H100, codes, evidence, near


def footprint(*runs: Evidence) -> Footprint:
    found = from_runs(Question(runs=runs))
    assert isinstance(found, Footprint)
    return found


def test_what_a_job_needs_of_the_host() -> None:
    first = evidence("1", cpu_cores_q95=3.9, host_mem_peak_mib=1001)
    second = evidence("2", cpu_cores_q95=2.0, host_mem_peak_mib=4000)
    assert (footprint(first).cpu_cores, footprint(first).host_mem_mib) == (5, 1502 + 512)
    assert (footprint(first, second).cpu_cores, footprint(first, second).host_mem_mib) == (5, 6000 + 512)
    # However a run ended, its job needs no less memory than it held; of cores it may have used more for nothing.
    killed = evidence("3", state="OUT_OF_MEMORY", cpu_cores_q95=60.0, host_mem_peak_mib=8000)
    assert (footprint(first, killed).cpu_cores, footprint(first, killed).host_mem_mib) == (5, 12000 + 512)
    # What one completed run used nobody knows: it may have been more.
    unseen = footprint(first, evidence("4"))
    assert (unseen.cpu_cores, unseen.host_mem_mib) == (None, None)
    hinted = estimate(Question(runs=[first], hint="mem=9G,sm=30"))
    assert (hinted.cpu_cores, hinted.host_mem_mib) == (5, 2014)


def test_one_run_gets_the_larger_margin() -> None:
    found = footprint(evidence(peak_mib=8000))
    assert found.gpu_mem_peak_mib == Quantiles(8000, 8000, near(9200))
    assert (found.rung, found.evidence_count, found.gpu_model) == ("exact", 1, H100)
    assert found.sm_active_pct == Quantiles(20.0, 20.0, 20.0)
    assert found.provenance == (
        because("completed-runs", runs=1, gpu_model=H100),
        because("margin", factor=1.15, floor_mib=0.0, answers=0),
    )


def test_the_margin_is_over_the_largest() -> None:
    three = footprint(evidence("1", 6000), evidence("2", 8000), evidence("3", 7000))
    assert three.gpu_mem_peak_mib == Quantiles(7000, 8000, near(9200))


@pytest.mark.parametrize("state", ["FAILED", "OUT_OF_MEMORY", "TIMEOUT", "CANCELLED", "RUNNING", "NODE_FAIL"])
def test_a_run_without_a_known_end_can_only_raise(state: str) -> None:
    base = footprint(evidence("1", 8000)).gpu_mem_peak_mib
    low = footprint(evidence("1", 8000), evidence("2", 100, state=state)).gpu_mem_peak_mib
    high = footprint(evidence("1", 8000), evidence("2", 9900, state=state)).gpu_mem_peak_mib
    assert low == base
    assert high == Quantiles(8000, 8000, 9900)
    once = footprint(evidence("1", 8000), evidence("2", 9900, state=state, sample_count=1)).gpu_mem_peak_mib
    assert once == high


def test_reasons_to_abstain() -> None:
    for runs, why in (
        ([], because("no-earlier-run")),
        ([evidence(state="FAILED"), evidence(sample_count=2)], because("none-completed", runs=2, samples=3)),
        ([evidence(peak_mib=None)], because("none-completed", runs=1, samples=3)),
        ([evidence(peak_mib=0)], because("gpu-unused", runs=1)),
    ):
        assert from_runs(Question(runs=runs)) == why


def test_models_are_not_mixed() -> None:
    mixed = [
        evidence("1", 20000, gpu_model="A100"),
        evidence("2", 8000),
        evidence("3", 9999, gpu_model="A100", state="FAILED"),
    ]
    found = footprint(*mixed)
    assert (found.gpu_model, found.evidence_count) == (H100, 1)
    assert found.gpu_mem_peak_mib == Quantiles(8000, 8000, near(9200))
    assert footprint(*mixed[::-1]).gpu_model == "A100"


def test_a_peak_on_a_share_counts_as_on_a_whole_gpu() -> None:
    both = footprint(evidence("1", 10000), evidence("2", 12000, mode="mps"))
    assert (both.gpu_mem_peak_mib, both.evidence_count) == (
        footprint(evidence("1", 10000), evidence("2", 12000)).gpu_mem_peak_mib,
        2,
    )


def test_sm_of_a_share_says_nothing_of_the_whole() -> None:
    found = footprint(evidence(mode="mig"), evidence("2", mode="mps"), evidence("3", mode="shard"))
    assert found.sm_active_pct is None
    assert because("sm-not-measured") in found.provenance
    one = footprint(evidence(mode="mig", sm_active_q95_pct=99.0), evidence("2"), evidence("3", sm_active_mean_pct=None))
    assert one.sm_active_pct == Quantiles(20.0, 20.0, 20.0)


def test_a_bound_by_gpu_util_is_named() -> None:
    found = footprint(evidence(sm_is_bound=True), evidence("2", sm_active_mean_pct=40.0, sm_active_q95_pct=60.0))
    assert found.sm_active_pct == Quantiles(30.0, 40.0, 40.0)
    assert found.provenance[-1] == because("sm-bounded-by-util")


@given(
    st.lists(
        st.builds(
            lambda peak, state, count: evidence(peak_mib=peak, state=state, sample_count=count),
            st.none() | st.integers(0, 80000),
            st.sampled_from(["COMPLETED", "FAILED", "RUNNING"]),
            st.integers(0, 9),
        ),
        max_size=8,
    )
)
def test_never_below_what_was_seen(runs: list[Evidence]) -> None:
    found = from_runs(Question(runs=runs))
    if isinstance(found, Footprint):
        assert found.gpu_mem_peak_mib is not None
        seen = [run.gpu_mem_peak_mib for run in runs if run.gpu_mem_peak_mib is not None]
        assert found.gpu_mem_peak_mib.q99 >= max(seen)
        assert found.gpu_mem_peak_mib.q50 <= found.gpu_mem_peak_mib.q95 <= found.gpu_mem_peak_mib.q99


def test_hint() -> None:
    found = parse_hint("mem=9G, sm=30")
    assert (found.gpu_mem_peak_mib, found.sm_active_pct) == (Quantiles(9216, 9216, 9216), Quantiles(30, 30, 30))
    assert (found.rung, found.gpu_model, found.provenance) == ("hint", "", (because("hint", hint="mem=9G, sm=30"),))
    assert parse_hint("mem=512M").sm_active_pct is None
    assert parse_hint("mem=512M").dram_active_pct is None
    assert parse_hint("dram=20,mem=512M").dram_active_pct == Quantiles(20, 20, 20)


def test_the_memorys_activity_is_the_highest_seen_on_a_whole_gpu() -> None:
    runs = [evidence(str(n), dram_active_q95_pct=of) for n, of in enumerate((10.0, None, 30.0, 20.0), 1)]
    assert estimate(Question(None, runs=runs)).dram_active_pct == Quantiles(20, 30, 30)
    assert estimate(Question("mem=1G", runs=runs)).dram_active_pct == Quantiles(20, 30, 30)
    assert estimate(Question("mem=1G,dram=5", runs=runs)).dram_active_pct == Quantiles(5, 5, 5)
    assert estimate(Question(None, runs=[evidence(mode="mps", dram_active_q95_pct=99.0)])).dram_active_pct is None
    assert estimate(Question(None, runs=[evidence()])).dram_active_pct is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "'' is not one of mem=SIZE"),
        ("10", "'10' is not one of mem=SIZE"),
        ("9G", "'9G' is not one of mem=SIZE"),
        ("mem=9G,gpu=1", "'gpu=1' is not one of"),
        ("mem=9G,mem=9G", "each at most once"),
        ("sm=30", "lacks mem=SIZE"),
        ("mem=9", "'9' is not a number with a unit; write it like '9G'"),
        ("mem=9G,sm=101", "sm '101' lies outside"),
        ("mem=9G,dram=0", "dram '0' lies outside"),
    ],
)
def test_no_hint(text: str, why: str) -> None:
    with pytest.raises(InputError, match=re.escape(why)):
        parse_hint(text)


def test_ladder() -> None:
    assert estimate(Question(None, runs=[])) == Footprint(
        None, None, None, "", "unknown", 0, (because("no-earlier-run"),)
    )
    with pytest.raises(InputError):
        estimate(Question("mem=x", runs=[evidence()]))


def test_what_the_hint_leaves_open_may_have_been_measured() -> None:
    found = estimate(Question("mem=1G", runs=[evidence()]))
    assert found.gpu_mem_peak_mib is not None
    assert found.sm_active_pct is not None
    assert (found.rung, found.gpu_mem_peak_mib.q99, found.sm_active_pct.q95) == ("hint", 1024.0, 20.0)
    assert found.gpu_model == H100
    given = estimate(Question("mem=1G,sm=5", runs=[evidence()]))
    assert (given.sm_active_pct, given.gpu_model) == (Quantiles(5.0, 5.0, 5.0), "")
    assert estimate(Question("mem=1G", runs=[evidence(mode="mig")])).sm_active_pct is None


OUT = evidence("12", 9985, state=GPU_OOM)


def test_what_ran_out_of_memory_raises_a_hint_that_is_below_it() -> None:
    raised = estimate(Question("mem=4G,sm=10", runs=(OUT,)))
    assert raised.gpu_mem_peak_mib == Quantiles(9985, 9985, 9985)
    assert because("ran-out-of-memory", least_mib=9985, job_id="12") in raised.provenance
    assert estimate(Question("mem=20G,sm=10", runs=(OUT,))).gpu_mem_peak_mib == Quantiles(20480, 20480, 20480)


def test_what_ran_out_of_memory_bounds_completed_runs_on_whatever_model() -> None:
    found = footprint(evidence("1", 4000), OUT._replace(gpu_model=""))
    assert found.gpu_mem_peak_mib == Quantiles(4000, 4000, 9985)
    assert because("ran-out-of-memory", least_mib=9985, job_id="12") in found.provenance
    assert "ran-out-of-memory" not in codes(footprint(evidence("1", 20000), OUT).provenance)


def test_what_ran_out_of_memory_alone_is_no_estimate() -> None:
    assert codes(estimate(Question(None, runs=(OUT,))).provenance) == ["none-completed"]

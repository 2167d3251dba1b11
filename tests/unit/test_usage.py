# SPDX-License-Identifier: Apache-2.0
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.accounting.usage import summarize, total
from slurm_colloc.errors import InputError
from slurm_colloc.model import JobUsage
from tests.unit.made import near, usage

UNMEASURED = usage(
    util_measured_gpu_hours=0.0,
    util_used_gpu_hours=None,
    sm_measured_gpu_hours=0.0,
    sm_used_gpu_hours=None,
    coverage_pct=0.0,
    methods=(),
)


def test_weighted_and_plain_differ() -> None:
    long = usage(allocated_gpu_hours=9.0, util_measured_gpu_hours=9.0, util_used_gpu_hours=9.0)
    whole = total([usage(util_used_gpu_hours=0.0), long], "t")
    assert (whole.util_weighted_pct, whole.util_plain_pct) == (90.0, 50.0)
    assert (whole.allocated_gpu_hours, whole.util_measured_gpu_hours, whole.util_used_gpu_hours) == (10.0, 10.0, 9.0)
    assert (whole.sm_used_gpu_hours, whole.sm_measured_gpu_hours, whole.sm_weighted_pct) == (0.5, 2.0, 25.0)


def test_the_denominator_is_what_was_measured() -> None:
    half = usage(util_measured_gpu_hours=0.5, util_used_gpu_hours=0.25, coverage_pct=50.0)
    whole = total([half, UNMEASURED], "t")
    assert (whole.jobs, whole.jobs_measured, whole.allocated_gpu_hours) == (2, 1, 2.0)
    assert (whole.util_measured_gpu_hours, whole.util_weighted_pct, whole.coverage_pct) == (0.5, 50.0, 25.0)


def test_nothing_measured_is_none() -> None:
    whole = total([UNMEASURED], "t")
    assert (whole.util_used_gpu_hours, whole.util_weighted_pct, whole.util_plain_pct) == (None, None, None)
    assert (whole.sm_used_gpu_hours, whole.sm_weighted_pct, whole.coverage_pct) == (None, None, 0.0)
    empty = total([], "t")
    assert (empty.jobs, empty.allocated_gpu_hours, empty.util_weighted_pct, empty.coverage_pct) == (0, 0.0, None, None)


def test_unknown_size_stays_out_of_both_sides() -> None:
    whole = total([usage(), usage(allocated_gpu_hours=None, util_used_gpu_hours=99.0)], "t")
    assert (whole.jobs, whole.jobs_without_size, whole.jobs_measured) == (2, 1, 2)
    assert (whole.allocated_gpu_hours, whole.util_used_gpu_hours, whole.util_weighted_pct) == (1.0, 0.5, 50.0)


def test_coverage_weighs_by_hours_and_skips_what_is_not_recorded() -> None:
    runs = [usage(coverage_pct=100.0), usage(allocated_gpu_hours=3.0, coverage_pct=20.0), usage(coverage_pct=None)]
    assert total(runs, "t").coverage_pct == pytest.approx(40.0)
    assert total(runs[2:], "t").coverage_pct is None


def test_groups() -> None:
    runs = [
        usage(user="ann", account="x", methods=("split by memory",)),
        usage(user="bob", account="x", sm_used_gpu_hours=0.0),
        usage(user="cid", account="y", sm_used_gpu_hours=None, sm_measured_gpu_hours=0.0, util_used_gpu_hours=0.9),
        usage(user="bob", account="y"),
    ]
    # Most unused first: bob 1 + 0.75, ann 0.75, cid 0.1 by GPU_UTIL.
    assert [group.name for group in summarize(runs, "user")] == ["bob", "ann", "cid"]
    assert [(group.name, group.jobs) for group in summarize(runs, "account")] == [("x", 2), ("y", 2)]
    assert summarize(runs, "account")[0].methods == ("measured", "split by memory")
    with pytest.raises(InputError, match="'--by node' is not one of user, account, partition"):
        summarize(runs, "node")


HOURS = st.floats(0, 1e4)
RUNS = st.lists(
    st.builds(
        lambda allocated, part, use, known: usage(
            allocated_gpu_hours=allocated,
            util_measured_gpu_hours=allocated * part,
            util_used_gpu_hours=allocated * part * use if known else None,
            coverage_pct=100 * part,
        ),
        HOURS,
        st.floats(0, 1),
        st.floats(0, 1),
        st.booleans(),
    ),
    max_size=10,
)


@given(RUNS, st.integers())
def test_order_never_matters_and_percentages_stay_in_bounds(runs: list[JobUsage], seed: int) -> None:
    whole = total(runs, "t")
    shuffled = random.Random(seed).sample(runs, len(runs))
    assert total(shuffled, "t") == whole
    for value in (whole.util_weighted_pct, whole.util_plain_pct, whole.coverage_pct):
        assert value is None or -1e-9 <= value <= 100 + 1e-9


@given(RUNS, RUNS)
def test_groups_add_up_to_the_total(first: list[JobUsage], second: list[JobUsage]) -> None:
    runs = first + [run._replace(user="bob") for run in second]
    groups = summarize(runs, "user")
    assert sum(group.jobs for group in groups) == len(runs)
    assert sum(group.allocated_gpu_hours for group in groups) == pytest.approx(total(runs, "t").allocated_gpu_hours)


def test_each_run_counts_by_the_best_that_is_known_of_it() -> None:
    by_sm = usage(sm_measured_gpu_hours=0.8, sm_used_gpu_hours=0.2, util_used_gpu_hours=0.7)
    by_util = usage(sm_used_gpu_hours=None, util_measured_gpu_hours=1.0, util_used_gpu_hours=0.9)
    unknown = usage(sm_used_gpu_hours=None, util_used_gpu_hours=None)
    whole = total([by_sm, by_util, unknown], "t")
    assert (whole.used_gpu_hours, whole.idle_gpu_hours) == (near(1.1), near(0.7))
    bare = total([unknown], "t")
    assert (bare.used_gpu_hours, bare.idle_gpu_hours) == (None, None)


@given(RUNS)
def test_used_idle_and_not_sampled_are_the_allocation(runs: list[JobUsage]) -> None:
    whole = total([run._replace(sm_used_gpu_hours=None) for run in runs], "t")
    assert (whole.used_gpu_hours or 0) + (whole.idle_gpu_hours or 0) <= whole.allocated_gpu_hours * (1 + 1e-9)

# SPDX-License-Identifier: Apache-2.0
from collections.abc import Sequence
from pathlib import Path

from slurm_colloc.core.errors import InputError
from slurm_colloc.core.model import Gres
from slurm_colloc.core.usage_model import GroupUsage, JobUsage
from slurm_colloc.facts.aggregate import aggregate
from slurm_colloc.facts.usage import used_hours_by, used_hours_by_kind
from slurm_colloc.store.window import Window
from tests.unit.golden import Printed
from tests.unit.made import decision, near, run, usage
from tests.unit.stored import grouped, stored


def total(runs: Sequence[JobUsage]) -> GroupUsage:
    return grouped(runs)[-1]


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
    whole = total([usage(util_used_gpu_hours=0.0), long])
    assert (whole.util_weighted_pct, whole.util_plain_pct) == (90.0, 50.0)
    assert (whole.allocated_gpu_hours, whole.util_measured_gpu_hours, whole.util_used_gpu_hours) == (10.0, 10.0, 9.0)
    assert (whole.sm_used_gpu_hours, whole.sm_measured_gpu_hours, whole.sm_weighted_pct) == (0.5, 2.0, 25.0)


def test_the_denominator_is_what_was_measured() -> None:
    half = usage(util_measured_gpu_hours=0.5, util_used_gpu_hours=0.25, coverage_pct=50.0)
    whole = total([half, UNMEASURED])
    assert (whole.jobs, whole.jobs_measured, whole.allocated_gpu_hours) == (2, 1, 2.0)
    assert (whole.util_measured_gpu_hours, whole.util_weighted_pct, whole.coverage_pct) == (0.5, 50.0, 25.0)


def test_nothing_measured_is_none() -> None:
    whole = total([UNMEASURED])
    assert (whole.util_idle_gpu_hours, whole.sm_idle_gpu_hours, whole.sm_plain_pct) == (None, None, None)
    assert (whole.util_used_gpu_hours, whole.util_weighted_pct, whole.util_plain_pct) == (None, None, None)
    assert (whole.sm_used_gpu_hours, whole.sm_weighted_pct, whole.coverage_pct) == (None, None, 0.0)
    empty = total([])
    assert (empty.jobs, empty.allocated_gpu_hours, empty.util_weighted_pct, empty.coverage_pct) == (0, 0.0, None, None)
    assert (empty.held_unknown_hours, empty.util_measured_gpu_hours, empty.sm_measured_gpu_hours) == (0.0, 0.0, 0.0)
    assert (empty.held_gpu_hours, empty.energy_kwh, empty.gpu_mem_peak_mib, empty.methods) == (0.0, None, None, ())


def test_a_percentage_of_no_time_is_none() -> None:
    nothing = {name: 0.0 for name in usage()._fields if name.endswith("_gpu_hours")}
    whole = total([usage(**nothing)])
    assert (whole.util_weighted_pct, whole.util_plain_pct, whole.coverage_pct) == (None, None, None)
    assert (whole.sm_weighted_pct, whole.sm_plain_pct) == (None, None)
    hour = total([usage(**nothing), usage()])
    assert (hour.util_weighted_pct, hour.util_plain_pct, hour.sm_weighted_pct, hour.sm_plain_pct) == (50, 50, 25, 25)


# As the sweep has a run whose share's size is not known.
UNSIZED = dict.fromkeys(
    f"{name}_gpu_hours" for name in ("allocated", "util_measured", "util_used", "sm_measured", "sm_used", "sm_beyond")
)


def test_unknown_size_stays_out_of_both_sides() -> None:
    whole = total([usage(), usage(**UNSIZED)])
    assert (whole.jobs, whole.jobs_without_size, whole.jobs_measured) == (2, 1, 2)
    assert (whole.allocated_gpu_hours, whole.util_used_gpu_hours, whole.util_weighted_pct) == (1.0, 0.5, 50.0)
    assert (whole.held_gpu_hours, whole.util_idle_gpu_hours, whole.sm_plain_pct) == (1.0, 0.5, 25.0)
    # Where the size of none is known, neither are the hours.
    unsized = total([usage(**UNSIZED)])
    assert (unsized.allocated_gpu_hours, unsized.util_used_gpu_hours, unsized.jobs_without_size) == (None, None, 1)


def test_held_time_that_nobody_saw_is_not_zero() -> None:
    unseen = total([usage(held_gpu_hours=None, held_unknown_hours=2.0)])
    assert (unseen.held_gpu_hours, unseen.held_unknown_hours) == (None, 2.0)
    unsized = total([usage(allocated_gpu_hours=None, held_gpu_hours=None, held_unknown_hours=3.0), usage()])
    assert (unsized.held_gpu_hours, unsized.held_unknown_hours) == (1.0, 3.0)


def test_groups(printed: Printed) -> None:
    runs = [
        usage(user="ann", account="x", methods=("split by memory",)),
        usage(user="bob", account="x", sm_used_gpu_hours=0.0),
        usage(user="cid", account="y", sm_used_gpu_hours=None, sm_measured_gpu_hours=0.0, util_used_gpu_hours=0.9),
        usage(user="bob", account="y"),
    ]
    # Most unused first: bob 1 + 0.75, ann 0.75, cid 0.1 by GPU_UTIL.
    assert [group.name for group in grouped(runs)] == ["bob", "ann", "cid", "total"]
    by_util = usage(user="dan", sm_used_gpu_hours=None, util_measured_gpu_hours=9.0, util_used_gpu_hours=0.0)
    assert [group.name for group in grouped([*runs, by_util])] == ["dan", "bob", "ann", "cid", "total"]
    # Of whom nothing is known comes last, the larger allocation first.
    unknown = [UNMEASURED._replace(user="eve"), UNMEASURED._replace(user="fay", allocated_gpu_hours=2.0)]
    assert [group.name for group in grouped([*unknown, *runs])] == ["bob", "ann", "cid", "fay", "eve", "total"]
    *accounts, _ = grouped(runs, "account")
    assert [(group.name, group.jobs) for group in accounts] == [("x", 2), ("y", 2)]
    assert accounts[0].methods == ("measured", "split by memory")
    with printed.raises("report", InputError, "'--by day'"):
        grouped(runs, "day")


def test_groups_by_qos_and_by_kind_of_gpu() -> None:
    runs = [
        usage(qos="high"),
        usage(qos="low", gpu_type="h100_1g.10gb", allocated_gpu_hours=1 / 7, held_gpu_hours=1 / 7),
        usage(qos="high", gpu_type="h100_1g.10gb", allocated_gpu_hours=2 / 7, held_gpu_hours=2 / 7),
    ]
    assert {group.name: group.jobs for group in grouped(runs, "qos")} == {"high": 2, "low": 1, "total": 3}
    by_kind = {group.name: group.held_gpu_hours for group in grouped(runs, "gpu")}
    assert by_kind == {"h100": 1.0, "h100_1g.10gb": near(3 / 7), "total": near(10 / 7)}


def test_groups_by_what_csub_decided_before_the_run(tmp_path: Path) -> None:
    runs = [run("1"), run("2"), run("3_7", job_id_raw="9"), run("4"), run("5", user="bob"), run("6", cluster="d")]
    store = stored(tmp_path, runs)
    made = [("1", "a", 1.0), ("1", "older", 0.0), ("2", "later", 61.0), ("2", "b", 60.0), ("3", "a", 1.0)]
    made += [("4", "too late", 61.0), ("5", "of another user", 1.0), ("6", "of another cluster", 1.0)]
    store.write_decisions([("ann", decision(job, signature=of, at_s=at_s)) for job, of, at_s in made])
    with store.connect() as database:
        aggregate(database, store, Window(0, 1e9, 1e9))
        jobs = {group.name: group.jobs for group in used_hours_by(database, "signature")}
    assert jobs == {"a": 2, "b": 1, "(not by csub)": 3, "total": 6}


def test_a_user_called_total_is_a_user() -> None:
    assert [(group.name, group.jobs) for group in grouped([usage(user="total"), usage(user="x")])][-1] == ("total", 2)


def test_what_adds_up_and_what_does_not() -> None:
    one = usage(held_gpu_hours=2.0, held_unknown_hours=0.5, held_idle_gpu_hours=0.25, gpu_mem_peak_mib=9000)
    other = usage(held_gpu_hours=1.0, held_idle_gpu_hours=None, gpu_mem_peak_mib=None, energy_j=None)
    whole = total([one, other])
    assert (whole.held_gpu_hours, whole.held_unknown_hours, whole.held_idle_gpu_hours) == (3.0, 0.5, 0.25)
    assert (whole.gpu_mem_peak_mib, whole.energy_kwh) == (9000, 1.0)
    assert total([one, usage(gpu_mem_peak_mib=100)]).gpu_mem_peak_mib == 9000
    bare = total([other])
    assert (bare.held_idle_gpu_hours, bare.gpu_mem_peak_mib, bare.energy_kwh) == (None, None, None)


def test_each_metric_counts_for_itself() -> None:
    by_sm = usage(sm_measured_gpu_hours=0.8, sm_used_gpu_hours=0.2, util_used_gpu_hours=0.7)
    by_util = usage(sm_used_gpu_hours=None, util_measured_gpu_hours=1.0, util_used_gpu_hours=0.9)
    unknown = usage(sm_used_gpu_hours=None, util_used_gpu_hours=None)
    whole = total([by_sm, by_util, unknown])
    assert (whole.jobs, whole.jobs_measured) == (3, 2)
    assert (whole.util_used_gpu_hours, whole.util_idle_gpu_hours) == (near(1.6), near(0.4))
    assert (whole.sm_used_gpu_hours, whole.sm_idle_gpu_hours) == (near(0.2), near(0.6))
    # What shares used beyond their count is told apart.
    over = usage(sm_measured_gpu_hours=0.5, sm_used_gpu_hours=0.5, sm_beyond_gpu_hours=0.4)
    assert (total([by_sm, over]).sm_idle_gpu_hours, total([by_sm, over]).sm_beyond_gpu_hours) == (near(0.6), near(0.4))


def test_coverage_has_its_denominator() -> None:
    whole = total(
        [usage(coverage_pct=50.0), usage(coverage_pct=None), usage(coverage_pct=80.0, allocated_gpu_hours=3.0)]
    )
    assert (whole.coverage_pct, whole.coverage_known_gpu_hours) == (72.5, 4.0)
    assert total([usage(coverage_pct=None)]).coverage_known_gpu_hours == 0


def test_a_group_without_a_name_has_one(tmp_path: Path) -> None:
    store = stored(tmp_path, [run("1", account=""), run("2", account="lab")])
    window = Window(0, 1e10, 1e10)
    with store.connect() as database:
        aggregate(database, store, window)
        assert {group.name for group in used_hours_by(database, "account")} == {"(not known)", "lab", "total"}
        groups, kinds = used_hours_by_kind(database, "account")
    assert {group.name for group in groups[:-1]} == kinds.keys()


def test_groups_by_state_node_and_cluster_are_exact(tmp_path: Path) -> None:
    several = run("5", state="NODE_FAIL", node_list="g[1-2]", gres=(Gres("gpu", "h100", 8),))
    ended = {"2": "TIMEOUT", "3": "OUT_OF_MEMORY", "4": "PREEMPTED"}
    rows = [run("1"), *(run(job, state=state, cluster="d", node_list="g2") for job, state in ended.items()), several]
    store = stored(tmp_path, rows)
    with store.connect() as database:
        aggregate(database, store, Window(0, 1e9, 1e9))
        found = {
            by: {group.name: group.allocated_gpu_hours for group in used_hours_by(database, by)[:-1]}
            for by in ("state", "node", "cluster")
        }
    assert found["state"] == {"COMPLETED": 1, **dict.fromkeys(ended.values(), 1), "NODE_FAIL": 8}
    assert found["node"] == {"g1": 1, "g2": 3, "(several nodes)": 8}
    assert found["cluster"] == {"c": 9, "d": 3}

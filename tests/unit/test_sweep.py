# SPDX-License-Identifier: Apache-2.0
import itertools
import random
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_colloc.accounting.collocation import collocation
from slurm_colloc.accounting.compact import compact
from slurm_colloc.accounting.counts import count_endless, unaccounted_hours
from slurm_colloc.accounting.runs import RUNAWAY
from slurm_colloc.accounting.sources.means import JobMeans
from slurm_colloc.accounting.store import Store
from slurm_colloc.accounting.sweep import find_near, job_usage, sweep
from slurm_colloc.accounting.window import Window
from slurm_colloc.config import Observe
from slurm_colloc.errors import StoreError
from slurm_colloc.measured import AllocationRow, Holder, JobUsage, Round
from slurm_colloc.model import Gres
from tests.unit.made import HOUR, device, host, near, process, run, seen
from tests.unit.stored import INGESTED_S, SHARES, busy, only, runs_in_window, sampled, stored

# --- the sweep ---


def test_one_run_half_covered(tmp_path: Path) -> None:
    usage = only(stored(tmp_path, [run()], busy(900, 1800)))
    assert (usage.allocated_gpu_hours, usage.coverage_pct) == (1.0, 50.0)
    assert (usage.util_measured_gpu_hours, usage.util_used_gpu_hours) == (0.5, 0.25)
    assert (usage.sm_measured_gpu_hours, usage.sm_used_gpu_hours) == (0.5, near(0.1))
    assert (usage.gpu_mem_peak_mib, usage.methods, usage.shared_hours) == (3000, ("measured",), 0.0)


def test_a_run_without_samples_stays_and_is_unknown(tmp_path: Path) -> None:
    usage = only(stored(tmp_path, [run()]))
    assert (usage.allocated_gpu_hours, usage.coverage_pct, usage.methods) == (1.0, 0.0, ())
    assert (usage.util_used_gpu_hours, usage.sm_used_gpu_hours, usage.gpu_mem_peak_mib) == (None, None, None)
    assert (usage.util_measured_gpu_hours, usage.sm_measured_gpu_hours) == (0.0, 0.0)


def test_a_missing_counter_is_not_measured(tmp_path: Path) -> None:
    rounds = [*busy(900, util=None), *busy(1800, util=80.0), *busy(2700, 3600, util=None, sm=None, mib=None)]
    usage = only(stored(tmp_path, [run()], rounds))
    assert usage.coverage_pct == 100.0
    assert (usage.util_measured_gpu_hours, usage.util_used_gpu_hours) == (0.25, near(0.2))
    assert (usage.sm_measured_gpu_hours, usage.sm_used_gpu_hours) == (0.5, near(0.1))
    assert usage.gpu_mem_peak_mib == 3000


def test_true_zero_is_kept(tmp_path: Path) -> None:
    usage = only(stored(tmp_path, [run()], busy(900, 1800, 2700, 3600, util=0.0, sm=0.0, mib=0)))
    assert (usage.util_used_gpu_hours, usage.sm_used_gpu_hours, usage.gpu_mem_peak_mib) == (0.0, 0.0, 0)
    assert usage.util_measured_gpu_hours == 1.0


def test_edges_are_clipped(tmp_path: Path) -> None:
    # Samples reach over both ends of the run and of the window; the run's 900-2700 lie in the window up to 2000.
    usage = only(stored(tmp_path, [run(start_s=900, end_s=2700)], busy(1000, 1900, 2800)), 0, 2000)
    assert (usage.start_s, usage.end_s, usage.coverage_pct) == (900.0, 2000.0, 100.0)
    assert usage.util_used_gpu_hours == near(1100 / 3600 / 2)


def test_the_window_is_half_open(tmp_path: Path) -> None:
    store = stored(tmp_path, [run()])
    assert job_usage(store, 3600, 7200, 1e5) == []
    assert job_usage(store, -3600, 0, 1e5) == []
    assert runs_in_window(store, 3600, 7200, 1e5) == (0, 0)
    assert only(store, 3599, 7200).allocated_gpu_hours == near(1 / 3600)


def test_running_is_so_far(tmp_path: Path) -> None:
    store = stored(tmp_path, [run(end_s=None, state="RUNNING"), run("2", None, None), run("3", None, 100)])
    assert only(store, 0, 1e9, 1800).allocated_gpu_hours == 0.5
    assert only(store, 0, 900, 1800).allocated_gpu_hours == 0.25
    assert only(store, 900, 1e9, 1800).allocated_gpu_hours == 0.25
    assert [runs_in_window(store, since_s, 1e9, 1800) for since_s in (0, 1799, 1800)] == [(1, 0), (1, 0), (0, 0)]


def test_a_run_without_an_end_counts_up_to_the_ingest_that_saw_it(tmp_path: Path) -> None:
    """An old export must not make its running jobs run on until today."""
    store = Store(str(tmp_path))
    store.write_allocations("old", [run(end_s=None, state="RUNNING")], 1800.0)
    assert only(store, 0, 1e9, 1e8).allocated_gpu_hours == 0.5


@pytest.mark.parametrize("row", [run(start_s=5000, end_s=4000), run(start_s=9000, end_s=None)])
def test_no_negative_hours(tmp_path: Path, row: AllocationRow) -> None:
    # An end before the start, and a start that lies ahead of this machine's clock.
    store = stored(tmp_path, [row])
    assert job_usage(store, 0, 1e9, 8000) == []
    assert runs_in_window(store, 0, 1e9, 8000) == (0, 0)


def test_a_run_of_no_length(tmp_path: Path) -> None:
    usage = only(stored(tmp_path, [run(start_s=1000, end_s=1000)], busy(900, 1800)))
    assert (usage.allocated_gpu_hours, usage.util_used_gpu_hours, usage.coverage_pct) == (0.0, None, 0.0)


def test_a_run_of_no_length_is_in_one_of_two_windows(tmp_path: Path) -> None:
    store = stored(tmp_path, [run(start_s=1000, end_s=1000)])
    counts = [runs_in_window(store, *window, 1e9) for window in ((0, 1000), (1000, 2000), (2000, 3000))]
    assert counts == [(0, 0), (1, 0), (0, 0)]


def test_a_run_that_was_seen_running_and_then_ended_is_over(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.write_allocations("a", [run(end_s=None, state="RUNNING")], 9000.0)
    store.write_allocations("b", [run(end_s=1800)], 5000.0)
    assert only(store).allocated_gpu_hours == 0.5
    # Also where only the older reading, which knows no end, would reach into the window.
    assert runs_in_window(store, 1800, 1e9, 1e9) == (0, 0)


def test_runs_whose_end_nobody_knows(tmp_path: Path) -> None:
    lost = run(end_s=None, state=RUNAWAY)
    store = Store(str(tmp_path))
    others = [lost._replace(start_s=2000), lost._replace(cluster="d"), lost._replace(job_id_raw="2", start_s=5000)]
    running = run("4", end_s=None, state="RUNNING")
    store.write_allocations("a", [lost, *others, lost._replace(job_id_raw="3"), running], 1.0)
    # One is known twice, one ended after all; runs that only look like one of them do not end it.
    ended = [run("3", 0, 900), run("5", 0, 900), run("1", 7, 900), run("1", 0, 900, cluster="e")]
    store.write_allocations("b", [lost, *ended], 2.0)
    with store.connect() as database:
        counts = []
        for until_s in (0, 1, 2000, 2001, 5000, 5001):
            find_near(database, Window(0, until_s, 1e9))
            counts.append(count_endless(database, of_text=False).runaways)
            for kind, name in (("VIEW", "near"), ("TABLE", "several"), ("TABLE", "outdated"), ("TABLE", "open")):
                database.execute(f"DROP {kind} {name}")
        assert counts == [0, 2, 2, 3, 3, 4]


def test_runs_without_a_gpu_are_counted(tmp_path: Path) -> None:
    assert runs_in_window(stored(tmp_path, [run(), run("2", gres=()), run("3")]), 0, 1e9, 1e9) == (3, 1)


def test_jobs_that_were_sampled_and_have_no_run(tmp_path: Path) -> None:
    def unaccounted(folder: str, rounds: Sequence[Round]) -> tuple[float, float]:
        store = stored(tmp_path / folder, [run()], rounds)
        with store.connect() as database:
            sweep(database, store, Window(0, 3600, 1e9))
            return unaccounted_hours(database)

    assert unaccounted("a", [*busy(900, 1800), *busy(2700, 3600, 4500, job="9", uuid="GPU-1")]) == (0.5, 1.0)
    assert unaccounted("b", busy(900, job="9")) == (0.25, 0.25)
    assert unaccounted("c", busy(900)) == (0.0, 0.25)
    assert unaccounted("d", ()) == (0.0, 0.0)
    assert unaccounted("e", busy(900, job="")) == (0.0, 0.0), "nobody's time is no job's"


def test_a_reading_that_reaches_over_an_end_of_its_run_is_accounted_for(tmp_path: Path) -> None:
    """Slurm's times are whole seconds, and a reading stands for the time since the one before."""

    def unaccounted(folder: str, *at_s: float) -> tuple[float, float]:
        store = stored(tmp_path / folder, [run(start_s=1000, end_s=1059)], busy(*at_s, interval_s=10.0))
        with store.connect() as database:
            sweep(database, store, Window(0, 3600, 1e9))
            hours, sampled = unaccounted_hours(database)
            return round(hours * 3600, 3), round(sampled * 3600, 3)

    # It ran from 1000.6 to 1059.9.
    assert unaccounted("short", 1000.9, *(1010.9 + 10 * n for n in range(5)), 1059.8) == (0.0, 68.9)
    # A clock that is wrong, or the next run of this job that is not known yet.
    assert unaccounted("after", 1059.8, 1069.8, 1079.8) == (20.0, 30.0)


def test_suspended_time_is_not_allocated(tmp_path: Path) -> None:
    assert only(stored(tmp_path, [run(suspended_s=900)])).allocated_gpu_hours == 0.75
    assert only(stored(tmp_path, [run(start_s=HOUR, end_s=2 * HOUR, suspended_s=900)])).allocated_gpu_hours == 0.75
    assert only(stored(tmp_path, [run(suspended_s=900)]), 0, 1800).allocated_gpu_hours == 0.375
    assert only(stored(tmp_path, [run(suspended_s=9000)])).allocated_gpu_hours == 0.0
    going = stored(tmp_path, [run(suspended_s=900, end_s=None)])
    assert only(going, 0, 1e9, 3600).allocated_gpu_hours == 0.75


def test_several_gpus(tmp_path: Path) -> None:
    two = run(gres=(Gres("gpu", "h100", 2),))
    both = [*busy(900, 1800, 2700, 3600), *busy(900, 1800, uuid="GPU-1", util=100.0, mib=1000)]
    usage = only(stored(tmp_path, [two], both))
    # One of the two GPUs was sampled half of the time.
    assert (usage.allocated_gpu_hours, usage.coverage_pct) == (2.0, 75.0)
    assert (usage.util_measured_gpu_hours, usage.util_used_gpu_hours) == (1.5, 1.0)
    assert usage.gpu_mem_peak_mib == 4000


def test_slices_have_no_gpu_util_and_count_as_their_part(tmp_path: Path) -> None:
    part = device("MIG-0", profile="1g.10gb", sm_count=16, gpu_util_pct=None, sm_active_pct=70.0)
    rounds = [seen(at_s, [part], [process(uuid="MIG-0")], interval_s=1800) for at_s in (1800, 3600)]
    usage = only(stored(tmp_path, [run(gres=(Gres("gpu", "h100_1g.10gb", 1),))], rounds))
    assert usage.allocated_gpu_hours == near(1 / 7)
    assert (usage.sm_used_gpu_hours, usage.sm_measured_gpu_hours) == (near(0.1), near(1 / 7))
    assert (usage.util_used_gpu_hours, usage.util_measured_gpu_hours) == (None, 0.0)


def test_two_jobs_on_one_gpu_share_its_use(tmp_path: Path) -> None:
    rows = [run(job, gres=(Gres("shard", "", 1),), node_list="s1") for job in ("1", "2")]
    unit = device(sm_active_pct=80.0)
    pair = [process("1", 5, gpu_mem_used_mib=3000), process("2", 6, gpu_mem_used_mib=1000)]
    rounds = [seen(at_s, [unit], pair, interval_s=1800) for at_s in (1800, 3600)]
    first, second = job_usage(stored(tmp_path, rows, rounds, SHARES), 0, 1e5, 1e5)
    assert (first.allocated_gpu_hours, second.allocated_gpu_hours) == (0.25, 0.25)
    # The first had 0.6 of the GPU and was given 0.25 of it.
    assert (first.sm_used_gpu_hours, first.sm_beyond_gpu_hours) == (near(0.25), near(0.35))
    assert (second.sm_used_gpu_hours, second.sm_beyond_gpu_hours) == (near(0.2), 0.0)
    assert (first.methods, first.shared_hours, second.gpu_mem_peak_mib) == (("split by memory",), 1.0, 1000)


def test_overlapping_samplers_count_a_second_once(tmp_path: Path) -> None:
    rounds = busy(900, 1000, 1800, 1900, 2700, 2800, 3599)
    usage = only(stored(tmp_path, [run(end_s=3599)], rounds))
    assert (usage.coverage_pct, usage.util_used_gpu_hours) == (100.0, near(3599 / 3600 / 2))
    # Each reading's energy is of its whole interval: a second of it costs the same in all of them.
    assert usage.energy_j == near(3000.0 * 3599 / 900)


def test_samples_of_other_jobs_clusters_and_times_do_not_count(tmp_path: Path) -> None:
    rounds = [*busy(900, job="2"), *busy(1800, job=""), *busy(9000)]
    store = stored(tmp_path, [run()], rounds)
    sampled(store, busy(2700), "other")
    assert (only(store).coverage_pct, only(store).util_used_gpu_hours) == (0.0, None)


def test_of_a_share_of_unknown_size_no_hours_are_known(tmp_path: Path) -> None:
    usage = only(stored(tmp_path, [run(gres=(Gres("shard", "", 1),))], busy(900, 1800)))
    assert (usage.allocated_gpu_hours, usage.coverage_pct, usage.gpu_mem_peak_mib) == (None, 50.0, 3000)
    assert (usage.util_measured_gpu_hours, usage.sm_measured_gpu_hours, usage.sm_used_gpu_hours) == (None, None, None)


@pytest.mark.parametrize("until_s", [1800, HOUR])
def test_what_a_suspended_run_used_is_no_more_than_what_was_measured(tmp_path: Path, until_s: int) -> None:
    # Suspended for half of it, and busy in the other half, of which alone there are samples.
    store = stored(tmp_path, [run(suspended_s=1800)], busy(1800, interval_s=1800.0, util=100.0, sm=80.0))
    usage = only(store, 0, until_s)
    measured = 0.25  # of the 0.5 or 0.25 GPU-h allocated, as suspensions are spread evenly
    assert (usage.util_measured_gpu_hours, usage.util_used_gpu_hours) == (measured, measured)
    assert (usage.sm_measured_gpu_hours, usage.sm_used_gpu_hours) == (measured, measured)


def test_a_mean_from_the_source_gives_way_to_samples(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.write_allocations("a", [run(), run("2")], 1.0, [JobMeans(10.0, 5000, 1, "job mean by source"), None])
    means, nothing = job_usage(store, 0, 1800, 1e5)
    assert (means.util_measured_gpu_hours, means.util_used_gpu_hours) == (0.5, near(0.05))
    assert (means.coverage_pct, means.methods, means.gpu_mem_peak_mib) == (None, ("job mean by source",), 5000)
    assert (nothing.coverage_pct, nothing.util_used_gpu_hours) == (0.0, None)
    sampled(store, busy(900))
    seldom = job_usage(store, 0, 1800, 1e5)[0]
    assert (seldom.coverage_pct, seldom.util_used_gpu_hours) == (50.0, 0.125)
    assert (seldom.gpu_mem_peak_mib, seldom.methods) == (3000, ("measured",))


@pytest.mark.parametrize(("seen_gpus", "measured"), [(1, 1.0), (2, 2.0), (4, 2.0)])
def test_a_mean_is_of_the_gpus_that_it_saw(tmp_path: Path, seen_gpus: int, measured: float) -> None:
    store = Store(str(tmp_path))
    means = [JobMeans(50.0, None, seen_gpus, "job mean by source")]
    store.write_allocations("a", [run(gres=(Gres("gpu", "h100", 2),))], 1.0, means)
    usage = only(store)
    assert (usage.util_measured_gpu_hours, usage.util_used_gpu_hours) == (measured, measured / 2)


def test_a_mean_of_nothing_measures_nothing(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.write_allocations("a", [run()], 1.0, [JobMeans(None, 5000, 1, "job peak by source")])
    usage = only(store)
    assert (usage.util_measured_gpu_hours, usage.util_used_gpu_hours, usage.gpu_mem_peak_mib) == (0.0, None, 5000)


def test_a_mean_of_a_slice_is_not_one_of_a_gpu_and_neither_says_what_was_sampled(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    rows = [run(gres=(Gres("gpu", "h100_1g.10gb", 1),)), run("2")]
    means = [JobMeans(10.0, None, 1, "job mean by source"), JobMeans(None, 5000, 0, "job mean by source")]
    store.write_allocations("a", rows, 1.0, means)
    part, peak = job_usage(store, 0, 1e5, 1e5)
    assert (part.util_measured_gpu_hours, part.util_used_gpu_hours, part.coverage_pct) == (0.0, None, None)
    assert (peak.util_used_gpu_hours, peak.coverage_pct, peak.gpu_mem_peak_mib) == (None, None, 5000)


@pytest.mark.parametrize("newest_ends_s", [HOUR, 3 * HOUR])
def test_where_readings_disagree_on_the_end_one_counts_in_all_windows(tmp_path: Path, newest_ends_s: int) -> None:
    store = Store(str(tmp_path))
    store.write_allocations("old", [run(end_s=2 * HOUR)], 1.0)
    store.write_allocations("new", [run(end_s=newest_ends_s)], 2.0)
    hours = [
        sum(usage.allocated_gpu_hours or 0.0 for usage in job_usage(store, hour * HOUR, (hour + 1) * HOUR, 1e6))
        for hour in range(4)
    ]
    assert hours == [1.0 if hour * HOUR < newest_ends_s else 0.0 for hour in range(4)]


# --- properties ---

PCT = st.none() | st.sampled_from([0.0, 12.5, 40.0, 100.0])
SAMPLES = st.lists(
    st.tuples(st.integers(0, 100), st.integers(0, 25), st.sampled_from(["1", "2", "3", ""]), PCT, PCT), max_size=8
)
RUNS = st.lists(
    st.builds(
        lambda job, start, length, suspended, gpus: run(
            job, start, None if length is None else start + length, suspended_s=suspended, gres=(Gres("gpu", "", gpus),)
        ),
        st.sampled_from(["1", "2", "3"]),
        st.integers(0, 90),
        st.none() | st.integers(0, 60),
        st.integers(0, 30),
        st.integers(1, 2),
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda row: (row.job_id_raw, row.start_s),
)
NOW = 120.0


def rounds_of(samples: list[tuple[int, int, str, float | None, float | None]]) -> list[Round]:
    return [
        seen(
            float(at_s),
            [device(gpu_util_pct=util, sm_active_pct=sm)],
            [process(job)],
            interval_s=float(length),
        )
        for at_s, length, job, util, sm in samples
    ]


def sums(usages: Sequence[JobUsage]) -> dict[tuple[str, str], float]:
    found: dict[tuple[str, str], float] = {}
    for usage in usages:
        for name in JobUsage._fields:
            if name.endswith("_gpu_hours") or name == "shared_hours":
                key = usage.job_id, name
                found[key] = found.get(key, 0.0) + (getattr(usage, name) or 0.0)
    return found


@settings(max_examples=25, deadline=None)
@given(RUNS, SAMPLES, st.lists(st.integers(1, 119), max_size=4))
def test_splitting_a_window_never_changes_the_sums(
    rows: list[AllocationRow], samples: list[tuple[int, int, str, float | None, float | None]], cuts: list[int]
) -> None:
    with TemporaryDirectory() as folder:
        store = stored(folder, rows, rounds_of(samples))
        whole = sums(job_usage(store, 0, NOW, NOW))
        edges = [0.0, *sorted({float(cut) for cut in cuts}), NOW]
        parts = [one for a, b in itertools.pairwise(edges) for one in job_usage(store, a, b, NOW)]
        # A run of no length is a row, and has no hours to split.
        assert {k: v for k, v in sums(parts).items() if v} == pytest.approx({k: v for k, v in whole.items() if v})


@settings(max_examples=25, deadline=None)
@given(RUNS, SAMPLES)
def test_order_and_repetition_change_nothing_and_bounds_hold(
    rows: list[AllocationRow], samples: list[tuple[int, int, str, float | None, float | None]]
) -> None:
    passes = rounds_of(list({one[0]: one for one in samples}.values()))
    with TemporaryDirectory() as folder:
        first = job_usage(stored(folder, rows, passes), 0, NOW, NOW)
    with TemporaryDirectory() as folder:
        again = stored(folder, [*reversed(rows), *rows], [*reversed(passes), *passes])
        assert job_usage(again, 0, NOW, NOW) == first
    for usage in first:
        assert usage.coverage_pct is not None
        assert 0 <= usage.coverage_pct <= 100
        assert (usage.allocated_gpu_hours or 0.0) >= 0
        assert 0 <= (usage.util_measured_gpu_hours or 0.0) <= (usage.allocated_gpu_hours or 0.0) + 1e-12
        assert (usage.util_used_gpu_hours or 0.0) <= (usage.end_s - usage.start_s) / 3600 + 1e-12


def test_the_order_of_ingest_does_not_reach_the_last_digit(tmp_path: Path) -> None:
    draw = random.Random(1)
    passes = [
        seen(10.0 * number + draw.random(), [device(gpu_util_pct=100 * draw.random())], [process("1")])
        for number in range(1, 200)
    ]
    first = job_usage(stored(tmp_path / "a", [run()], passes), 0, 1e5, 1e5)
    assert job_usage(stored(tmp_path / "b", [run()], [*reversed(passes), *passes]), 0, 1e5, 1e5) == first
    draw.shuffle(passes)
    assert job_usage(stored(tmp_path / "c", [run()], passes), 0, 1e5, 1e5) == first


def test_parquet_files_are_plain(tmp_path: Path) -> None:
    """Another program reads the store with the columns that the documentation names."""
    stored(tmp_path, [run(submit_s=None)], busy(900))
    with duckdb.connect() as connection:
        row = connection.execute(
            f"SELECT submit_s, gres, mean_gpu_util_pct, ingested_s FROM '{tmp_path}/allocations/a.parquet'"
        ).fetchone()
    assert row == (None, "gres/gpu:h100=1", None, INGESTED_S)


def test_hours_of_a_day_long_run(tmp_path: Path) -> None:
    store = stored(tmp_path, [run(end_s=24 * HOUR)])
    assert only(store).allocated_gpu_hours == 24.0


def test_a_peak_is_of_one_run_and_of_one_node(tmp_path: Path) -> None:
    rows = [run(end_s=1000), run(start_s=1001, end_s=2000)]
    first, second = busy(900, mib=100), busy(1005, mib=70000, interval_s=10)
    usages = job_usage(stored(tmp_path / "requeued", rows, [*first, *second]), 0, 1e5, 1e5)
    assert [usage.gpu_mem_peak_mib for usage in usages] == [100, 70000]
    two = [busy(900, uuid="A", mib=4000)[0], busy(900, uuid="B", mib=5000)[0]._replace(node="g2")]
    wide = run(gres=(Gres("gpu", "h100", 2),))
    assert only(stored(tmp_path / "wide", [wide], two)).gpu_mem_peak_mib == 5000
    assert only(stored(tmp_path / "one", [wide], [one._replace(node="g1") for one in two])).gpu_mem_peak_mib == 9000


def test_a_peak_is_the_most_at_one_time(tmp_path: Path) -> None:
    rounds = [*busy(900, mib=3000), *busy(1800, mib=5000), *busy(2700, mib=1000)]
    assert only(stored(tmp_path / "one", [run()], rounds)).gpu_mem_peak_mib == 5000
    days = [*rounds, *busy(25 * HOUR, mib=100)]
    assert only(stored(tmp_path / "days", [run(end_s=26 * HOUR)], days)).gpu_mem_peak_mib == 5000
    two = run(end_s=26 * HOUR, gres=(Gres("gpu", "h100", 2),))
    alike = [
        *days,
        *busy(25 * HOUR, uuid="GPU-1", mib=100),
        *busy(900, uuid="GPU-1", mib=3000),
        *busy(1800, 2700, uuid="GPU-1", mib=500),
    ]
    assert only(stored(tmp_path / "two", [two], alike)).gpu_mem_peak_mib == 6000


def test_a_reading_of_no_time_is_none(tmp_path: Path) -> None:
    usage = only(stored(tmp_path, [run()], [one._replace(hosts=(host(),)) for one in busy(900, interval_s=0)]))
    assert (usage.coverage_pct, usage.methods, usage.gpu_mem_peak_mib, usage.host_mem_peak_mib) == (0.0, (), None, None)


def test_more_gpus_than_were_allocated_do_not_cover_more_than_all(tmp_path: Path) -> None:
    rounds = [*busy(900, 1800, 2700, 3600), *busy(900, 1800, 2700, 3600, uuid="GPU-1")]
    usage = only(stored(tmp_path, [run()], rounds))
    assert (usage.coverage_pct, usage.util_measured_gpu_hours, usage.sm_measured_gpu_hours) == (100.0, 1.0, 1.0)


def test_time_without_a_process_is_held_idle(tmp_path: Path) -> None:
    held = [Holder("GPU-0", "1", None)]
    idle = [one._replace(processes=(), holders=tuple(held)) for one in busy(2700, 3600, util=0.0, sm=0.0)]
    rounds = [*busy(900, 1800), *idle]
    usage = only(stored(tmp_path / "a", [run()], rounds))
    assert (usage.held_idle_gpu_hours, usage.idle_tail_s) == (0.5, 1800.0)
    blind = [one._replace(devices=(device(process_list=False),), processes=(), holders=tuple(held)) for one in rounds]
    assert only(stored(tmp_path / "b", [run()], blind)).held_idle_gpu_hours is None
    assert only(stored(tmp_path / "c", [run()], busy(900))).held_idle_gpu_hours == 0.0
    part = [device("MIG-0", profile="1g.10gb", gpu_util_pct=None, sm_active_pct=0.0)]
    sliced = [seen(3600, part, (), [("MIG-0", "1")], interval_s=3600)]
    assert only(stored(tmp_path / "d", [run()], sliced)).held_idle_gpu_hours == near(1 / 7)


def test_a_gpu_at_work_whose_process_was_gone_when_the_list_was_read_was_not_held_idle(tmp_path: Path) -> None:
    held = (Holder("GPU-0", "1", None),)
    quick = [one._replace(processes=(), holders=held) for one in busy(900, 1800, util=30.0, sm=None)]
    idle = [one._replace(processes=(), holders=held) for one in busy(2700, 3600, util=0.0, sm=0.0)]
    store = stored(tmp_path, [run()], [*quick, *idle])
    assert only(store).held_idle_gpu_hours == 0.5


def test_the_idle_tail_is_of_all_the_runs_devices(tmp_path: Path) -> None:
    two = run(gres=(Gres("gpu", "h100", 2),))
    first = busy(900, 1800, 2700, util=0.0, sm=0.0)
    rounds = [*first, *busy(900, 1800, uuid="GPU-1", util=None), *busy(2700, uuid="GPU-1", util=0.0, sm=0.0)]
    assert only(stored(tmp_path / "a", [two], rounds)).idle_tail_s == 900.0
    never = only(stored(tmp_path / "b", [run(start_s=100)], first))
    assert never.idle_tail_s == 2600.0, "from the run's start, where it was sampled"
    later = busy(2700, uuid="GPU-1", util=0.0, sm=0.0)
    assert only(stored(tmp_path / "later", [two], [*first, *later])).idle_tail_s == 2700.0
    blind = busy(900, util=None, sm=None)
    assert only(stored(tmp_path / "blind", [run()], [*blind, *busy(1800, 2700, util=0.0, sm=0.0)])).idle_tail_s == 1800
    unknown = only(stored(tmp_path / "c", [run()], blind))
    assert unknown.idle_tail_s is None
    assert only(stored(tmp_path / "d", [run()])).idle_tail_s is None


def test_energy_counts_as_far_as_its_interval(tmp_path: Path) -> None:
    rounds = [*busy(900), *busy(1800)]
    assert only(stored(tmp_path / "a", [run()], rounds)).energy_j == 6000.0
    assert only(stored(tmp_path / "b", [run(start_s=450)], rounds)).energy_j == 4500.0
    assert only(stored(tmp_path / "c", [run()], rounds), until_s=900).energy_j == 3000.0
    blind = [one._replace(devices=(device(energy_j=None),)) for one in rounds]
    assert only(stored(tmp_path / "d", [run()], blind)).energy_j is None


def test_the_host_of_a_run(tmp_path: Path) -> None:
    two = [one._replace(hosts=(host(cpu_s=1800.0), host("2", cpu_s=9.0))) for one in busy(900, 1800)]
    usage = only(stored(tmp_path / "a", [run(start_s=450)], two))
    assert (usage.cpu_cores_used, usage.host_mem_peak_mib) == (2.0, 4000)
    assert (usage.read_mib, usage.written_mib) == (150.0, 15.0)
    wide = [*two, seen(900, hosts=[host(cpu_s=900.0, host_mem_mib=7000)], interval_s=900.0, node="g2")]
    usage = only(stored(tmp_path / "b", [run()], wide))
    assert (usage.cpu_cores_used, usage.host_mem_peak_mib, usage.read_mib) == (3.0, 7000, 300.0)
    blind = [one._replace(hosts=(host(cpu_s=None, host_mem_mib=None, read_mib=None, written_mib=None),)) for one in two]
    for rounds in (blind, busy(900)):
        usage = only(stored(tmp_path / f"c{len(rounds)}", [run()], rounds))
        assert (usage.cpu_cores_used, usage.host_mem_peak_mib, usage.read_mib) == (None, None, None)


def test_only_the_days_of_the_window_are_opened(tmp_path: Path) -> None:
    day_s = 24 * HOUR
    store = stored(tmp_path, [run(end_s=4 * day_s)], busy(900, 900 + day_s, 900 + 3 * day_s))
    (tmp_path / "samples/c/1970-01-04/g1/00.parquet").write_bytes(b"junk")
    assert only(store, 0, day_s + 10).util_used_gpu_hours == near(0.125 + 10 / 7200)
    with pytest.raises(StoreError, match=r"1970-01-04/g1/00\.parquet' cannot be read"):
        only(store)


def test_a_node_that_boots_anew_in_the_middle_of_a_job(tmp_path: Path) -> None:
    """Slurm runs the job again; the time in which the node was away is nobody's, and counts for neither run."""
    before = busy(500, 1000, interval_s=500.0)
    (first,) = busy(2010, interval_s=0.0)
    after = [first, *busy(2500, interval_s=490.0), *busy(3600, interval_s=1100.0)]
    rounds = [*before, *(one._replace(boot_id="another") for one in after)]
    runs = [run(end_s=1100, state="NODE_FAIL"), run(start_s=2000, end_s=3600)]
    failed, again = job_usage(stored(tmp_path, runs, rounds), 0, 1e10, 1e10)
    assert (failed.coverage_pct, again.coverage_pct) == (near(100 * 1000 / 1100), near(100 * 1590 / 1600))
    assert (failed.util_used_gpu_hours, again.util_used_gpu_hours) == (near(1000 / 7200), near(1590 / 7200))


def test_a_requeued_run_that_was_never_seen_to_end_stops_where_it_began_anew(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.write_allocations("a", [run(start_s=0, end_s=None)], 5000.0)
    store.write_allocations("b", [run(start_s=1000, end_s=2000)], 4000.0)
    sampled(store, busy(*range(10, 2001, 10), interval_s=10.0))
    usages = job_usage(store, 0, 1e5, 1e5)
    assert [(usage.end_s, usage.energy_j) for usage in usages] == [(1000, near(30000 * 10)), (2000, near(30000 * 10))]
    assert runs_in_window(store, 1500, 1600, 1e5) == (1, 0)
    store.write_allocations("c", [run(start_s=3000, end_s=4000)], 6000.0)
    assert [usage.end_s for usage in job_usage(store, 0, 1e5, 1e5)] == [1000, 2000, 4000]


@pytest.mark.parametrize("facts", [False, True])
def test_a_gpu_under_two_names_of_its_node_counts_once(tmp_path: Path, *, facts: bool) -> None:
    def usages(folder: str, rounds: list[Round]) -> tuple[list[JobUsage], float]:
        store = stored(tmp_path / folder, [run(), run("2", HOUR, 2 * HOUR), run("3")], rounds)
        for _ in range(2 if facts else 0):
            compact(store, Observe(), 30 * 24 * HOUR, anyway=True)
        with store.connect() as database:
            sweep(database, store, Window(0, 1e10, 1e10))
            return job_usage(store, 0, 1e10, 1e10), sum(time.gpu_hours for time in collocation(database))

    rounds = [*busy(900, 1800, 2700, 3600), *busy(4500, 5400, 6300, 7200, job="2", sm=80.0)]
    # Another node, whose GPUs have one name each, stays as it is.
    rounds += [one._replace(node="g2") for one in busy(900, 1800, job="3", uuid="GPU-9")]
    again = [one._replace(node="g1-ib", at_s=one.at_s - 5) for one in rounds if one.node == "g1"]
    once, once_hours = usages("a", rounds)
    twice, twice_hours = usages("b", [*rounds, *again])
    assert [usage.coverage_pct for usage in once] == [100.0, 50.0, 100.0]
    for one, two in zip(once, twice, strict=True):
        assert (two.util_used_gpu_hours, two.coverage_pct) == (near(one.util_used_gpu_hours), near(one.coverage_pct))
        assert (two.sm_used_gpu_hours, two.energy_j) == (near(one.sm_used_gpu_hours), near(one.energy_j))
    assert twice_hours == near(once_hours) == 2.5

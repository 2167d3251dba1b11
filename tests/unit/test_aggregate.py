# SPDX-License-Identifier: Apache-2.0
from collections.abc import Sequence
from pathlib import Path

import duckdb
import pytest

from slurm_colloc.core.config import Observe
from slurm_colloc.core.errors import StoreError
from slurm_colloc.core.model import Gres
from slurm_colloc.core.usage_model import DeviceAllocation, JobUsage, NodeSample
from slurm_colloc.facts.aggregate import aggregate, find_near
from slurm_colloc.facts.collocation import collocation
from slurm_colloc.facts.compact import compact
from slurm_colloc.facts.counts import count_endless, unaccounted_hours
from slurm_colloc.sources.means import JobMeans
from slurm_colloc.store.sacct_rows import RUNAWAY
from slurm_colloc.store.store import Store
from slurm_colloc.store.window import Window
from tests.unit.made import HOUR, device, host, near, run, seen
from tests.unit.stored import INGESTED_S, busy, job_usage, only, sampled, stored

# --- aggregation ---


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
            columns = "0.0 AS hours, 1 AS gpus, 1 AS devices, 0.0 AS last_s"
            database.execute(f"CREATE OR REPLACE TABLE runs AS SELECT *, {columns} FROM near LIMIT 0")
            counts.append(count_endless(database, of_text=False).runaways)
            for kind, name in (("VIEW", "near"), ("TABLE", "several"), ("TABLE", "outdated"), ("TABLE", "open")):
                database.execute(f"DROP {kind} {name}")
        assert counts == [0, 2, 2, 3, 3, 4]


def test_jobs_that_were_sampled_and_have_no_run(tmp_path: Path) -> None:
    def unaccounted(folder: str, rounds: Sequence[NodeSample]) -> tuple[float, float]:
        store = stored(tmp_path / folder, [run()], rounds)
        with store.connect() as database:
            aggregate(database, store, Window(0, 3600, 1e9))
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
            aggregate(database, store, Window(0, 3600, 1e9))
            hours, sampled = unaccounted_hours(database)
            return round(hours * 3600, 3), round(sampled * 3600, 3)

    # It ran from 1000.6 to 1059.9.
    assert unaccounted("short", 1000.9, *(1010.9 + 10 * n for n in range(5)), 1059.8) == (0.0, 68.9)
    # A clock that is wrong, or the next run of this job that is not known yet.
    assert unaccounted("after", 1059.8, 1069.8, 1079.8) == (20.0, 30.0)


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


@pytest.mark.parametrize(
    ("mean_pct", "seen_gpus", "measured", "used"),
    # A mean of nothing measures nothing.
    [(50.0, 1, 1.0, 0.5), (50.0, 2, 2.0, 1.0), (50.0, 4, 2.0, 1.0), (None, 1, 0.0, None)],
)
def test_a_mean_is_of_the_gpus_that_it_saw(
    tmp_path: Path, mean_pct: float | None, seen_gpus: int, measured: float, used: float | None
) -> None:
    store = Store(str(tmp_path))
    means = [JobMeans(mean_pct, 5000, seen_gpus, "job mean by source")]
    store.write_allocations("a", [run(gres=(Gres("gpu", "h100", 2),))], 1.0, means)
    usage = only(store)
    assert (usage.util_measured_gpu_hours, usage.util_used_gpu_hours, usage.gpu_mem_peak_mib) == (measured, used, 5000)


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


def test_parquet_files_are_plain(tmp_path: Path) -> None:
    """Another program reads the store with the columns that the documentation names."""
    stored(tmp_path, [run(submit_s=None)], busy(900))
    with duckdb.connect() as connection:
        row = connection.execute(
            f"SELECT submit_s, gres, mean_gpu_util_pct, ingested_s FROM '{tmp_path}/allocations/a.parquet'"
        ).fetchone()
    assert row == (None, "gres/gpu:h100=1", None, INGESTED_S)


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
    held = [DeviceAllocation("GPU-0", "1", None)]
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
    held = (DeviceAllocation("GPU-0", "1", None),)
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
    assert only(stored(tmp_path / "later", [two], [*first, *later])).idle_tail_s == 900.0, "not sure of the other"
    asleep = run(suspended_s=600)
    assert only(stored(tmp_path / "asleep", [asleep], first)).idle_tail_s == 2100.0, "as if all of it lay in the tail"
    blind = busy(900, util=None, sm=None)
    assert only(stored(tmp_path / "blind", [run()], [*blind, *busy(1800, 2700, util=0.0, sm=0.0)])).idle_tail_s == 900
    unknown = only(stored(tmp_path / "c", [run()], blind))
    assert unknown.idle_tail_s is None
    assert only(stored(tmp_path / "d", [run()])).idle_tail_s is None


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


@pytest.mark.parametrize("facts", [False, True])
def test_a_gpu_under_two_names_of_its_node_counts_once(tmp_path: Path, *, facts: bool) -> None:
    def usages(folder: str, rounds: list[NodeSample]) -> tuple[list[JobUsage], float]:
        store = stored(tmp_path / folder, [run(), run("2", HOUR, 2 * HOUR), run("3")], rounds)
        for _ in range(2 if facts else 0):
            compact(store, Observe(), 30 * 24 * HOUR, anyway=True)
        with store.connect() as database:
            aggregate(database, store, Window(0, 1e10, 1e10))
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


def test_of_a_run_without_sm_activity_nobody_knows_what_it_used_beyond_its_share(tmp_path: Path) -> None:
    found = only(stored(tmp_path, [run()], busy(900, sm=None)))
    assert (found.util_used_gpu_hours, found.sm_used_gpu_hours, found.sm_beyond_gpu_hours) == (0.125, None, None)

# SPDX-License-Identifier: Apache-2.0
"""Joining, making facts and deleting: what it may change, and what it may not."""

import fcntl
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_colloc.core.config import Observe
from slurm_colloc.core.errors import StoreError
from slurm_colloc.core.usage_model import DeviceAllocation, JobUsage, NodeSample
from slurm_colloc.facts.aggregate import aggregate
from slurm_colloc.facts.compact import Compacted, compact
from slurm_colloc.facts.evidence import measured_runs
from slurm_colloc.observe import attribute
from slurm_colloc.store.samples import DAY
from slurm_colloc.store.store import Store
from slurm_colloc.store.window import Window
from tests.rings import tenth
from tests.unit.golden import Printed
from tests.unit.made import HOUR, device, host, near, process, run, seen
from tests.unit.stored import MadeHour, at, busy, job_usage, only, sampled, stored

KEEP = Observe()
MIDNIGHT = at("2026-11-20T00:00")
NOON = MIDNIGHT + 12 * HOUR
# Where a day's rows are at this age: as flushed, joined with facts beside them, facts alone, gone.
AGES = {"joined": 2.5, "facts": 20, "gone": 2000}


def passed_days(store: Store, days: float, runs: int = 1) -> Compacted:
    done = [compact(store, KEEP, MIDNIGHT + DAY * (1 + days), anyway=True) for _ in range(runs)]
    assert done[-1] is not None
    return done[-1]


def files(store: Store) -> list[str]:
    root = Path(store.samples.folder)
    return sorted(str(path.relative_to(root)) for path in root.rglob("*.parquet") if path.parts[-2] != "allocations")


def steady(*times: float, job: str = "1", **fields: Any) -> list[NodeSample]:
    return [one._replace(hosts=(host(job),)) for one in busy(*times, job=job, interval_s=10.0, **fields)]


def rows(store: Store, what: str = "at_s, interval_s, job_id", table: str = "shares") -> list[tuple[Any, ...]]:
    return store.rows(f"SELECT {what} FROM {table} WHERE job_id != '' ORDER BY ALL", {})


def test_hours_of_a_closed_day_become_one_file(tmp_path: Path) -> None:
    store = stored(tmp_path, [], steady(NOON, NOON + HOUR, NOON + 30 * HOUR))
    before = rows(store)
    assert passed_days(store, 0.9).written == 0  # late lines are still to be expected
    assert passed_days(store, AGES["joined"]).written == 6
    assert len(files(store)) == 12  # a report that began before still finds the hours
    assert rows(store) == before
    again = passed_days(store, AGES["joined"])
    assert (again.written, again.removed) == (0, 6)
    days = ("2026-11-20", "2026-11-21")
    joined = [f"{table}/c/{day}/g1/raw.parquet" for table in ("hosts", "samples") for day in days]
    assert files(store) == [*(f"facts/c/{day}.parquet" for day in days), *joined]
    assert rows(store) == before
    assert passed_days(store, AGES["joined"]) == (0, 0, (), ())


@pytest.mark.parametrize("age", ["joined", "facts"])
def test_time_beside_the_daemon_of_mps_stays_apart(tmp_path: Path, age: str) -> None:
    kinds = ["client"] * 3 + ["compute"] * 2 + ["unknown"]
    rounds = [
        seen(NOON + 10.0 * number, [device()], [process(kind=kind)], interval_s=10.0)
        for number, kind in enumerate(kinds, 1)
    ]
    store = stored(tmp_path, [run(start_s=NOON, end_s=NOON + 60)], rounds)

    def direct_s() -> list[tuple[Any, ...]]:
        with store.connect() as database:
            aggregate(database, store, Window(NOON, NOON + 60, NOON + 60))
            return database.execute("SELECT direct_s FROM usage").fetchall()

    assert direct_s() == [(20.0,)]
    passed_days(store, AGES[age], 2)
    assert direct_s() == [(20.0,)]


def test_readings_go_when_their_facts_are_there(tmp_path: Path) -> None:
    store = stored(tmp_path, [], steady(*range(NOON + 10, NOON + 131, 10)))
    passed_days(store, AGES["facts"])
    assert len(files(store)) == 5  # a report that began before still finds the readings
    passed_days(store, AGES["facts"])
    assert files(store) == ["facts/c/2026-11-20.parquet"]
    assert rows(store) == []
    assert passed_days(store, AGES["facts"]) == (0, 0, (), ())


def test_facts_are_of_hours_and_of_the_day(tmp_path: Path) -> None:
    own = steady(*range(NOON + 10, NOON + HOUR + 61, 10))
    store = stored(tmp_path, [run(start_s=NOON, end_s=NOON + 2 * HOUR)], own)
    passed_days(store, AGES["facts"])
    with duckdb.connect() as database:
        query = "SELECT from_s, span_s, job_id, start_s, us, util_fix, energy_uj, peak_mib, first_s, last_s, active_s "
        found = database.execute(
            f"{query} FROM '{tmp_path}/facts/c/*.parquet' WHERE part = 'unit' ORDER BY span_s, from_s"
        ).fetchall()

    def fact(from_s: int, span_s: int, first_s: int, last_s: int) -> tuple[Any, ...]:
        us = (last_s - first_s) * 10**6
        return from_s, span_s, "1", NOON, us, us * 50 * 65536, 300 * us, 3000, first_s, last_s, last_s

    assert found == [
        fact(NOON, HOUR, NOON, NOON + HOUR),
        fact(NOON + HOUR, HOUR, NOON + HOUR, NOON + HOUR + 60),
        fact(MIDNIGHT, DAY, NOON, NOON + HOUR + 60),
    ]


def test_deleted_at_last(tmp_path: Path) -> None:
    store = stored(tmp_path, [], steady(NOON))
    passed_days(store, AGES["facts"])
    assert passed_days(store, AGES["gone"]).removed == 5
    assert (files(store), os.listdir(tmp_path / "samples/c")) == ([], [])


def test_a_clock_that_is_ahead_deletes_nothing(tmp_path: Path, printed: Printed) -> None:
    # One node's clock was years ahead once, and says nothing of today.
    store = stored(tmp_path, [], steady(NOON - 30 * DAY, NOON, NOON + 900 * DAY))
    before = files(store)
    for days_ahead in (16, 400):
        done = compact(store, KEEP, NOON + days_ahead * DAY)
        assert done
        printed("compact", done.errors[0])
    assert files(store) == before
    assert compact(store, KEEP, MIDNIGHT + 3 * DAY) is not None  # two days without a sample happen
    assert compact(store, KEEP, NOON + 16 * DAY, anyway=True) is not None
    assert "facts/c/2026-11-20.parquet" in files(store)


# --- what comes late ---


def test_an_hour_that_grew_takes_its_place_in_the_joined_day(tmp_path: Path) -> None:
    store = stored(tmp_path, [], steady(NOON, NOON + HOUR))
    passed_days(store, AGES["joined"], 2)
    sampled(store, steady(NOON, NOON + 10))
    assert len(rows(store)) == 2  # not yet read, and not read twice
    passed_days(store, AGES["joined"], 2)
    assert [row[0] for row in rows(store)] == [NOON, NOON + 10, NOON + HOUR]
    assert len(files(store)) == 3


def test_an_hour_that_came_late_is_added_to_facts(tmp_path: Path) -> None:
    store = stored(tmp_path, [run(start_s=NOON - 20, end_s=NOON + 4 * HOUR)], steady(NOON))
    before = only(store).energy_j
    passed_days(store, AGES["facts"], 2)
    sampled(store, steady(NOON + 3 * HOUR))
    sampled(store, [one._replace(node="g2") for one in steady(NOON, uuid="GPU-9")])
    assert only(store).energy_j == before  # not yet read, and the day's facts are
    late = passed_days(store, AGES["facts"], 2)
    assert (late.refused, len(files(store))) == ((), 1)
    assert only(store).energy_j == 3 * (before or 0)


def test_an_hour_that_grew_after_its_readings_went_is_refused_aloud(tmp_path: Path) -> None:
    store = stored(tmp_path, [run(start_s=NOON - 20, end_s=NOON + 4 * HOUR)], steady(NOON, NOON + HOUR))
    before = only(store)
    passed_days(store, AGES["facts"], 2)
    sampled(store, steady(NOON, NOON + 10))
    for _ in range(2):
        refused = passed_days(store, AGES["facts"]).refused
        assert refused == tuple(f"{tmp_path}/{table}/c/2026-11-20/g1/12.parquet" for table in ("samples", "hosts"))
    assert only(store) == before


def test_a_day_of_which_all_hours_come_again_is_made_again(tmp_path: Path) -> None:
    store = stored(tmp_path, [run(start_s=NOON - 20, end_s=NOON + 4 * HOUR)], steady(NOON))
    passed_days(store, AGES["facts"], 2)
    sampled(store, steady(NOON, NOON + 10))
    assert passed_days(store, AGES["facts"], 2).refused == ()
    assert only(store).energy_j == 6000


# --- what is known of runs later ---


def test_a_run_that_comes_late_counts_at_once_and_has_its_facts_made_again(tmp_path: Path) -> None:
    store = stored(tmp_path, [], steady(NOON + 10, NOON + 20))
    passed_days(store, AGES["joined"], 2)
    store.write_allocations("b", [run(start_s=NOON, end_s=NOON + HOUR)], 1e10)
    before = only(store)
    assert before.energy_j == 6000
    assert passed_days(store, AGES["joined"]).written == 1
    assert passed_days(store, AGES["joined"]).written == 0
    assert only(store) == before
    store.write_allocations("c", [run(start_s=NOON, end_s=NOON + 15)], 2e10)
    assert only(store).energy_j == 4500
    passed_days(store, AGES["facts"], 2)
    assert (files(store), only(store).energy_j) == (["facts/c/2026-11-20.parquet"], 4500)


def test_a_run_that_ends_days_later_leaves_facts_as_they_are(tmp_path: Path) -> None:
    runs_on = run(start_s=NOON, end_s=None, state="RUNNING")
    store = stored(tmp_path, [], steady(NOON + 10, NOON + 20))
    store.write_allocations("a", [runs_on], MIDNIGHT + 3.0 * DAY)
    passed_days(store, AGES["joined"], 2)
    store.write_allocations("b", [run(start_s=NOON, end_s=NOON + 4 * DAY)], MIDNIGHT + 5.0 * DAY)
    assert passed_days(store, AGES["joined"]).written == 0
    assert only(store).energy_j == 6000


# --- windows ---


def test_a_window_that_cuts_an_hour_reads_the_readings_while_they_are_there(tmp_path: Path) -> None:
    loads = [*steady(*range(NOON + 10, NOON + 1801, 10)), *steady(*range(NOON + 1810, NOON + HOUR + 1, 10), util=90.0)]
    store = stored(tmp_path, [run(start_s=NOON, end_s=NOON + HOUR)], loads)
    half = NOON + 1800.0
    before = only(store, 0, half)
    passed_days(store, AGES["joined"], 2)
    assert only(store, 0, half) == before
    passed_days(store, AGES["facts"], 2)
    after = only(store, 0, half)
    assert (before.util_used_gpu_hours, after.util_used_gpu_hours) == (0.25, near(0.35))
    second = only(store, half)
    assert (second.util_used_gpu_hours or 0) + (after.util_used_gpu_hours or 0) == near(0.7)


# --- killed, or twice ---


@pytest.mark.parametrize("age", ["joined", "facts", "gone"])
def test_killed_at_any_file(tmp_path: Path, age: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a run was about to rename or remove when it ended, nothing is lost and nothing counts twice."""
    rows_of = [run(start_s=NOON - 20, end_s=NOON + 2 * HOUR)]
    whole = steady(*range(NOON, NOON + 200, 10), NOON + HOUR)

    class Killed(BaseException):
        pass

    def used() -> float:
        usages = job_usage(store, 0, 1e10, 1e10)
        return sum(usage.util_used_gpu_hours or 0.0 for usage in usages)

    store = stored(tmp_path / "store", rows_of, whole)
    expected = used()
    for steps in count():
        left = steps

        def step(real: Any, *args: Any, **options: Any) -> Any:
            nonlocal left
            left -= not options  # with a descriptor of a folder: temporaries of the database
            if left < 0:
                raise Killed
            return real(*args, **options)

        with monkeypatch.context() as patched:
            for name in ("replace", "unlink", "rmdir"):
                patched.setattr(os, name, partial(step, getattr(os, name)))
            with suppress(Killed):
                passed_days(store, AGES[age])
        if age != "gone":
            assert used() == pytest.approx(expected, rel=1e-6), steps
        if left >= 0:
            break
    assert steps > 2
    assert passed_days(store, AGES[age]).errors == ()
    assert os.listdir(tmp_path / "store/work/compact") == ["lock"]


def test_one_run_at_a_time(tmp_path: Path) -> None:
    store = stored(tmp_path, [], steady(NOON))
    lock = tmp_path / "work/compact/lock"
    lock.parent.mkdir(parents=True)
    with open(lock, "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert compact(store, KEEP, NOON + 20 * DAY, anyway=True) is None
    passed_days(store, 20)
    assert files(store)[0] == "facts/c/2026-11-20.parquet"


@pytest.mark.parametrize("page", [False, True])
def test_a_damaged_file_is_named_and_stops_its_own_day_only(tmp_path: Path, page: bool) -> None:
    store = stored(tmp_path, [], steady(NOON, NOON - DAY))
    path = tmp_path / "samples/c/2026-11-19/g1/12.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[:4] + b"\xff" * 396 + whole[400:] if page else b"junk")
    done = passed_days(store, AGES["facts"])
    (error,) = done.errors
    assert (done.written, f"'{path}' cannot be read" in error) == (3, True)
    with pytest.raises(StoreError, match=f"'{path}' cannot be read"):
        rows(store, "*")


def test_a_file_that_is_not_ours_is_not_taken_in(tmp_path: Path, printed: Printed) -> None:
    store = stored(tmp_path, [], steady(NOON))
    with duckdb.connect() as connection:
        path = tmp_path / "samples/c/2026-11-20/g1"
        connection.execute(f"COPY (SELECT * FROM '{path}/12.parquet') TO '{path}/13.parquet' (FORMAT parquet)")
    (error,) = passed_days(store, AGES["facts"]).errors
    assert "13.parquet'" in error
    printed("compact", error)


def test_a_day_without_one_usable_line(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    with store.samples.work("flush", "c", "g1") as work:
        assert work
        store.samples.flush("c", MadeHour("g1", NOON, [], rejected=3), attribute.attribute_sample, work)
    for age in ("joined", "facts"):
        assert passed_days(store, AGES[age], 2).errors == ()
        assert store.samples.rejected(NOON, NOON + 1) == 3
    assert files(store) == ["facts/c/2026-11-20.parquet"]


def test_folders_of_others_are_left_alone(tmp_path: Path) -> None:
    store = stored(tmp_path, [], steady(NOON))
    (tmp_path / "samples/c/notes").mkdir()
    (tmp_path / "samples/c/notes/x.parquet").touch()
    assert passed_days(store, AGES["gone"]).errors == ()
    assert files(store) == ["samples/c/notes/x.parquet"]


# --- sums ---


SUMS = [name for name in JobUsage._fields if name.endswith("_gpu_hours")]
SUMS += ["shared_hours", "energy_j", "read_mib", "written_mib"]


def sums(usages: Sequence[JobUsage]) -> dict[tuple[str, str], float]:
    names = [*SUMS, "coverage_pct"]
    return {
        (usage.job_id, name): value for usage in usages for name in names if (value := getattr(usage, name)) is not None
    }


class Stretch(NamedTuple):
    """Passes in which the same is known of the same jobs; each with its time since the last, GPU_UTIL, SMs, energy."""

    jobs: tuple[str, ...]
    active: bool
    known: tuple[bool, bool, bool]
    passes: list[tuple[float, float, float, float]]


PASS = st.tuples(
    st.sampled_from([10.0] * 8 + [9.876, 25.0, 400.0]), st.floats(0, 100), st.floats(0, 100), st.floats(0, 7000)
)
STRETCH = st.builds(
    Stretch,
    st.sampled_from([("1",), ("1", "2"), ("2",), ()]),
    st.booleans(),
    st.tuples(st.booleans(), st.booleans(), st.booleans()),
    st.lists(PASS, min_size=1, max_size=20),
)


def made_rounds(stretches: Sequence[Stretch]) -> list[NodeSample]:
    """Return passes over one GPU; one that comes after a gap is its sampler's first."""
    rounds: list[NodeSample] = []
    at_s = float(NOON)
    for jobs, active, known, passes in stretches:
        for after_s, *values in passes:
            at_s = round(at_s + after_s, 3)
            util, sm, energy = (value if told else None for value, told in zip(values, known, strict=True))
            unit = device(gpu_util_pct=util, sm_active_pct=sm, energy_j=energy)
            here = [process(job, int(job), gpu_mem_used_mib=100) for job in jobs if active]
            passed = seen(at_s, [unit], here, interval_s=after_s if after_s < 100 else 0.0, hosts=list(map(host, jobs)))
            rounds.append(passed._replace(holders=tuple(DeviceAllocation("GPU-0", job, None) for job in jobs)))
    return rounds


@settings(max_examples=tenth(20))
@given(st.lists(STRETCH, min_size=1, max_size=8), st.sampled_from(["facts", "joined"]), st.integers(0, 3))
def test_facts_change_no_sum(stretches: list[Stretch], age: str, cut_h: int) -> None:
    """Over whole hours, and over any time while readings are there."""
    rounds = made_rounds(stretches)
    runs = []
    for job in ("1", "2"):
        mine = [one for one in rounds if any(holder.job_id == job for holder in one.holders)]
        if mine:
            started_s = mine[0].at_s - mine[0].interval_s / 2
            runs.append(run(job, int(started_s), int(mine[-1].at_s) + 5))
    until_s = NOON + HOUR * cut_h / (1 if age == "facts" else 7) if cut_h else 1e10
    with TemporaryDirectory() as folder:
        store = stored(folder, runs, rounds)
        before = job_usage(store, 0, until_s, 1e10)
        passed_days(store, AGES[age], 2)
        after = job_usage(store, 0, until_s, 1e10)
    assert sums(after) == pytest.approx(sums(before), rel=1e-6, abs=1e-6)
    names = ("host_mem_peak_mib", "gpu_mem_peak_mib", "idle_tail_s", "methods")
    for old, new in zip(before, after, strict=True):
        assert [getattr(new, name) for name in names] == [getattr(old, name) for name in names]


def test_a_peak_over_two_gpus_is_of_one_time(tmp_path: Path) -> None:
    pair = [
        seen(
            NOON + 10 * n,
            [device("A"), device("B")],
            [process(uuid="A", gpu_mem_used_mib=a), process("1", 7, "B", gpu_mem_used_mib=b)],
        )
        for n, (a, b) in enumerate([(100, 20), (10, 200), (10, 20)], 1)
    ]
    store = stored(tmp_path, [run(start_s=NOON, end_s=NOON + HOUR)], pair)
    for age in ("joined", "facts"):
        assert only(store).gpu_mem_peak_mib == 210
        passed_days(store, AGES[age], 2)
    assert only(store).gpu_mem_peak_mib == 210


def test_a_reading_after_the_end_takes_nothing_from_the_run(tmp_path: Path) -> None:
    """The job's processes were still there when the last reading was taken."""
    own = [
        *steady(*range(NOON + 10, NOON + 1700, 10), mib=50000),
        *steady(*range(NOON + 1700, NOON + 1810, 10), mib=10),
    ]
    store = stored(tmp_path, [run(start_s=NOON, end_s=NOON + 1795)], own)
    for _ in range(3):
        usage = only(store)
        ((*_, measured, _),) = measured_runs(store, "c")
        assert (usage.gpu_mem_peak_mib, usage.host_mem_peak_mib, usage.idle_tail_s) == (50000, 4000, 0)
        assert (measured.gpu_mem_peak_mib, measured.sampled_s, measured.sample_count) == (50000, 1790, 179)
        passed_days(store, AGES["facts"])


def test_an_idle_tail_is_known_from_facts(tmp_path: Path) -> None:
    rounds = [*steady(NOON + 10, NOON + 20, NOON + 30), *steady(*range(NOON + 40, NOON + 200, 10), util=0.0, sm=0.0)]
    store = stored(tmp_path, [run(start_s=NOON, end_s=NOON + HOUR)], rounds)
    passed_days(store, AGES["facts"], 2)
    assert only(store).idle_tail_s == 160


def test_samples_without_a_store(tmp_path: Path) -> None:
    assert compact(Store(str(tmp_path / "none")), KEEP, 1e9) == (0, 0, (), ())

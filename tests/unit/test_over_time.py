# SPDX-License-Identifier: Apache-2.0
"""Use over time and over the week: as a plain loop over runs and samples has it, and to the last digit the total."""

import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from math import fsum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest
from duckdb import DuckDBPyConnection
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from slurm_colloc.core.chart_model import Charts, TimeUsage
from slurm_colloc.core.config import Observe
from slurm_colloc.core.model import Gres
from slurm_colloc.core.usage_model import AllocationRow, JobUsage, NodeSample
from slurm_colloc.facts.aggregate import aggregate, usages_of
from slurm_colloc.facts.compact import compact
from slurm_colloc.facts.over_time import Bins, bins_of, charts_of
from slurm_colloc.facts.usage import used_hours_by, used_hours_by_kind
from slurm_colloc.sources.means import JobMeans
from slurm_colloc.store.store import Store
from slurm_colloc.store.window import Window
from tests.rings import tenth
from tests.unit.made import HOUR, device, near, process, run, seen
from tests.unit.stored import INGESTED_S, SHARES, at, busy, sampled, stored

BERLIN = ZoneInfo("Europe/Berlin")
DAY_S = 24 * HOUR
FEW = settings(max_examples=tenth(8), phases=(Phase.explicit, Phase.reuse, Phase.generate))
SUMS = (
    "allocated_gpu_hours",
    *("util_measured_gpu_hours", "util_used_gpu_hours"),
    *("sm_measured_gpu_hours", "sm_used_gpu_hours"),
)


def moment(text: str, zone: ZoneInfo = BERLIN) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()


def bins(since: str, until: str, zone: ZoneInfo = BERLIN) -> Bins:
    return bins_of(moment(since, zone), moment(until, zone), zone)


def lengths(found: Bins) -> list[float]:
    return [(until_s - since_s) / HOUR for since_s, until_s in pairwise(found.edges_s)]


def test_bins_are_hours_days_or_weeks_by_the_length_of_the_window() -> None:
    assert lengths(bins("2026-11-02", "2026-11-05")) == [1.0] * 72
    assert lengths(bins("2026-11-02T12:00", "2026-11-05T13:00")) == [12.0, 24.0, 24.0, 13.0]
    assert lengths(bins("2026-05-04", "2026-09-01")) == [24.0] * 120
    # From a Friday: to the first Monday, then whole weeks.
    weeks = lengths(bins("2026-05-01", "2026-09-01"))
    assert (weeks[0], set(weeks[1:-1]), weeks[-1]) == (72.0, {168.0}, 24.0)


def test_days_are_cut_at_local_midnight_also_where_clocks_change() -> None:
    assert lengths(bins("2026-03-27", "2026-03-31")) == [24.0, 24.0, 23.0, 24.0]
    autumn = bins("2026-10-23T06:00", "2026-10-27")
    assert lengths(autumn) == [18.0, 24.0, 25.0, 24.0]
    assert autumn.offsets == ((at("2026-10-23"), 7200), (at("2026-10-25T01:00"), 3600))
    assert autumn.zone == "CEST/CET"
    # Where clocks go forward at midnight the day begins an hour later.
    assert lengths(bins("2026-09-04", "2026-09-08", ZoneInfo("America/Santiago"))) == [24.0, 24.0, 23.0, 24.0]


class Swept(NamedTuple):
    """What came of a window, and what a loop needs to do it again."""

    charts: Charts
    bins: Bins
    usages: list[JobUsage]
    shares: list[tuple[str, str, float, float, float, float | None, float | None]]
    pieces: list[object]
    totals: list[object]
    suspended: list[tuple[str, str]]


SHARES_SEEN = "SELECT cluster, job_id, at_s, interval_s, unit_gpus, gpu_util_pct, sm_active_pct FROM shares"


def aggregated(store: Store, window: Window, zone: ZoneInfo, by: str = "user", rows: list[Any] | None = None) -> Swept:
    found = bins_of(window.since_s, window.until_s, zone)
    with store.connect(window.since_s, window.until_s) as database:
        rows = database.execute(SHARES_SEEN).fetchall() if rows is None else rows
        aggregate(database, store, window, found)
        charts = charts_of(database, by, window, found, 4.0, used_hours_by_kind(database, by)[1])
        suspended = database.execute("SELECT cluster, job_id_raw FROM usage WHERE suspended_s > 0").fetchall()
        return Swept(charts, found, usages_of(database), rows, *sums(database), suspended)


def sums(database: DuckDBPyConnection) -> tuple[list[object], list[object]]:
    """Return what all pieces and all runs come to, as decimals."""
    names = ("allocated", "util_measured", "util_used", "sm_measured", "sm_used")
    pieces = database.execute(
        f"SELECT {', '.join(f'coalesce(sum({name}), 0)' for name in names)} FROM aggregated.run_bins"
    )
    (of_pieces,) = pieces.fetchall()
    cast = ", ".join(
        f"coalesce(sum({name}::DECIMAL(38, 18)) FILTER ({name.replace('measured', 'used')} IS NOT NULL), 0)"
        for name in names
    )
    (of_runs,) = database.execute(f"SELECT {cast} FROM usage WHERE allocated IS NOT NULL").fetchall()
    return list(of_pieces), list(of_runs)


class Scene(NamedTuple):
    """What ran, what was seen of it, and how it is asked for."""

    runs: tuple[AllocationRow, ...]
    means: tuple[JobMeans | None, ...]
    rounds: dict[str, list[NodeSample]]
    since_s: int
    until_s: int
    now_s: int
    zone: ZoneInfo
    convention: str
    kept: str


# By place: gres, node, and (uuid, profile) of the units.
PLACES = (
    (Gres("gpu", "h100", 1), "g1", (("GPU-0", ""),)),
    (Gres("gpu", "h100", 2), "g1", (("GPU-1", ""), ("GPU-2", ""))),
    (Gres("gpu", "h100_1g.10gb", 1), "m1", (("MIG-0", "1g.10gb"),)),
    (Gres("gpu", "h100_3g.40gb", 1), "m1", (("MIG-1", "3g.40gb"),)),
    (Gres("shard", "", 1), "s1", (("GPU-3", ""),)),
    (Gres("mps", "", 30), "elsewhere", (("GPU-4", ""),)),
)
ZONES = ("UTC", "Europe/Berlin", "Pacific/Auckland", "America/Santiago")
CHANGES = ("2026-03-28T10:07:12", "2026-10-24T23:00:00", "2026-04-03T17:30:00", "2026-06-01T00:00:00")


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    """Draw runs one after the other in each place, and readings of some of their time."""
    since_s = int(datetime.fromisoformat(draw(st.sampled_from(CHANGES))).replace(tzinfo=UTC).timestamp())
    span_s = draw(st.sampled_from([5, 50, 71, 100, 24 * 20, 24 * 130])) * HOUR + draw(st.integers(0, 5000))
    runs: list[AllocationRow] = []
    means: list[JobMeans | None] = []
    rounds: dict[str, list[NodeSample]] = {"c": [], "d": []}
    for number, (gres, node, units) in enumerate(PLACES):
        cluster = draw(st.sampled_from("cd"))
        at_s = since_s - draw(st.integers(0, span_s))
        for count in range(draw(st.integers(0, 2))):
            start_s = at_s + draw(st.integers(1, span_s))
            at_s = start_s + draw(st.integers(0, span_s))
            suspended_s = draw(st.sampled_from([0, (at_s - start_s) // 3]))
            job = f"{number}{count}"
            user = draw(st.sampled_from(["ann", "bob"]))
            fields = {"suspended_s": suspended_s, "gres": (gres,), "node_list": node, "user": user, "cluster": cluster}
            end_s = None if draw(st.integers(0, 7)) == 0 else at_s
            runs.append(run(job, start_s, end_s, **fields))
            mean = draw(st.none() | st.sampled_from([0.0, 37.5]))
            means.append(None if mean is None else JobMeans(mean, 3000, gres.quantity, "job mean by jobstats"))
            rounds[cluster] += draw(readings(job, start_s, at_s, node, units))
            if end_s is None:
                break
    seen_s = (one.at_s for of in rounds.values() for one in of)
    last_s = max((*seen_s, *(one.end_s or 0 for one in runs), since_s + 1))
    kept = draw(st.sampled_from(["readings", "both", "facts"]))
    # Of an hour that the window cuts, and of which only facts are left, nobody knows which part.
    edges = [at_s // HOUR * HOUR if kept == "facts" else at_s for at_s in (since_s, since_s + span_s)]
    return Scene(
        tuple(runs),
        tuple(means),
        rounds,
        edges[0],
        edges[1],
        int(last_s) + draw(st.integers(1, span_s)),
        ZoneInfo(draw(st.sampled_from(ZONES))),
        draw(st.sampled_from(["slices", "sms", "memory"])),
        kept,
    )


PCT = st.none() | st.sampled_from([0.0, 12.5, 100.0])


@st.composite
def readings(
    draw: st.DrawFn, job: str, start_s: int, end_s: int, node: str, units: Sequence[tuple[str, str]]
) -> list[NodeSample]:
    """Draw a few readings of a run, some of which reach over its ends."""
    found = []
    at_s = float(start_s)
    for _ in range(draw(st.integers(0, 4))):
        at_s += draw(st.integers(0, max(1, (end_s - start_s) // 3)))
        interval_s = draw(st.sampled_from([10.0, 700.25, 5000.0, 80_000.0]))
        at_s += interval_s
        of = [
            device(uuid, profile=profile, gpu_util_pct=None if profile else draw(PCT), sm_active_pct=draw(PCT))
            for uuid, profile in units
        ]
        mine = [process(job, int(job), uuid) for uuid, _ in units]
        found.append(seen(at_s, of, mine, interval_s=interval_s, node=node))
    return found


def made(folder: str, scene: Scene) -> tuple[Store, list[Any]]:
    """Return the store, and the rows of its samples, of which only facts may be left."""
    store = Store(folder, SHARES, scene.convention)
    store.write_allocations("a", scene.runs, float(scene.now_s), scene.means)
    for cluster, rounds in scene.rounds.items():
        sampled(store, rounds, cluster)
    last_s = max((one.at_s for of in scene.rounds.values() for one in of), default=0.0)

    def compacted(keep_raw_days: float) -> None:
        done = compact(store, Observe(keep_raw_days=keep_raw_days, keep_job_days=4000), last_s + 4 * DAY_S, True)
        assert done is not None
        assert not done.errors, done

    if scene.kept != "readings":
        compacted(4000)
    rows = store.rows(SHARES_SEEN, {}, scene.since_s, scene.until_s)
    if scene.kept == "facts":
        compacted(1)
    return store, rows


def overlap(*ends: tuple[float, float]) -> float:
    return max(0.0, min(until_s for _, until_s in ends) - max(since_s for since_s, _ in ends))


class Share(NamedTuple):
    """From when to when a sample counts for a run, and what it says."""

    since_s: float
    until_s: float
    unit_gpus: float
    pct: float


def shares_of(usage: JobUsage, found: Swept, which: int) -> list[Share]:
    mine = []
    for cluster, job_id, at_s, interval_s, unit_gpus, *metrics in found.shares:
        pct = metrics[which]
        since_s, until_s = max(at_s - interval_s, usage.start_s), min(at_s, usage.end_s)
        if (cluster, job_id) == (usage.cluster, usage.job_id_raw) and pct is not None and since_s < until_s:
            mine.append(Share(since_s, until_s, unit_gpus, pct))
    return mine


def by_hand(usage: JobUsage, found: Swept, piece: tuple[float, float]) -> list[float | None]:
    """Return the figures of SUMS of one run in one piece of time."""
    part = overlap((usage.start_s, usage.end_s), piece) / (usage.end_s - usage.start_s)
    figures: list[float | None] = [(usage.allocated_gpu_hours or 0) * part]
    by_mean = any(method.startswith("job") for method in usage.methods)
    for which, measured, used in (
        (0, usage.util_measured_gpu_hours, usage.util_used_gpu_hours),
        (1, usage.sm_measured_gpu_hours, usage.sm_used_gpu_hours),
    ):
        shares = shares_of(usage, found, which)
        whole_s = sum(share.until_s - share.since_s for share in shares)
        here = [(share, overlap((share.since_s, share.until_s), piece)) for share in shares]
        here_s = sum(seconds for _, seconds in here)
        if used is None or measured is None:
            figures += [0.0, None]
        elif by_mean:
            figures += [measured * part, used * part if part else None]
        else:
            # What a shard uses beyond its quarter is in no piece; what a suspended run used is spread evenly.
            even, most = (usage.cluster, usage.job_id_raw) in found.suspended, 25 if usage.gpu_type == "shard" else 100
            counts = [(share, 1 if even else min(share.pct, most) * share.unit_gpus) for share in shares]
            whole = sum(weight * (share.until_s - share.since_s) for share, weight in counts)
            inside = sum(weight * overlap((share.since_s, share.until_s), piece) for share, weight in counts)
            figures += [measured * here_s / whole_s, (used * inside / whole if whole else 0.0) if here_s else None]
    return figures


def added(rows: Sequence[list[float | None]]) -> list[float | None]:
    """Return sums of columns, None where nothing is known of it."""
    columns = zip(*rows, strict=True) if rows else [(0.0,), (0.0,), (None,), (0.0,), (None,)]
    return [fsum(known) if (known := [value for value in column if value is not None]) else None for column in columns]


@FEW
@given(scenes())
def test_bins_are_what_a_plain_loop_finds_and_add_up_to_the_total(scene: Scene) -> None:
    window = Window(scene.since_s, scene.until_s, scene.now_s)
    with TemporaryDirectory() as folder:
        store, rows = made(folder, scene)
        found = aggregated(store, window, scene.zone, rows=rows)
    assert found.pieces == found.totals, "to the last digit"
    known = [one for one in found.usages if one.allocated_gpu_hours is not None and one.end_s > one.start_s]
    details = {detail.name: {piece.since_s: piece for piece in detail.over_time} for detail in found.charts.details}
    assert [piece.since_s for piece in found.charts.over_time] == list(found.bins.edges_s[:-1])
    for piece in found.charts.over_time:
        ends = (piece.since_s, piece.until_s)
        for name, pieces in details.items():
            mine = [by_hand(one, found, ends) for one in known if one.user == name and overlap(ends, one_of(one))]
            close(pieces.get(piece.since_s), added(mine))
        close(piece, added([by_hand(one, found, ends) for one in known if overlap(ends, one_of(one))]))
        so_far = min(piece.until_s, scene.now_s)
        assert piece.installed_gpu_hours == near(4 * max(0.0, so_far - piece.since_s) / HOUR)


def one_of(usage: JobUsage) -> tuple[float, float]:
    return usage.start_s, usage.end_s


def close(piece: TimeUsage | None, expected: list[float | None]) -> None:
    found = [0.0, 0.0, None, 0.0, None] if piece is None else [getattr(piece, name) for name in SUMS]
    for name, one, other in zip(SUMS, found, expected, strict=True):
        # A reading may reach into a bin for less than a microsecond.
        assert (one or 0.0) == pytest.approx(other or 0.0, rel=1e-9, abs=1e-8), name
        if other is not None and other > 1e-6:
            assert one is not None, name


@FEW
@given(scenes())
def test_the_week_is_what_a_plain_loop_finds(scene: Scene) -> None:
    window = Window(scene.since_s, scene.until_s, scene.now_s)
    with TemporaryDirectory() as folder:
        store, rows = made(folder, scene)
        found = aggregated(store, window, scene.zone, rows=rows)
    known = [one for one in found.usages if one.allocated_gpu_hours is not None and one.end_s > one.start_s]
    so_far_s = min(scene.until_s, scene.now_s)
    hours: dict[tuple[int, int], float] = {}
    allocated: dict[tuple[int, int], float] = {}
    at_s = scene.since_s // 900 * 900
    while at_s < so_far_s:
        local = datetime.fromtimestamp(at_s, scene.zone)
        cell, piece = (local.weekday(), local.hour), (at_s, at_s + 900)
        hours[cell] = hours.get(cell, 0.0) + overlap(piece, (scene.since_s, so_far_s)) / HOUR
        here = (
            (one.allocated_gpu_hours or 0) * overlap(piece, one_of(one)) / (one.end_s - one.start_s) for one in known
        )
        allocated[cell] = allocated.get(cell, 0.0) + sum(here)
        at_s += 900
    week = {(hour.weekday, hour.hour): hour for hour in found.charts.week}
    assert {cell: near(hour.hours) for cell, hour in week.items()} == hours
    for cell, hour in week.items():
        assert hour.allocated_gpus * hour.hours == pytest.approx(allocated[cell], rel=1e-6, abs=1e-6)
    for which, name in enumerate(("util", "sm")):
        of = [one for one in known if shares_of(one, found, which)]
        for kind in ("measured", "used"):
            whole = fsum(getattr(one, f"{name}_{kind}_gpu_hours") or 0.0 for one in of)
            parts = fsum((getattr(hour, f"{name}_{kind}_gpus") or 0.0) * hour.hours for hour in week.values())
            # Nobody knows in which hours a suspended run was; in none it used more than it had there.
            if kind == "used" and any((one.cluster, one.job_id_raw) in found.suspended for one in of):
                assert parts <= whole * (1 + 1e-6) + 1e-6, name
            else:
                assert parts == pytest.approx(whole, rel=1e-6, abs=1e-6), (name, kind)


def test_hours_are_known_when_only_facts_are_left(tmp_path: Path) -> None:
    rounds = busy(*range(3600, 10 * 3600, 3600), interval_s=3600.0)
    store = stored(tmp_path, [run(end_s=9 * HOUR)], rounds)
    window = Window(0, 2 * DAY_S, 1e6)
    before = aggregated(store, window, ZoneInfo("UTC"))
    assert len(before.bins.edges_s) == 49
    assert {hour.hour for hour in before.charts.week if hour.sm_used_gpus is not None} == set(range(9))
    for _ in range(2):
        compact(store, Observe(keep_raw_days=1), 5.0 * DAY_S, True)
    assert store.samples.days(0, DAY_S) == []
    assert aggregated(store, window, ZoneInfo("UTC")).charts == before.charts


def test_of_an_hour_half_is_in_each_of_two_where_clocks_are_half_an_hour_off(tmp_path: Path) -> None:
    store = stored(tmp_path, [run(end_s=HOUR)], busy(1800.0, 3600.0, interval_s=1800.0))
    found = aggregated(store, Window(0, DAY_S, 1e6), ZoneInfo("Asia/Kolkata"))
    used = {hour.hour: hour.sm_used_gpus for hour in found.charts.week if hour.sm_used_gpus}
    assert used == {5: near(0.1 / 0.5), 6: near(0.1)}
    assert found.pieces == found.totals


def test_the_week_is_by_the_clock_on_the_wall(tmp_path: Path) -> None:
    # A GPU from 1 to 2 on each of three days, of which one is that on which clocks go forward, from 2 to 3.
    began = [moment(f"2026-03-{day}T01:00") for day in (28, 29, 30)]
    rows = [run(str(number), int(at_s), int(at_s) + HOUR) for number, at_s in enumerate(began)]
    store = Store(str(tmp_path))
    store.write_allocations("a", rows, 2e9)
    found = aggregated(store, Window(moment("2026-03-28"), moment("2026-03-31"), 2e9), BERLIN)
    held = {(hour.weekday, hour.hour): hour.allocated_gpus for hour in found.charts.week if hour.allocated_gpus}
    assert held == {(5, 1): near(1.0), (6, 1): near(1.0), (0, 1): near(1.0)}
    assert (6, 2) not in {(hour.weekday, hour.hour) for hour in found.charts.week}, "nobody's clock showed it"
    autumn = aggregated(store, Window(moment("2026-10-25"), moment("2026-10-26"), 2e9), BERLIN)
    assert {hour.hour: hour.hours for hour in autumn.charts.week}[2] == near(2.0)


def test_a_share_seen_on_two_gpus_is_measured_once(tmp_path: Path) -> None:
    rounds = [
        seen(
            at_s, [device(), device("GPU-1")], [process(), process(uuid="GPU-1", pid=101)], interval_s=1800.0, node="s1"
        )
        for at_s in (1800.0, 3600.0)
    ]
    store = stored(tmp_path, [run(gres=(Gres("shard", "", 2),), node_list="s1")], rounds, SHARES)
    found = aggregated(store, Window(0, DAY_S, 1e6), ZoneInfo("UTC"))
    (usage,) = found.usages
    assert (usage.allocated_gpu_hours, usage.sm_measured_gpu_hours) == (0.5, 0.5)
    assert found.charts.week[0].sm_measured_gpus == near(0.5)
    assert found.charts.over_time[0].sm_measured_gpu_hours == near(0.5)


def test_groups_are_those_of_the_table(tmp_path: Path) -> None:
    rows = [run(), run("2", user="bob", account="other", gres=(Gres("gpu", "a100", 1),)), run("3", account="other")]
    store = stored(tmp_path, rows, busy(900.0, job="2"))
    window = Window(0, DAY_S, INGESTED_S)
    for by in ("user", "account", "gpu"):
        details = aggregated(store, window, ZoneInfo("UTC"), by).charts.details
        with store.connect(0, DAY_S) as database:
            aggregate(database, store, window)
            *groups, _ = used_hours_by(database, by)
        assert {detail.name for detail in details} == {group.name for group in groups}
        for group in groups:
            (detail,) = [detail for detail in details if detail.name == group.name]
            assert sum(kind.jobs for kind in detail.kinds) == group.jobs
            assert fsum(piece.allocated_gpu_hours for piece in detail.over_time) == near(group.allocated_gpu_hours)


def test_windows_longer_than_any_run_do_not_take_longer_than_they_should(tmp_path: Path) -> None:
    """Sixty years by the quarter of an hour are two million."""
    store = stored(tmp_path, [run()])
    began_s = time.process_time()
    found = aggregated(store, Window(0, 60 * 366 * DAY_S, 2e9), ZoneInfo("UTC"))
    assert time.process_time() - began_s < 60, "six billion comparisons take minutes"
    assert found.charts.over_time[0].allocated_gpu_hours == near(1.0)
    assert len(found.charts.over_time) == near(60 * 366 // 7 + 1)
    assert timedelta(seconds=found.charts.over_time[1].since_s).days == 4

# SPDX-License-Identifier: Apache-2.0
"""What shadow mode would have done: decisions beside what was measured."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from slurm_colloc.core.model import LATE, WOULD_NOT, Decision, Gres, SharingMode, Weighed, because
from slurm_colloc.core.sharing_model import ShadowLate
from slurm_colloc.core.usage_model import AllocationRow, NodeSample
from slurm_colloc.core.wording import words
from slurm_colloc.facts.aggregate import aggregate
from slurm_colloc.facts.shadow import Piece, Shadow, find_piece, shadow_use
from slurm_colloc.placement.choose import as_asked
from slurm_colloc.placement.free_now import is_free
from slurm_colloc.placement.speed import on_slice
from slurm_colloc.sources.means import JobMeans
from slurm_colloc.store.store import Store
from slurm_colloc.store.window import Window
from tests.unit.golden import Printed
from tests.unit.made import HOUR, MIG_POOL, MPS_POOL, SHARD_POOL, decision, near, run, site
from tests.unit.stored import busy, stored

CONFIG = site(MIG_POOL, MPS_POOL, SHARD_POOL)
SLICE = "gpu:h100_1g.10gb:1"
HOURS = (900.0, 1800.0, 2700.0, 3600.0)
# One seventh of a GPU for an hour, by a job of 30 % of 132 SMs on 16 of them.
ON_SLICE = on_slice(30.0, 132 / 16).upper / 7


def would(job: str = "1", piece: str = SLICE, **fields: Any) -> Decision:
    return decision(job, given="as asked", shadow=True, would=piece, **fields)


def told(
    folder: Path,
    rows: Sequence[AllocationRow],
    decisions: Sequence[Decision],
    rounds: Sequence[NodeSample] = (),
    since_s: float = 0,
    until_s: float = 10 * HOUR,
) -> Shadow:
    store = stored(folder, rows, rounds, CONFIG)
    owners = {row.job_id: row.user for row in rows}
    store.write_decisions([(owners.get(one.job_id, "ann"), one) for one in decisions])
    window = Window(since_s, until_s, 1e9)
    with store.connect(since_s, until_s) as database:
        aggregate(database, store, window)
        return shadow_use(database, CONFIG, window, "slices")


# --- decisions beside what was measured ---


def test_a_run_that_fits_frees_what_the_slice_does_not_hold(tmp_path: Path) -> None:
    found = told(tmp_path, [run()], [would()], busy(*HOURS, sm=20.0, mib=9984))
    [piece] = found.pieces
    assert (piece.piece, piece.runs, piece.fitted, piece.out_of_memory) == (SLICE, 1, 1, 0)
    assert (piece.allocated_gpu_hours, piece.piece_gpu_hours) == (1.0, near(ON_SLICE))
    assert piece.freed_gpu_hours == near(1 - ON_SLICE)
    assert found.total == piece._replace(piece="total")
    assert (found.decided, found.left, found.not_judged) == (1, (), ())


def test_what_was_measured_counts_where_it_was_busier_than_foretold(tmp_path: Path) -> None:
    found = told(tmp_path, [run()], [would()], busy(*HOURS, sm=60.0))
    assert found.total.piece_gpu_hours == near(on_slice(60.0, 132 / 16).upper / 7)


def test_nobody_can_foretell_more_than_a_whole_gpu(tmp_path: Path) -> None:
    found = told(tmp_path, [run()], [would(sm_active_q95_pct=1e300)], busy(*HOURS))
    assert found.total.piece_gpu_hours == near(on_slice(100.0, 132 / 16).upper / 7)


def test_of_whose_activity_nothing_is_known_it_is_taken_that_it_fills_the_sms(tmp_path: Path) -> None:
    seen = [
        one._replace(devices=tuple(unit._replace(sm_active_pct=None) for unit in one.devices))
        for one in busy(*HOURS, mib=5000)
    ]
    found = told(tmp_path, [run()], [would(sm_active_q95_pct=None)], seen)
    assert (found.total.fitted, found.total.piece_gpu_hours) == (1, near(on_slice(100.0, 132 / 16).upper / 7))


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED"])
def test_a_peak_above_the_slice_runs_out_of_memory_however_the_run_ended(tmp_path: Path, state: str) -> None:
    # Half of it sampled shows enough.
    found = told(tmp_path, [run(state=state)], [would()], busy(900.0, 1800.0, mib=9985))
    total = found.total
    assert (total.judged, total.fitted, total.out_of_memory) == (1, 0, 1)
    assert (total.allocated_gpu_hours, total.freed_gpu_hours) == (0, 0), "nothing is freed by a run that fails"
    assert total.lost_gpu_hours == near(ON_SLICE)


@pytest.mark.parametrize(
    ("fields", "rounds", "since_s", "why"),
    [
        ({}, (), 0, "nobody measured its peak of GPU memory"),
        ({}, busy(900.0, 1800.0), 0, "less than 90 % of it was sampled"),
        ({"state": "FAILED"}, busy(*HOURS), 0, "it did not complete, so that its peak is none"),
        ({"end_s": None, "state": "RUNNING"}, busy(*HOURS, mib=50000), 0, "it had not ended"),
        ({"start_s": 0}, busy(*HOURS, mib=50000), 60, "it began before the window"),
        ({"gres": (Gres("gpu", "h100", 2),)}, busy(*HOURS), 0, "it did not get one GPU"),
        ({"partition": "other"}, busy(*HOURS), 0, "site.toml has no such piece for the partition, or not its size"),
    ],
)
def test_what_cannot_be_judged_is_counted_by_why(
    tmp_path: Path, fields: dict[str, Any], rounds: Sequence[NodeSample], since_s: float, why: str
) -> None:
    found = told(tmp_path, [run(**fields)], [would()], rounds, since_s=since_s)
    assert [(one.why, one.runs) for one in found.not_judged] == [(why, 1)]
    assert (found.total.runs, found.total.judged, found.total.freed_gpu_hours) == (1, 0, 0)


@pytest.mark.parametrize(("end_s", "fitted"), [(HOUR, 1), (119, 0)])
def test_the_peak_of_another_sampler_counts_where_it_had_the_time_to_see_one(
    tmp_path: Path, end_s: int, fitted: int
) -> None:
    """Jobstats and Slurm itself say a job's peak, and nothing of how much of its time they saw."""
    store = Store(str(tmp_path), CONFIG)
    mean = JobMeans(None, 4000, 1, "jobstats")
    store.write_allocations("a", [run(end_s=end_s)], 1e6, [mean])
    store.write_decisions([("ann", would())])
    window = Window(0, 10 * HOUR, 1e9)
    with store.connect() as database:
        aggregate(database, store, window)
        found = shadow_use(database, CONFIG, window, "slices")
    assert (found.total.fitted, len(found.not_judged)) == (fitted, 1 - fitted)


def test_runs_left_as_asked_are_counted_by_why(tmp_path: Path, printed: Printed) -> None:
    made = [would(str(number), "", would_not=why) for number, why in enumerate([*WOULD_NOT, "need", "\x1b[31m"])]
    found = told(tmp_path, [run(one.job_id) for one in made], made)
    left = {one.why: one.runs for one in found.left}
    known = {words(because(f"would-not-{why}")): 1 + (why == "need") for why in WOULD_NOT}
    (unknown,) = left.keys() - known
    assert left == {**known, unknown: 1}
    printed("report-shadow", unknown)
    assert (found.decided, found.total.runs) == (len(made), 0)
    assert sum(one.allocated_gpu_hours or 0 for one in found.left) == len(made)


def test_only_decisions_of_shadow_mode_count(tmp_path: Path) -> None:
    placed = decision("1", would=SLICE)
    assert told(tmp_path, [run(), run("2")], [placed]).decided == 0


def test_a_share_is_its_part_of_the_memory_and_shards_enforce_none(tmp_path: Path) -> None:
    memory = MPS_POOL.gpu_mem_mib or 0
    mps = would("1", f"mps:{MPS_POOL.mps_per_gpu // 2}", would_memory_mib=5000)
    shard = would("2", "shard:1")
    per_gpu = SHARD_POOL.shards_per_gpu
    rows = [run("1", partition=MPS_POOL.partitions[0]), run("2", HOUR, 2 * HOUR, partition=SHARD_POOL.partitions[0])]
    later = busy(*(HOUR + at_s for at_s in HOURS), job="2", mib=memory)
    found = told(tmp_path, rows, [mps, shard], [*busy(*HOURS, mib=5000), *later])
    of = {piece.piece: piece for piece in found.pieces}
    assert (of[mps.would].fitted, of[mps.would].piece_gpu_hours) == (1, near(0.5))
    assert (of["shard:1"].out_of_memory, of["shard:1"].over_share) == (0, 1)
    assert of["shard:1"].lost_gpu_hours == near(1 / per_gpu)
    # What an MPS client is limited to is less than its share, and no decision makes the share larger.
    over = told(tmp_path / "b", rows[:1], [mps], busy(*HOURS, mib=5001))
    assert over.total.out_of_memory == 1
    boasts = told(tmp_path / "c", rows[:1], [mps._replace(would_memory_mib=2**62)], busy(*HOURS, mib=memory))
    assert boasts.total.out_of_memory == 1


def test_how_much_earlier_is_only_said_of_what_is_known(tmp_path: Path) -> None:
    # Waited one hour each: for a free piece, for one that was free after 10 min, or 2 h, and for one of nobody knows.
    waits = {"1": 0.0, "2": 600.0, "3": 7200.0, "4": None}
    rows = [run(job, HOUR, 2 * HOUR) for job in waits]
    times = [HOUR + at_s for at_s in HOURS]
    rounds = [one for job in waits for one in busy(*times, job=job, uuid=f"GPU-{job}")]
    made = [would(job, would_wait_s=wait_s) for job, wait_s in waits.items()]
    total = told(tmp_path, rows, made, rounds).total
    assert (total.fitted, total.waits_known, total.sooner) == (4, 3, 2)
    assert total.earlier_median_s == 3000
    assert told(tmp_path / "b", rows[3:], made[3:], rounds).total.earlier_median_s is None


def test_what_late_binding_would_have_come_to(tmp_path: Path) -> None:
    """Submitted at 0: two would have begun 50 min and an hour sooner, one is not measured, one would have run out."""
    rows = [run(str(job), 2 * HOUR, 3 * HOUR, submit_s=0) for job in range(1, 6)]
    times = [2 * HOUR + at_s for at_s in HOURS]
    peaks = {"1": 4000, "2": 4000, "4": 70_000, "5": 4000}
    rounds = [one for job, mib in peaks.items() for one in busy(*times, job=job, uuid=f"GPU-{job}", mib=mib)]
    waits = (HOUR + 600.0, HOUR, 0.0, 0.0)
    made = [would(str(job), arm=LATE, would_wait_s=wait_s) for job, wait_s in enumerate(waits, 1)]
    found = told(tmp_path, rows, [*made, would("5", would_wait_s=0.0)], rounds)
    assert found.late == ShadowLate(runs=4, judged=3, harmed=1, waits_known=2, sooner=1)
    assert (found.total.runs, found.total.fitted, found.total.out_of_memory) == (5, 3, 1)


def test_what_csub_never_writes_counts_for_nothing(tmp_path: Path) -> None:
    """Only of an MPS client is memory limited below its share, and nobody waits for ever, or less than nothing."""
    for number, wait_s in enumerate((1e308, -1.0)):
        lie = would(would_memory_mib=1, would_wait_s=wait_s)
        found = told(tmp_path / str(number), [run(submit_s=-100)], [lie], busy(*HOURS, mib=4000))
        assert (found.total.fitted, found.total.out_of_memory, found.total.waits_known) == (1, 0, 0)


def test_a_requeue_sets_the_time_of_submission_anew(tmp_path: Path) -> None:
    rows = [run(start_s=0, end_s=60, state="NODE_FAIL"), run(start_s=HOUR, end_s=2 * HOUR, submit_s=60)]
    found = told(tmp_path, rows, [would(would_wait_s=0.0)], busy(*(HOUR + at_s for at_s in HOURS)))
    assert (found.total.runs, found.total.fitted, found.total.waits_known) == (2, 1, 0)


def test_a_job_that_would_have_moved_is_shown_with_its_partition(tmp_path: Path) -> None:
    [piece] = told(tmp_path, [run(partition="far")], [would(would_partition="mig")], busy(*HOURS)).pieces
    assert (piece.piece, piece.fitted) == (f"{SLICE} in mig", 1)


def test_a_store_of_an_earlier_release_has_no_such_decisions(tmp_path: Path) -> None:
    store = stored(tmp_path, [run()], busy(*HOURS), CONFIG)
    store.write_decisions([("ann", would())])
    path = tmp_path / "decisions.parquet"
    with store.connect() as database:
        database.execute(f"COPY (SELECT * EXCLUDE (shadow, would) FROM '{path}') TO '{path}.old' (FORMAT parquet)")
    path.with_suffix(".parquet.old").replace(path)
    window = Window(0, 10 * HOUR, 1e9)
    with store.connect() as database:
        aggregate(database, store, window)
        assert shadow_use(database, CONFIG, window, "slices").decided == 0


def test_another_clusters_pieces_are_not_in_this_site_file(tmp_path: Path) -> None:
    """One store may hold several clusters, and each may call its slices the same."""
    found = told(tmp_path, [run(cluster="d")], [would(cluster="d")], busy(*HOURS))
    assert ([piece.piece for piece in found.pieces], found.total.judged) == (["(not in site.toml)"], 0)


@pytest.mark.parametrize("wait_s", [0.0, 6 * 86400.0, 1e300])
def test_one_user_with_many_jobs_does_not_say_what_all_would_have_waited(tmp_path: Path, wait_s: float) -> None:
    honest, many = (("1", "ann"), ("2", "bob"), ("3", "cyd")), [(str(job), "eve") for job in range(10, 20)]
    rows = [run(job, HOUR, 2 * HOUR, user=user, submit_s=0) for job, user in (*honest, *many)]
    made = [would(job, would_wait_s=600.0) for job, _ in honest]
    made += [would(job, would_wait_s=wait_s) for job, _ in many]
    rounds = [one for job, _ in (*honest, *many) for one in busy(*(HOUR + at_s for at_s in HOURS), job=job, uuid=job)]
    found = told(tmp_path, rows, made, rounds).total
    assert found.earlier_median_s == HOUR - 600
    assert found.waits_known == (3 if wait_s == 1e300 else 13), "what nobody waits for in a week is not believed"


# --- what a piece is ---


@pytest.mark.parametrize("key", ["sm_count", "mem_mib"])
def test_a_slice_without_its_size_is_none(key: str) -> None:
    """site.toml takes a 0, by which nothing may be divided."""
    nothing: dict[str, Any] = {key: 0}
    pool = MIG_POOL._replace(slice=tuple(part._replace(**nothing) for part in MIG_POOL.slice))
    assert find_piece(SLICE, pool.partitions[0], site(MIG_POOL), "slices") is not None
    assert find_piece(SLICE, pool.partitions[0], site(pool), "slices") is None


def test_of_pools_that_look_the_same_the_least_counts() -> None:
    [part] = [one for one in MIG_POOL.slice if one.type == "h100_1g.10gb"]
    other = MIG_POOL._replace(name="n", nodes="n1", slice=(part._replace(mem_mib=8000, sm_count=14),))
    assert find_piece(SLICE, "mig", site(MIG_POOL, other), "slices") == Piece(near(1 / 7), 8000, near(14 / 132), True)
    unknown = other._replace(sm_count=None)
    assert find_piece(SLICE, "mig", site(MIG_POOL, unknown), "slices") is None
    assert find_piece(SLICE, "mig", CONFIG, "memory") == Piece(near(9984 / 81559), 9984, near(16 / 132), True)


@pytest.mark.parametrize(
    "text",
    ["", "gpu:h100:1", "gpu:h100_1g.10gb:2", "gpu:two", f"{SLICE},{SLICE}", "mps:1000000", "mps:0", "craynetwork:1",
     "\x1b[31m", "'; DROP TABLE usage; --"],
)  # fmt: skip
def test_what_is_no_piece_of_the_sites_is_none(text: str) -> None:
    assert [find_piece(text, name, CONFIG, "slices") for name in ("gpu", "mig", "mps", "shard")] == [None] * 4


# --- what is recorded of what was free ---


@pytest.mark.parametrize(
    ("options", "free"),
    [
        ([(SLICE, True), ("as asked", False)], True),
        ([(SLICE, False), ("as asked", True)], False),
        ([(SLICE, None)], False),
        ([(SLICE, True), (SLICE, False)], False),
        ([], False),
    ],
)
def test_what_a_job_is_given_was_free(options: list[tuple[str, bool | None]], free: bool) -> None:
    taken = as_asked((), ())._replace(mode=SharingMode.MIG, gres=Gres("gpu", "h100_1g.10gb", 1))
    weighed = tuple(Weighed(name, seen, 1.0) for name, seen in options)
    assert is_free(taken._replace(weighed=weighed)) is free

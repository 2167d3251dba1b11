# SPDX-License-Identifier: Apache-2.0
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from slurm_colloc.cli.colloc import ingest
from slurm_colloc.core.config import Paths, Pool, SiteConfig
from slurm_colloc.core.errors import ProcessError
from slurm_colloc.core.model import Footprint, Gres, JobRequest, Placement, Quantiles, Reason, because
from slurm_colloc.core.units import in_words
from slurm_colloc.core.value_types import read_as
from slurm_colloc.facts.run_rows import past_runs
from slurm_colloc.feedback.waits import measured_waits, write_waits
from slurm_colloc.placement.choose import place
from slurm_colloc.placement.waits import (
    MOST_AGE_S,
    SPAN_S,
    QueueEstimate,
    Wait,
    Waits,
    to_json,
    waits_path,
)
from slurm_colloc.slurm.free_gpus import Free
from slurm_colloc.store.store import Store
from slurm_colloc.submit import slurm_answers as looked_up
from tests.unit.made import HOUR, MIG_POOL, MPS_POOL, footprint, request, run, site
from tests.unit.programs import colloc
from tests.unit.stored import stored

WHOLE = Pool("w", "w1", ("gpu",), "h100", MIG_POOL.gpu_model, gpus_per_node=2, gpu_mem_mib=80000, sm_count=132)
SLICES = MIG_POOL._replace(partitions=("gpu",))
# Ten hours on a whole GPU; about 1.155 times as long on the smallest slice.
KNOWN = footprint(9000, 4.2759, run_time_s=Quantiles(10.0 * HOUR, 12.0 * HOUR, 15.0 * HOUR))
TYPED = request(gres=(Gres("gpu", "h100", 1),))
SMALL, LARGER, BIG = ("gpu", "gpu:h100_1g.10gb"), ("gpu", "gpu:h100_1g.20gb"), ("gpu", "gpu:h100_3g.40gb")
GPU = ("gpu", "gpu:h100")
SILENT = because("free-unknown", error="'sinfo' did not answer")


def hours(number: float, runs: int = 57) -> Wait:
    return Wait(number * HOUR, 2 * number * HOUR, runs)


class Asked:
    """Answers what is free, and counts how often it was asked."""

    def __init__(self, free: Mapping[tuple[str, str], int] | Reason) -> None:
        self.answer: Free | Reason = free if isinstance(free, Reason) else Free(0.0, free)
        self.times = 0

    def __call__(self) -> Free | Reason:
        self.times += 1
        return self.answer


def placed(
    measured: Mapping[tuple[str, str], Wait],
    free: Mapping[tuple[str, str], int] | Reason | Asked,
    *,
    job: JobRequest = TYPED,
    need: Footprint = KNOWN,
    config: SiteConfig | None = None,
    wanted: bool = True,
) -> Placement:
    asked = free if isinstance(free, Asked) else Asked(free)
    queue_estimate = QueueEstimate(lambda: Waits(0.0, measured), asked, wanted)
    return place(job, need, config or site(WHOLE, SLICES), queue_estimate=queue_estimate)


def test_a_free_slice_is_taken_and_said_to_be_free() -> None:
    found = placed({GPU: hours(3)}, {SMALL: 2, GPU: 0})
    assert found.given == "gpu:h100_1g.10gb:1"
    assert found.reasons[-2:] == (
        because("free-now", option="gpu:h100_1g.10gb:1"),
        because("waited", option="as asked", wait_s=3 * HOUR, runs=57),
    )
    first, whole = found.weighed[0], found.weighed[-1]
    assert first.free_now
    assert first.turnaround_s == pytest.approx(11.55 * HOUR, rel=1e-4)
    assert (whole.option, whole.free_now, whole.turnaround_s) == ("as asked", False, 13 * HOUR)


def test_a_full_slice_is_left_for_a_free_whole_gpu_only_beyond_the_margin() -> None:
    # 11.55 h on the slice: 1.5 times the whole GPU's 10 h are 15 h.
    assert placed({SMALL: hours(3.4)}, {SMALL: 0, GPU: 1}).given == "gpu:h100_1g.10gb:1"
    found = placed({SMALL: hours(3.5)}, {SMALL: 0, GPU: 1})
    assert found.as_asked
    sooner, free, waited = found.reasons
    assert (sooner.code, sooner.params["option"], sooner.params["ends_s"]) == ("ends-sooner", "as asked", 10 * HOUR)
    assert sooner.params["other"] == "gpu:h100_1g.10gb:1"
    assert free == because("free-now", option="as asked")
    assert waited == because("waited", option="gpu:h100_1g.10gb:1", wait_s=3.5 * HOUR, runs=57)
    assert ("gpu:h100_1g.10gb:1", sooner) in found.rejected


def test_another_piece_goes_before_the_whole_gpu() -> None:
    found = placed({SMALL: hours(20)}, {SMALL: 0, LARGER: 1, GPU: 1})
    assert found.given == "gpu:h100_1g.20gb:1"
    [sooner] = [one for one in found.reasons if one.code == "ends-sooner"]
    assert (sooner.params["option"], sooner.params["other"]) == ("gpu:h100_1g.20gb:1", "gpu:h100_1g.10gb:1")
    # Of several the one that ends soonest: here nobody knows of the larger ones but that one was waited for.
    assert placed({SMALL: hours(20), LARGER: hours(5), BIG: hours(1)}, {}).given == "gpu:h100_3g.40gb:1"


@pytest.mark.parametrize(
    ("measured", "free"),
    [
        ({}, {}),
        ({}, SILENT),
        ({GPU: hours(0)}, {}),
        ({GPU: hours(0)}, {GPU: 1}),
        ({SMALL: hours(100)}, {}),
        ({SMALL: hours(100)}, {GPU: 0}),
    ],
)
def test_what_is_not_known_changes_nothing(
    measured: Mapping[tuple[str, str], Wait], free: Mapping[tuple[str, str], int] | Reason
) -> None:
    before = place(TYPED, KNOWN, site(WHOLE, SLICES))
    found = placed(measured, free)
    assert found._replace(weighed=(), reasons=before.reasons) == before


@pytest.mark.parametrize("measured", [{}, {SMALL: hours(100)}])
def test_a_job_of_unknown_run_time_or_wait_does_not_wait_while_something_is_free(
    measured: Mapping[tuple[str, str], Wait],
) -> None:
    need = KNOWN._replace(run_time_s=None)
    for wanted in (True, False):
        assert placed(measured, {SMALL: 0, GPU: 1}, need=need, wanted=wanted).as_asked
        assert placed(measured, {SMALL: 0, LARGER: 1, GPU: 1}, need=need, wanted=wanted).given == "gpu:h100_1g.20gb:1"
        for free in ({SMALL: 1, GPU: 1}, {SMALL: 0, GPU: 0}, {GPU: 1}):
            assert placed(measured, free, need=need, wanted=wanted).given == "gpu:h100_1g.10gb:1"
    assert placed({}, {SMALL: 0, GPU: 1}, wanted=False).as_asked


def test_slurm_is_asked_only_where_the_answer_may_change_the_choice() -> None:
    for measured, times in (({SMALL: hours(3.4)}, 0), ({SMALL: hours(3.5)}, 1), ({}, 1)):
        asked = Asked({SMALL: 0, GPU: 1})
        quiet = placed(measured, asked, wanted=False)
        assert asked.times == times
        assert quiet.given == placed(measured, asked, wanted=True).given


def test_why_it_is_not_known_what_is_free_is_said_to_who_asks() -> None:
    assert placed({GPU: hours(3)}, SILENT).reasons[-1] == SILENT


def test_a_gpu_of_any_type_is_no_whole_gpu_where_slices_are() -> None:
    found = placed({SMALL: hours(100)}, {SMALL: 0, GPU: 1}, job=request())
    assert (found.given, [one.option for one in found.weighed][-1]) == ("gpu:h100_1g.10gb:1", "gpu:h100_3g.40gb:1")
    elsewhere = site(WHOLE, SLICES._replace(partitions=("mig",)))
    gpu = elsewhere.partition[0]._replace(pieces_in=("mig",))
    elsewhere = elsewhere._replace(partition=(gpu, *elsewhere.partition[1:]))
    found = placed({("mig", SMALL[1]): hours(100)}, {("mig", SMALL[1]): 0, GPU: 1}, job=request(), config=elsewhere)
    assert found.as_asked


def test_of_several_partitions_the_first_that_has_one_counts() -> None:
    config = site(WHOLE._replace(partitions=("gpu", "mig")), MIG_POOL)
    job = TYPED._replace(partitions=("gpu", "mig"))
    found = placed({SMALL: hours(9), ("mig", SMALL[1]): hours(2)}, {}, job=job, config=config)
    assert found.weighed[0].waited_median_s == 2 * HOUR


def test_shares_must_be_free_on_one_gpu() -> None:
    config = site(MPS_POOL, mps_daemon="site")
    for left, free in ((12, True), (11, False)):
        found = placed({}, {("gpu", "mps"): left}, config=config)
        assert (found.given, found.weighed[0].free_now) == ("mps:12", free)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (59, "59 s"), (60, "1 min"), (5400, "1.5 h"), (108000, "30 h"), (216000, "2.5 d"), (1e7, "116 d")],
)
def test_durations_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


# --- from the store to csub ---


def test_waits_are_medians_of_a_week_by_partition_and_kind(tmp_path: Path) -> None:
    now_s, day = 10 * 86400, 86400
    waited = [60, 120, 180, 240, 100_000]

    def runs(first: int, gres: Gres, start_s: int = now_s - day, **fields: object) -> list[object]:
        return [
            run(str(first + n), start_s, None, submit_s=start_s - wait, gres=(gres,), **fields)
            for n, wait in enumerate(waited)
        ]

    rows = [
        *runs(0, Gres("gpu", "h100", 1)),
        *runs(10, Gres("gpu", "h100_1g.10gb", 1)),
        *runs(20, Gres("shard", "", 3)),
        *runs(30, Gres("mps", "h100", 30)),
        *runs(40, Gres("gpu", "", 1), partition="old")[:4],  # too few
        *runs(50, Gres("gpu", "", 8), partition="many"),
        *runs(60, Gres("gpu", "", 1), partition="late", start_s=int(now_s - SPAN_S - 10)),
        *runs(70, Gres("gpu", "", 1), partition="other", cluster="d"),
    ]
    store = stored(tmp_path / "store", rows)  # type: ignore[arg-type]
    found = measured_waits(store, "c", float(now_s))
    assert set(found.measured) == {GPU, SMALL, ("gpu", "shard"), ("gpu", "mps")}
    wait = found.measured[GPU]
    assert (wait.median_s, wait.runs) == (180.0, 5)
    assert 240 < wait.p90_s < 100_000
    written = write_waits(store, "c", str(tmp_path / "state"), float(now_s))
    path = Path(waits_path(str(tmp_path / "state")))
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o644, 0o711)
    assert read_as(Waits, json.loads(path.read_text())) == written == found


ROWS = (b"7", b"[7]", b'["p", "gpu"]', b'[["p", 1], [1, 1, 1]]', b'[["p", "gpu"], [1, "x", 1]]')
BROKEN = [b"", b"[]", b"{}", *(b"[1.0, [%s]]" % row for row in ROWS), b"[" * 100_000, b"\xff"]


@pytest.mark.parametrize("content", BROKEN)
def test_a_broken_file_of_waits_is_none(tmp_path: Path, content: bytes) -> None:
    path = Path(waits_path(str(tmp_path)))
    path.parent.mkdir()
    path.write_bytes(content)
    found = looked_up.queue_estimate(at(tmp_path), lambda: Free(0.0, {}), wanted=False)
    assert found is not None
    assert found.waits() == Waits(0.0, {})


def at(folder: Path) -> SiteConfig:
    return site(WHOLE, SLICES)._replace(paths=Paths(state=str(folder), decisions=str(folder / "spool")))


def test_old_waits_count_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(waits_path(str(tmp_path)))
    path.parent.mkdir()
    waits = Waits(1000.0, {GPU: hours(3)})
    path.write_text(json.dumps(to_json(waits)))
    found = looked_up.queue_estimate(at(tmp_path), lambda: Free(0.0, {}), wanted=False)
    assert found is not None
    for now_s, expected in ((1000.0 + MOST_AGE_S, waits), (1001.0 + MOST_AGE_S, Waits(0.0, {}))):
        monkeypatch.setattr(looked_up, "now", lambda now_s=now_s: now_s)
        assert found.waits() == expected
    off = at(tmp_path)._replace(sharing=at(tmp_path).sharing._replace(weigh_waits=False))
    assert looked_up.queue_estimate(off, lambda: Free(0.0, {}), wanted=True) is None


@pytest.mark.parametrize("fails", [False, True])
def test_slurm_is_asked_once_in_twenty_seconds_whether_it_answers_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    asked: list[float] = []

    def ask() -> Free:
        asked.append(clock[0])
        if fails:
            raise ProcessError("'sinfo' did not answer")
        return Free(clock[0], {GPU: len(asked)})

    clock = [5000.0]
    monkeypatch.setattr(looked_up, "now", lambda: clock[0])
    found = looked_up.queue_estimate(at(tmp_path), ask, wanted=False)
    assert found is not None
    first = found.free()
    clock[0] += 19
    assert found.free() == first
    assert first == (SILENT if fails else Free(5000.0, {GPU: 1}))
    clock[0] += 2
    found.free()
    assert asked == [5000.0, 5021.0]


def test_what_was_given_is_free_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looked_up, "now", lambda: 5000.0)
    config = at(tmp_path)
    found = looked_up.queue_estimate(config, lambda: Free(5000.0, {GPU: 2, SMALL: 1, ("gpu", "mps"): 50}), wanted=False)
    assert found is not None
    found.free()
    for gres, tasks in ((Gres("gpu", "h100_1g.10gb", 1), 46), (Gres("gpu", "h100", 1), 1), (Gres("mps", "", 20), 1)):
        looked_up.take_off(config, ("gpu",), gres, tasks)
    assert found.free() == Free(5000.0, {GPU: 1, SMALL: 0, ("gpu", "mps"): 50})


def test_an_ingest_leaves_the_waits_where_csub_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 800_000
    store = stored(tmp_path / "store", [run(str(n), now_s - n, None, submit_s=now_s - n - 60) for n in range(7)])
    monkeypatch.setattr(ingest, "now", lambda: float(now_s))
    monkeypatch.setattr(looked_up, "now", lambda: float(now_s))
    ingest._history(store, at(tmp_path))
    found = looked_up.queue_estimate(at(tmp_path), lambda: Free(0.0, {}), wanted=False)
    assert found is not None
    assert found.waits() == Waits(float(now_s), {GPU: Wait(60.0, 60.0, 7)})


def array(tasks: int, typed: bool = True) -> JobRequest:
    return request(gres=(Gres("gpu", "h100" if typed else "", 1),), array=True, array_at_once=tasks)


def test_an_array_is_not_put_on_a_piece_of_which_there_are_too_few() -> None:
    """46 tasks on one slice after each other took 364 s on a real cluster, where sbatch's took 23 s."""
    one_slice = SLICES._replace(nodes="m1", slice=tuple(part._replace(quantity=1) for part in SLICES.slice))
    eight = WHOLE._replace(nodes="w[1-4]")
    few, unknown = site(eight, one_slice), KNOWN._replace(run_time_s=None)
    free = {SMALL: 1, GPU: 8}
    assert placed({}, free, job=TYPED, config=few).gres is not None
    found = placed({}, SILENT, job=array(46), need=unknown, config=few)
    assert [(one.code, one.params["rounds"], one.params["other_rounds"]) for one in found.reasons[:1]] == [
        ("array-rounds", 46, 6)
    ]
    for need in (KNOWN, unknown):
        for typed in (True, False):
            assert placed({}, free, job=array(46, typed), need=need, config=few).gres is None
    # As many slices as GPUs, and the smaller piece leaves more to others.
    many = site(WHOLE, SLICES)
    for need in (KNOWN, unknown):
        assert placed({}, {SMALL: 7, GPU: 2}, job=array(6), need=need, config=many).gres is not None


def test_an_array_takes_a_quicker_piece_where_nothing_is_known_of_waits_and_of_what_is_free() -> None:
    """Both would take as many rounds."""
    equal = SLICES._replace(slice=tuple(part._replace(quantity=2) for part in SLICES.slice))
    need = footprint(9000, 20.0, run_time_s=None)
    slow = site(WHOLE._replace(gpus_per_node=1), equal, max_slowdown=9.0)
    found = placed({}, SILENT, job=array(46), need=need, config=slow)
    assert (found.gres and found.gres.type, found.rejected[-1].reason.code) == ("h100_3g.40gb", "array-rounds")


def test_slices_are_free_for_an_array_where_all_of_its_tasks_have_one() -> None:
    found = placed({SMALL: hours(1)}, {SMALL: 3, GPU: 2}, job=array(7))
    assert [one.free_now for one in found.weighed if one.option.startswith("gpu:h100_1g.10gb")] == [False]


def test_a_job_waits_from_when_it_could_start(tmp_path: Path) -> None:
    """After its dependencies, its --begin and its hold: an Eligible that no such moment can be is none."""
    names = "JobID|Cluster|User|Partition|State|Submit|Eligible|Start|End|AllocTRES|NodeList"
    rows = [
        f"{number}|c|ann|gpu|COMPLETED|100|{eligible}|500|900|gres/gpu=1|g1"
        for number, eligible in enumerate(("400", "Unknown", "", "90", "600", "2026-01-01T00:00:00"))
    ]
    text, store = tmp_path / "sacct.txt", tmp_path / "store"
    text.write_text("\n".join([names, *rows]) + "\n")
    assert colloc("ingest", "--store", str(store), "--sacct-file", str(text)) == 0
    found = {row["job_id"]: row["submit_s"] for row in past_runs(Store(str(store)), "c", 0.0, 1e10)}
    assert found == {"0": 400, **dict.fromkeys("12345", 100)}


def test_the_planner_knows_of_which_array_a_run_is_a_task(tmp_path: Path) -> None:
    """A requeued task is none of those with which it was submitted."""
    names = "JobID|JobIDRaw|Cluster|User|Partition|State|Submit|Eligible|Start|End|AllocTRES|NodeList"
    ids = ("9_0|11|c|ann|gpu|COMPLETED|100", "9_1|12|c|ann|gpu|COMPLETED|100", "9_1|12|c|ann|gpu|COMPLETED|950")
    rows = [f"{row}|{at_s}|{at_s}|{at_s + 400}|gres/gpu=1|g1" for at_s, row in zip((100, 500, 960), ids, strict=True)]
    text, store = tmp_path / "sacct.txt", tmp_path / "store"
    text.write_text("\n".join([names, *rows, "13|13|c|ann|gpu|COMPLETED|1|1|2|9|gres/gpu=1|g1"]) + "\n")
    assert colloc("ingest", "--store", str(store), "--sacct-file", str(text)) == 0
    found = [(row["array"], row["submit_s"]) for row in past_runs(Store(str(store)), "c", 0.0, 1e10)]
    assert found == [("", 1), ("9@100", 100), ("9@100", 500), ("9@950", 960)]

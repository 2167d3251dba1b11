# SPDX-License-Identifier: Apache-2.0
from collections.abc import Mapping
from pathlib import Path

import pytest

from slurm_colloc.core.config import Paths, Pool, SiteConfig
from slurm_colloc.core.errors import ProcessError
from slurm_colloc.core.model import Footprint, Gres, JobRequest, Placement, Quantiles, Reason, because
from slurm_colloc.core.units import in_words
from slurm_colloc.placement.choose import place
from slurm_colloc.placement.free_now import FreeNow
from slurm_colloc.slurm.free_gpus import Free
from slurm_colloc.submit import slurm_answers as looked_up
from tests.unit.made import HOUR, MIG_POOL, MPS_POOL, footprint, request, site

WHOLE = Pool("w", "w1", ("gpu",), "h100", MIG_POOL.gpu_model, gpus_per_node=2, gpu_mem_mib=80000, sm_count=132)
SLICES = MIG_POOL._replace(partitions=("gpu",))
# Ten hours on a whole GPU; about 1.155 times as long on the smallest slice.
KNOWN = footprint(9000, 4.2759, run_time_s=Quantiles(10.0 * HOUR, 12.0 * HOUR, 15.0 * HOUR))
TYPED = request(gres=(Gres("gpu", "h100", 1),))
SMALL, LARGER, BIG = ("gpu", "gpu:h100_1g.10gb"), ("gpu", "gpu:h100_1g.20gb"), ("gpu", "gpu:h100_3g.40gb")
GPU = ("gpu", "gpu:h100")
SILENT = because("free-unknown", error="'sinfo' did not answer")


class Asked:
    """Answers what is free, and counts how often it was asked."""

    def __init__(self, free: Mapping[tuple[str, str], int] | Reason) -> None:
        self.answer: Free | Reason = free if isinstance(free, Reason) else Free(0.0, free)
        self.times = 0

    def __call__(self) -> Free | Reason:
        self.times += 1
        return self.answer


def placed(
    free: Mapping[tuple[str, str], int] | Reason | Asked,
    *,
    job: JobRequest = TYPED,
    need: Footprint = KNOWN,
    config: SiteConfig | None = None,
    wanted: bool = True,
) -> Placement:
    asked = free if isinstance(free, Asked) else Asked(free)
    return place(job, need, config or site(WHOLE, SLICES), free_now=FreeNow(asked, wanted))


def test_a_free_slice_is_taken_and_said_to_be_free() -> None:
    found = placed({SMALL: 2, GPU: 0})
    assert found.given == "gpu:h100_1g.10gb:1"
    assert found.reasons[-2:] == (
        because("free-now", option="gpu:h100_1g.10gb:1"),
        because("not-free", option="as asked"),
    )
    first, whole = found.weighed[0], found.weighed[-1]
    assert first.free_now
    assert first.slowdown == pytest.approx(1.155, rel=1e-4)
    assert (whole.option, whole.free_now, whole.slowdown) == ("as asked", False, 1.0)


def test_a_full_slice_is_left_for_a_free_whole_gpu() -> None:
    found = placed({SMALL: 0, GPU: 1})
    assert found.as_asked
    free, full = because("free-now", option="as asked"), because("not-free", option="gpu:h100_1g.10gb:1")
    assert found.reasons == (free, full)
    assert ("gpu:h100_1g.10gb:1", free) in found.rejected


def test_another_piece_goes_before_the_whole_gpu() -> None:
    found = placed({SMALL: 0, LARGER: 1, GPU: 1})
    assert found.given == "gpu:h100_1g.20gb:1"
    assert ("gpu:h100_1g.10gb:1", because("free-now", option="gpu:h100_1g.20gb:1")) in found.rejected


@pytest.mark.parametrize("free", [{}, SILENT, {GPU: 1}, {GPU: 0}, {SMALL: 0}, {SMALL: 0, LARGER: 0, GPU: 0}])
def test_what_is_not_known_or_not_free_either_changes_nothing(free: Mapping[tuple[str, str], int] | Reason) -> None:
    before = place(TYPED, KNOWN, site(WHOLE, SLICES))
    found = placed(free)
    assert found._replace(weighed=(), reasons=before.reasons) == before


@pytest.mark.parametrize("need", [KNOWN, KNOWN._replace(run_time_s=None)])
@pytest.mark.parametrize("wanted", [True, False])
def test_a_job_does_not_wait_while_something_is_free(need: Footprint, wanted: bool) -> None:
    assert placed({SMALL: 0, GPU: 1}, need=need, wanted=wanted).as_asked
    assert placed({SMALL: 0, LARGER: 1, GPU: 1}, need=need, wanted=wanted).given == "gpu:h100_1g.20gb:1"
    for free in ({SMALL: 1, GPU: 1}, {SMALL: 0, GPU: 0}, {GPU: 1}):
        assert placed(free, need=need, wanted=wanted).given == "gpu:h100_1g.10gb:1"


def test_slurm_is_asked_only_where_the_answer_may_change_the_choice() -> None:
    one_slice = site(SLICES._replace(slice=SLICES.slice[:1]))
    for job, config, times in ((TYPED, None, 1), (array(46), None, 0), (TYPED, one_slice, 0)):
        asked = Asked({SMALL: 0, GPU: 1})
        quiet = placed(asked, job=job, config=config, wanted=False)
        assert asked.times == times
        assert quiet.given == placed(asked, job=job, config=config).given


def test_why_it_is_not_known_what_is_free_is_said_to_who_asks() -> None:
    assert placed(SILENT).reasons[-1] == SILENT
    assert SILENT not in placed(SILENT, wanted=False).reasons


def test_a_gpu_of_any_type_is_no_whole_gpu_where_slices_are() -> None:
    found = placed({SMALL: 0, GPU: 1}, job=request())
    assert (found.given, [one.option for one in found.weighed][-1]) == ("gpu:h100_1g.10gb:1", "gpu:h100_3g.40gb:1")
    elsewhere = site(WHOLE, SLICES._replace(partitions=("mig",)))
    gpu = elsewhere.partition[0]._replace(pieces_in=("mig",))
    elsewhere = elsewhere._replace(partition=(gpu, *elsewhere.partition[1:]))
    found = placed({("mig", SMALL[1]): 0, GPU: 1}, job=request(), config=elsewhere)
    assert found.as_asked


def test_of_several_partitions_the_first_that_has_one_counts() -> None:
    config = site(WHOLE._replace(partitions=("gpu", "mig")), MIG_POOL)
    job = TYPED._replace(partitions=("gpu", "mig"))
    found = placed({SMALL: 0, ("mig", SMALL[1]): 1}, job=job, config=config)
    assert found.weighed[0].free_now is True


def test_shares_must_be_free_on_one_gpu() -> None:
    config = site(MPS_POOL, mps_daemon="site")
    for left, free in ((12, True), (11, False)):
        found = placed({("gpu", "mps"): left}, config=config)
        assert (found.given, found.weighed[0].free_now) == ("mps:12", free)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "0 s"), (59, "59 s"), (60, "1 min"), (5400, "1.5 h"), (108000, "30 h"), (216000, "2.5 d"), (1e7, "116 d")],
)
def test_durations_in_words(seconds: float, words: str) -> None:
    assert in_words(seconds) == words


# --- what csub is told ---


def at(folder: Path) -> SiteConfig:
    return site(WHOLE, SLICES)._replace(paths=Paths(state=str(folder), decisions=str(folder / "spool")))


def test_where_the_site_says_so_nobody_is_asked(tmp_path: Path) -> None:
    off = at(tmp_path)._replace(sharing=at(tmp_path).sharing._replace(ask_free=False))
    assert looked_up.free_now(off, lambda: Free(0.0, {}), wanted=True) is None


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
    found = looked_up.free_now(at(tmp_path), ask, wanted=False)
    assert found is not None
    first = found.ask()
    clock[0] += 19
    assert found.ask() == first
    assert first == (SILENT if fails else Free(5000.0, {GPU: 1}))
    clock[0] += 2
    found.ask()
    assert asked == [5000.0, 5021.0]


def test_what_was_given_is_free_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looked_up, "now", lambda: 5000.0)
    config = at(tmp_path)
    found = looked_up.free_now(config, lambda: Free(5000.0, {GPU: 2, SMALL: 1, ("gpu", "mps"): 50}), wanted=False)
    assert found is not None
    found.ask()
    for gres, tasks in ((Gres("gpu", "h100_1g.10gb", 1), 46), (Gres("gpu", "h100", 1), 1), (Gres("mps", "", 20), 1)):
        looked_up.take_off(config, ("gpu",), gres, tasks)
    assert found.ask() == Free(5000.0, {GPU: 1, SMALL: 0, ("gpu", "mps"): 50})


def array(tasks: int, typed: bool = True) -> JobRequest:
    return request(gres=(Gres("gpu", "h100" if typed else "", 1),), array=True, array_at_once=tasks)


def test_an_array_is_not_put_on_a_piece_of_which_there_are_too_few() -> None:
    """46 tasks on one slice after each other took 364 s on a real cluster, where sbatch's took 23 s."""
    one_slice = SLICES._replace(nodes="m1", slice=tuple(part._replace(quantity=1) for part in SLICES.slice))
    eight = WHOLE._replace(nodes="w[1-4]")
    few, unknown = site(eight, one_slice), KNOWN._replace(run_time_s=None)
    free = {SMALL: 1, GPU: 8}
    assert placed(free, job=TYPED, config=few).gres is not None
    found = placed(SILENT, job=array(46), need=unknown, config=few)
    assert [(one.code, one.params["rounds"], one.params["other_rounds"]) for one in found.reasons[:1]] == [
        ("array-rounds", 46, 6)
    ]
    for need in (KNOWN, unknown):
        for typed in (True, False):
            assert placed(free, job=array(46, typed), need=need, config=few).gres is None
    # As many slices as GPUs, and the smaller piece leaves more to others.
    many = site(WHOLE, SLICES)
    for need in (KNOWN, unknown):
        assert placed({SMALL: 7, GPU: 2}, job=array(6), need=need, config=many).gres is not None


def test_an_array_takes_a_quicker_piece() -> None:
    """Both would take as many rounds."""
    equal = SLICES._replace(slice=tuple(part._replace(quantity=2) for part in SLICES.slice))
    need = footprint(9000, 20.0, run_time_s=None)
    slow = site(WHOLE._replace(gpus_per_node=1), equal, max_slowdown=9.0)
    found = placed(SILENT, job=array(46), need=need, config=slow)
    assert (found.gres and found.gres.type, found.rejected[-1].reason.code) == ("h100_3g.40gb", "array-rounds")


def test_slices_are_free_for_an_array_where_all_of_its_tasks_have_one() -> None:
    found = placed({SMALL: 3, GPU: 2}, job=array(7))
    assert [one.free_now for one in found.weighed if one.option.startswith("gpu:h100_1g.10gb")] == [False]

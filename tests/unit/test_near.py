# SPDX-License-Identifier: Apache-2.0
"""The rungs of history: a job's own runs, and those of relatives that differ in numbers."""

from typing import Any

import pytest

from slurm_colloc.core.model import Evidence, Footprint, Reason, because
from slurm_colloc.estimate.calibration import Calibration, Margin
from slurm_colloc.estimate.exact import from_runs
from slurm_colloc.estimate.ladder import estimate
from slurm_colloc.estimate.near import from_relatives
from slurm_colloc.estimate.question import Question
from tests.unit.made import evidence, near

NAMES = ("batch-size", "lr")


def run(job_id: str, peak_mib: float, *values: float, program: str = "p", **fields: object) -> Evidence:
    text = f"fam.{'_'.join(f'{value:g}' for value in values)}~{program}~f"
    return evidence(job_id, int(peak_mib), signature=text, ended_s=float(job_id), **fields)


def asked(*values: float, names: tuple[str, ...] = NAMES) -> Question:
    return Question(signature=f"fam.{'_'.join(f'{value:g}' for value in values)}~p~f", numbers=names)


def found(question: Question) -> Footprint:
    footprint = from_relatives(question)
    assert isinstance(footprint, Footprint), footprint
    return footprint


def q(footprint: Footprint) -> tuple[float, float]:
    assert footprint.gpu_mem_peak_mib
    return footprint.gpu_mem_peak_mib.q50, footprint.gpu_mem_peak_mib.q99


SMALL = (run("1", 2000, 32, 0.1), run("2", 3000, 64, 0.1))
LARGE = (run("1", 20000, 32, 0.1), run("2", 30000, 64, 0.1))


def test_a_larger_job_needs_more_host_memory() -> None:
    fields: dict[str, Any] = {"cpu_cores_q95": 2.0, "host_mem_peak_mib": 4000}
    runs = (run("1", 2000, 32, 0.1, **fields), run("2", 3000, 64, 0.1, **fields))
    within, beyond = (found(asked(batch, 0.1)._replace(relatives=runs)) for batch in (48, 128))
    assert (within.cpu_cores, within.host_mem_mib) == (3, 9512)
    assert (beyond.cpu_cores, beyond.host_mem_mib) == (3, 12512)


def test_of_two_batch_sizes_the_one_counts_that_says_least() -> None:
    """The smaller by what grows in proportion, the larger by what it held."""
    for size, most_mib in ((48, 700 + 19300 * 1.5), (63, 30000), (128, 59300), (16, 20000)):
        answer = found(asked(size, 0.1)._replace(relatives=LARGE))
        assert (answer.rung, answer.evidence_count, answer.run_time_s) == ("near", 2, None)
        assert (answer.margin, answer.expected_mib, answer.confidence) == ("one", near(most_mib), 0.96)
        assert q(answer) == (near(most_mib), near(most_mib + 256))
        assert because("bound-by-one-run", names=("batch-size",)) in answer.provenance


@pytest.mark.parametrize("name", ["image-size", "hidden-dim"])
def test_twice_an_edge_or_a_width_needs_four_times_the_memory_at_most(name: str) -> None:
    runs = (run("1", 2700, 32, 8, sm_active_mean_pct=10.0),)
    larger = found(asked(64, 16, names=(name, "batch-size"))._replace(relatives=runs))
    assert q(larger)[0] == near(700 + 2000 * 8)
    assert larger.sm_active_pct
    assert larger.sm_active_pct.q95 == near(80)
    assert q(found(asked(16, 8, names=(name, "batch-size"))._replace(relatives=runs)))[0] == 2700, "nothing shrinks"


@pytest.mark.parametrize("value", [-1, 0, 1e-300, 1e300, float("inf")])
@pytest.mark.parametrize("name", ["batch-size", "level"])
def test_what_is_no_size_bounds_nothing(value: float, name: str) -> None:
    names = (name, "lr")
    for relatives in (SMALL, SMALL[:1]):
        said = from_relatives(asked(value, 0.1, names=names)._replace(relatives=relatives))
        assert said == because("no-size", name=name, value=f"{value:g}")
    odd = run("3", 30000, value, 0.1)
    assert q(found(asked(48, 0.1, names=names)._replace(relatives=(*SMALL, odd))))[0] == near(2650)
    alone = from_relatives(asked(48, 0.1, names=names)._replace(relatives=(odd, run("4", 9, 1.5 * value, 0.1))))
    assert isinstance(alone, Reason)
    assert alone.code == "numbers-tell-nothing"
    assert q(found(asked(value, 0.1, names=names)._replace(relatives=(odd,))))[0] == 30000


def test_what_sizes_nothing_may_differ() -> None:
    runs = (run("1", 2000, 32, 0.1), run("2", 2100, 32, 0.2))
    same = found(asked(32, 0.5)._replace(relatives=runs))
    assert q(same) == (2100, near(2100 * 1.15))
    edited = found(asked(32, 0.1)._replace(relatives=(run("1", 2000, 32, 0.1, program="older"),)))
    assert q(edited) == (2000, near(2300))


def test_one_run_bounds_another_size() -> None:
    runs = (run("1", 12700, 32, 0.1),)
    larger = found(asked(64, 0.1)._replace(relatives=runs))
    assert q(larger) == (near(24700), near(24956))
    assert (larger.margin, larger.expected_mib, larger.confidence) == ("one", near(24700), 0.96)
    for smaller in (16, 1):
        assert q(found(asked(smaller, 0.1)._replace(relatives=runs))) == (12700, 12956), "nothing shrinks"
    unknown = asked(64, 0.1, names=("argument 1", "lr"))._replace(relatives=runs)
    assert from_relatives(unknown) == because("numbers-tell-nothing", runs=1, names=("argument 1",))


def test_a_run_that_held_little_more_than_a_context_grows_all_the_same() -> None:
    larger = found(asked(320, 0.1)._replace(relatives=(run("1", 650, 32, 0.1),)))
    assert q(larger)[0] == near(650 * 0.9 + 650 * 0.1 * 10)


def test_a_larger_job_keeps_the_gpu_busier() -> None:
    runs = (run("1", 2000, 32, 0.1, sm_active_mean_pct=30.0), run("2", 3000, 64, 0.1, sm_active_mean_pct=40.0))
    active = [found(asked(size, 0.1)._replace(relatives=runs)).sm_active_pct for size in (48, 128, 256)]
    assert [one and one.q95 for one in active] == [40, 80, 100]


def test_the_run_that_says_least_tells_how_busy_a_job_is() -> None:
    names = ("batch-size", "seq-len")
    small = run("1", 20000, 32, 128, sm_active_mean_pct=10.0)
    large = run("2", 60000, 64, 512, sm_active_mean_pct=60.0)
    of = [
        found(asked(*values, names=names)._replace(relatives=(small, large))).sm_active_pct
        for values in ((64, 128), (32, 512), (128, 512))
    ]
    assert [one and one.q95 for one in of] == [20, 40, 100], "of the first two the small run says less, in proportion"
    same = found(asked(32, 128, names=names)._replace(relatives=(small._replace(signature="fam.32_128~q~f"), large)))
    assert same.sm_active_pct
    assert same.sm_active_pct.q95 == 10


def test_two_numbers_that_change_together_bound_by_what_grew_of_both() -> None:
    names = ("batch-size", "seq-len")
    runs = (run("1", 2024, 32, 128), run("2", 9192, 64, 512))
    question = asked(32, 512, names=names)
    assert q(found(question._replace(relatives=runs)))[0] == near(700 + 1324 * 4), "less than the larger run held"
    assert q(found(question._replace(relatives=runs[1:])))[0] == 9192, "the larger run is no smaller in anything"
    both = found(asked(64, 1024, names=names)._replace(relatives=runs[:1]))
    assert q(both)[0] == near(700 + 1324 * 16)


def test_what_a_smaller_run_held_a_larger_one_may_hold() -> None:
    runs = (run("1", 2000, 32, 0.1), run("2", 9000, 48, 0.1), run("3", 3000, 64, 0.1))
    assert q(found(asked(56, 0.1)._replace(relatives=runs)))[0] == near(700 + 8300 * 56 / 48)
    unknown = asked(56, 0.1, names=("argument 1", "lr"))
    said = from_relatives(unknown._replace(relatives=runs))
    assert said == because("numbers-tell-nothing", runs=3, names=("argument 1",))


def test_runs_may_show_that_an_unknown_number_is_a_size() -> None:
    unknown = asked(48, 0.1, names=("argument 1", "lr"))
    assert q(found(unknown._replace(relatives=LARGE)))[0] == near(700 + 19300 * 1.5)
    less = (run("1", 30000, 32, 0.1), run("2", 20000, 64, 0.1))
    said = from_relatives(unknown._replace(relatives=less))
    assert said == because("numbers-tell-nothing", runs=2, names=("argument 1",))


def test_a_run_that_others_belie_bounds_nothing() -> None:
    steep = (run("1", 2600, 16, 0.1), run("2", 8500, 32, 0.1))
    assert q(found(asked(64, 0.1)._replace(relatives=steep)))[0] == near(700 + 7800 * 2)


@pytest.mark.parametrize("state", ["FAILED", "TIMEOUT", "GPU_OOM", "CANCELLED"])
def test_what_did_not_complete_bounds_nothing(state: str) -> None:
    runs = (run("1", 2000, 32, 0.1), run("2", 3000, 64, 0.1), run("3", 100, 128, 0.1, state=state))
    assert q(found(asked(48, 0.1)._replace(relatives=runs)))[0] == near(2650)


def test_what_did_not_suffice_raises_the_answer() -> None:
    out = evidence("9", 4000, state="GPU_OOM")
    assert q(found(asked(48, 0.1)._replace(relatives=SMALL, runs=(out,)))) == (near(2650), 4000)


@pytest.mark.parametrize("state", ["GPU_OOM", "FAILED", "TIMEOUT"])
def test_what_a_smaller_job_held_raises_the_answer_however_it_ended(state: str) -> None:
    runs = (run("1", 5500, 8, 0.1), run("2", 6000, 16, 0.1))
    question = asked(64, 0.1)._replace(relatives=(*runs, run("3", 25000, 32, 0.2, state=state)))
    assert q(estimate(question)) == (near(700 + 5300 * 4), 25000)
    assert because("raised-by-smaller", least_mib=25000, job_id="3") in estimate(question).provenance
    low = q(found(asked(64, 0.1)._replace(relatives=runs)))[1]
    for other in (
        run("3", 25000, 128, 0.1, state=state),
        run("3", 25000, 32, 0.1, state=state, program="edited"),
        run("3", 25000, 32, 0.1, state=state, gpu_model="A100"),
        run("3", 25000, -1, 0.1, state=state),
    ):
        assert q(estimate(question._replace(relatives=(*runs, other))))[1] == low


def test_another_gpu_is_another_measure() -> None:
    runs = (run("1", 2000, 32, 0.1, gpu_model="A100"), run("2", 3000, 64, 0.1))
    assert q(found(asked(48, 0.1)._replace(relatives=runs)))[0] == 3000, "by the model of the newest run alone"


def test_the_ladder_takes_runs_of_the_job_itself_first() -> None:
    relatives = (run("1", 2000, 32, 0.1), run("2", 3000, 64, 0.1))
    question = asked(48, 0.1)._replace(relatives=relatives)
    assert estimate(question).rung == "near"
    assert estimate(question._replace(runs=(run("3", 2400, 48, 0.1),))).rung == "exact"
    assert estimate(question._replace(hint="mem=1G")).rung == "hint"
    unknown = estimate(asked(-1, 0.1)._replace(relatives=relatives))
    assert unknown.gpu_mem_peak_mib is None
    assert unknown.provenance == (because("no-earlier-run"), because("no-size", name="batch-size", value="-1"))


GREEDY = {"gpu_mem_total_mib": 81559, "grew_until_s": 5.0}


def test_a_job_that_only_ever_had_a_share_is_as_busy_as_its_relatives() -> None:
    """Placed on a slice by its relatives, it was submitted as asked from the next time on."""
    asked_for = asked(64, 0.1)
    own = run("3", 3000, 64, 0.1, mode="mig", sm_active_mean_pct=None, sm_active_q95_pct=None)
    alone = estimate(asked_for._replace(runs=[own]))
    assert alone.sm_active_pct is None
    relatives = [run("1", 1500, 16, 0.1), run("2", 2000, 32, 0.1)]
    footprint = estimate(asked_for._replace(runs=[own], relatives=relatives))
    near_one = found(asked_for._replace(relatives=relatives))
    assert (footprint.rung, footprint.gpu_mem_peak_mib) == ("exact", alone.gpu_mem_peak_mib)
    assert footprint.sm_active_pct == near_one.sm_active_pct
    assert because("sm-of-relatives", runs=2) in footprint.provenance
    hinted = estimate(asked_for._replace(hint="mem=4G", runs=[own], relatives=relatives))
    assert hinted.sm_active_pct == near_one.sm_active_pct


def test_what_a_greedy_framework_took_is_not_what_it_needs() -> None:
    for part in (0.75, 0.9, 0.95, 0.99):
        said = from_runs(Question(runs=[evidence("1", int(81559 * part), **GREEDY)]))
        assert isinstance(said, Reason)
        assert said.code == "memory-taken-at-once"
    for peak, fields in ((40_000, GREEDY), (int(81559 * 0.75), {**GREEDY, "grew_until_s": 600.0}), (61_000, {})):
        assert isinstance(from_runs(Question(runs=[evidence("1", peak, **fields)])), Footprint)
    mixed = from_runs(Question(runs=[evidence("1", 5000, **GREEDY), evidence("2", int(81559 * 0.75), **GREEDY)]))
    assert isinstance(mixed, Footprint)
    assert mixed.evidence_count == 1


def test_a_job_that_grew_may_grow_again() -> None:
    grown = from_runs(Question(runs=[evidence("1", 4000), evidence("2", 4000), evidence("3", 5000)]))
    assert isinstance(grown, Footprint)
    assert q(grown)[1] == near(5000 * 1.15 * 1.25)
    assert because("grew", more_pct=25) in grown.provenance
    steady = from_runs(Question(runs=[evidence("1", 4000), evidence("2", 5000), evidence("3", 5010)]))
    assert isinstance(steady, Footprint)
    assert q(steady)[1] == near(5010 * 1.15)


def test_what_completed_on_a_smaller_piece_is_believed_over_what_a_whole_gpu_showed() -> None:
    whole = evidence("1", 23500, gpu_mem_total_mib=81559, ended_s=1.0)
    piece = evidence("2", 9000, gpu_mem_total_mib=9984, mode="mig", ended_s=2.0)
    found = from_runs(Question(runs=[whole, piece]))
    assert isinstance(found, Footprint)
    assert q(found) == (9000, near(9000 * 1.15))
    assert found.sm_active_pct, "which only the whole GPU shows"
    for other in (
        piece._replace(state="GPU_OOM"),
        piece._replace(ended_s=0.5),
        piece._replace(gpu_mem_total_mib=40448),
        piece._replace(gpu_mem_total_mib=None),
    ):
        runs = sorted([whole, other], key=lambda run: run.ended_s)
        more = from_runs(Question(runs=runs))
        assert isinstance(more, Footprint)
        assert q(more)[1] >= 23500 * 1.15
    out = whole._replace(state="GPU_OOM")
    bound = from_runs(Question(runs=[out, piece]))
    assert isinstance(bound, Footprint)
    assert q(bound)[1] == 23500, "what ran out of memory needed it"


def test_margins_of_a_sites_own() -> None:
    own = Calibration({"same": Margin(1.5, 200)})
    answer = from_runs(Question(runs=[evidence("1", 4000)], calibration=own))
    assert isinstance(answer, Footprint)
    assert q(answer)[1] == 6000
    assert because("margin-counted", factor=1.5, floor_mib=0.0, answers=200) in answer.provenance

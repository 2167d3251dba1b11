# SPDX-License-Identifier: Apache-2.0
"""The rungs of history: a job's own runs, and those of relatives that differ in numbers."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.estimate.calibration import Calibration, Margin, conformal
from slurm_colloc.estimate.exact import from_runs
from slurm_colloc.estimate.ladder import estimate
from slurm_colloc.estimate.near import from_relatives
from slurm_colloc.estimate.question import Question
from slurm_colloc.model import Evidence, Footprint
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


def test_a_larger_job_needs_more_host_memory() -> None:
    fields: dict[str, Any] = {"cpu_cores_q95": 2.0, "host_mem_peak_mib": 4000}
    runs = (run("1", 2000, 32, 0.1, **fields), run("2", 3000, 64, 0.1, **fields))
    within, beyond = (found(asked(batch, 0.1)._replace(relatives=runs)) for batch in (48, 128))
    assert (within.cpu_cores, within.host_mem_mib) == (3, 6512)
    assert (beyond.cpu_cores, beyond.host_mem_mib) == (3, 12512)


def test_two_batch_sizes_draw_a_line() -> None:
    runs = (run("1", 2000, 32, 0.1), run("2", 3000, 64, 0.1))
    between = found(asked(48, 0.1)._replace(relatives=runs))
    assert q(between) == (near(2500), near(2500 * 1.16))
    assert (between.rung, between.evidence_count, between.run_time_s) == ("near", 2, None)
    assert "a line over 'batch-size' = 32, 64" in between.provenance
    assert q(found(asked(128, 0.1)._replace(relatives=runs))) == (near(5000), near(5000 * 1.12))
    assert q(found(asked(256, 0.1)._replace(relatives=runs))) == (near(9000), near(9000 * 1.13))
    below = found(asked(16, 0.1)._replace(relatives=runs))
    assert (q(below), below.margin) == ((near(1500), near(1500 * 1.17)), "near-below")
    quarter = found(asked(8, 0.1)._replace(relatives=runs))
    assert q(found(asked(1, 0.1)._replace(relatives=runs))) == q(quarter), "no lower than at a quarter"
    assert "more than 4 times" in str(from_relatives(asked(300, 0.1)._replace(relatives=runs)))


def test_relatives_under_mps_count_for_more_where_nothing_else_is_known() -> None:
    runs = (run("1", 2000, 32, 0.1), run("2", 1500, 32, 0.1, mode="mps"), run("3", 3040, 64, 0.1, mode="mps"))
    between = found(asked(48, 0.1)._replace(relatives=runs))
    assert q(between)[0] == near(3000)
    assert "2 runs (1 of them under MPS" in between.provenance


@pytest.mark.parametrize("value", [-1, 0, 1e-300, 1e300, float("inf")])
@pytest.mark.parametrize("name", ["batch-size", "level"])
def test_what_is_no_size_lies_on_no_line(value: float, name: str) -> None:
    names = (name, "lr")
    runs = (run("1", 2000, 32, 0.1), run("2", 3000, 64, 0.1))
    for relatives in (runs, runs[:1]):
        assert "is no size" in str(from_relatives(asked(value, 0.1, names=names)._replace(relatives=relatives)))
    odd = run("3", 30000, value, 0.1)
    assert q(found(asked(48, 0.1, names=names)._replace(relatives=(*runs, odd))))[0] == near(2500)
    alone = from_relatives(asked(48, 0.1, names=names)._replace(relatives=(odd, run("4", 9, 1.5 * value, 0.1))))
    assert "do not tell" in str(alone)
    assert q(found(asked(value, 0.1, names=names)._replace(relatives=(odd,))))[0] == 30000


def test_what_sizes_nothing_may_differ() -> None:
    runs = (run("1", 2000, 32, 0.1), run("2", 2100, 32, 0.2))
    same = found(asked(32, 0.5)._replace(relatives=runs))
    assert q(same) == (2100, near(2100 * 1.15))
    edited = found(asked(32, 0.1)._replace(relatives=(run("1", 2000, 32, 0.1, program="older"),)))
    assert q(edited) == (2000, near(2300))


def test_one_run_tells_of_another_size_what_is_usual() -> None:
    runs = (run("1", 2700, 32, 0.1),)
    larger = found(asked(64, 0.1)._replace(relatives=runs))
    assert q(larger) == (near(700 + 2000 * (0.35 + 0.65 * 2)), near(4000 * 1.43))
    assert (larger.margin, larger.expected_mib, larger.confidence) == ("near-one", near(4000), 0.98)
    smaller = found(asked(16, 0.1)._replace(relatives=runs))
    assert q(smaller) == (near(700 + 2000 * (0.2 + 0.8 / 2)), near(1900 * 1.52 if 1900 * 1.52 < 2835 else 2835))
    assert q(found(asked(1, 0.1)._replace(relatives=runs)))[1] < 2700
    assert "do not tell" in str(from_relatives(asked(32 * 5, 0.1)._replace(relatives=runs)))
    unknown = asked(64, 0.1, names=("argument 1", "lr"))._replace(relatives=runs)
    assert "with other 'argument 1' do not tell what this one needs" in str(from_relatives(unknown))


def test_a_larger_job_keeps_the_gpu_busier() -> None:
    runs = (run("1", 2000, 32, 0.1, sm_active_q95_pct=30.0), run("2", 3000, 64, 0.1, sm_active_q95_pct=40.0))
    active = [found(asked(size, 0.1)._replace(relatives=runs)).sm_active_pct for size in (48, 128, 256)]
    assert [one and one.q95 for one in active] == [40, 80, 100]


def test_two_numbers_that_change_together_are_not_told_apart_by_two_runs() -> None:
    names = ("batch-size", "seq-len")
    runs = (run("1", 2024, 32, 128), run("2", 9192, 64, 512))
    one = found(asked(32, 512, names=names)._replace(relatives=runs))
    assert "one run of another size" in one.provenance
    assert q(one)[0] == near(700 + 8492 * (0.2 + 0.8 / 2)), "the larger run scaled down, below the smaller one's"
    three = (*runs, run("3", 3048, 64, 128))
    product = found(asked(32, 256, names=names)._replace(relatives=three))
    assert "'batch-size' x 'seq-len'" in product.provenance


def test_runs_that_belie_what_is_known_of_a_number_tell_nothing() -> None:
    runs = (run("1", 2000, 32, 0.1), run("2", 9000, 48, 0.1), run("3", 3000, 64, 0.1))
    assert "do not tell" in str(from_relatives(asked(40, 0.1)._replace(relatives=runs)))


def test_between_two_runs_no_job_needs_more_than_the_larger() -> None:
    runs = (run("1", 2000, 32, 0.1), run("2", 3000, 64, 0.1))
    assert q(found(asked(63, 0.1)._replace(relatives=runs))) == (near(2968.75), near(3000 * 1.05))


def test_memory_that_jumped_between_two_runs_may_have_jumped_anywhere() -> None:
    runs = (run("1", 2600, 16, 0.1), run("2", 8500, 32, 0.1))
    between = found(asked(24, 0.1)._replace(relatives=runs))
    assert (between.margin, q(between)[1]) == ("near-jump", near(8500 * 1.05))
    assert found(asked(8, 0.1)._replace(relatives=runs)).margin == "near-jump"
    assert found(asked(64, 0.1)._replace(relatives=runs)).margin == "near-beyond", (
        "a steep line is drawn on all the same"
    )


def test_what_has_not_grown_yet_may_grow() -> None:
    runs = (run("1", 5600, 16, 0.1), run("2", 5750, 32, 0.1))
    assert "has not yet" in str(from_relatives(asked(64, 0.1)._replace(relatives=runs)))
    assert q(found(asked(24, 0.1)._replace(relatives=runs)))[0] == near(5675)
    little = (run("1", 5600, 16, 0.1), run("2", 6600, 32, 0.1))
    assert found(asked(64, 0.1)._replace(relatives=little)).margin == "near-flat"
    unnamed = asked(64, 0.1, names=("argument 1", "lr"))
    assert q(found(unnamed._replace(relatives=runs))) == (5750, near(5750 * 1.15)), "a number that sizes nothing"


def test_three_runs_show_whether_they_lie_on_a_line() -> None:
    straight = (run("1", 2000, 32, 0.1), run("2", 3000, 64, 0.1), run("3", 5000, 128, 0.1))
    assert found(asked(48, 0.1)._replace(relatives=straight)).margin == "near-straight"
    assert found(asked(16, 0.1)._replace(relatives=straight)).margin == "near-straight-on"
    assert found(asked(256, 0.1)._replace(relatives=straight)).margin == "near-straight-on"
    bent = (*straight[:2], run("3", 9000, 128, 0.1))
    assert {found(asked(size, 0.1)._replace(relatives=bent)).margin for size in (16, 48, 100, 256)} == {"near-bent"}
    assert q(found(asked(96, 0.1)._replace(relatives=bent)))[0] == near(6000), "through the two nearest"


@pytest.mark.parametrize("state", ["FAILED", "TIMEOUT", "GPU_OOM", "CANCELLED"])
def test_what_did_not_complete_is_no_point_of_a_line(state: str) -> None:
    runs = (run("1", 2000, 32, 0.1), run("2", 3000, 64, 0.1), run("3", 100, 128, 0.1, state=state))
    assert q(found(asked(48, 0.1)._replace(relatives=runs)))[0] == near(2500)


def test_what_did_not_suffice_raises_the_answer() -> None:
    runs = (run("1", 2000, 32, 0.1), run("2", 3000, 64, 0.1))
    out = evidence("9", 4000, state="GPU_OOM")
    assert q(found(asked(48, 0.1)._replace(relatives=runs, runs=(out,)))) == (near(2500), 4000)


@pytest.mark.parametrize("state", ["GPU_OOM", "FAILED", "TIMEOUT"])
def test_what_a_smaller_job_held_raises_the_answer_however_it_ended(state: str) -> None:
    runs = (run("1", 5500, 8, 0.1), run("2", 6000, 16, 0.1))
    question = asked(64, 0.1)._replace(relatives=(*runs, run("3", 19968, 32, 0.2, state=state)))
    assert q(estimate(question)) == (near(9000), 19968)
    assert "raised to 19968 MiB: job 3, which was no larger, held so much" in estimate(question).provenance
    low = q(found(asked(64, 0.1)._replace(relatives=runs)))[1]
    for other in (
        run("3", 19968, 128, 0.1, state=state),
        run("3", 19968, 32, 0.1, state=state, program="edited"),
        run("3", 19968, 32, 0.1, state=state, gpu_model="A100"),
        run("3", 19968, -1, 0.1, state=state),
    ):
        assert q(estimate(question._replace(relatives=(*runs, other))))[1] == low


def test_another_gpu_is_another_measure() -> None:
    runs = (run("1", 2000, 32, 0.1, gpu_model="A100"), run("2", 3000, 64, 0.1))
    assert "one run of another size" in found(asked(48, 0.1)._replace(relatives=runs)).provenance


def test_the_ladder_takes_runs_of_the_job_itself_first() -> None:
    relatives = (run("1", 2000, 32, 0.1), run("2", 3000, 64, 0.1))
    question = asked(48, 0.1)._replace(relatives=relatives)
    assert estimate(question).rung == "near"
    assert estimate(question._replace(runs=(run("3", 2400, 48, 0.1),))).rung == "exact"
    assert estimate(question._replace(hint="mem=1G")).rung == "hint"
    unknown = estimate(asked(999, 0.1)._replace(relatives=relatives))
    assert unknown.gpu_mem_peak_mib is None
    assert unknown.provenance.startswith("no earlier run of this job is known; 'batch-size' = 999 is more than")


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
    assert "of 2 runs with other numbers" in footprint.provenance
    hinted = estimate(asked_for._replace(hint="mem=4G", runs=[own], relatives=relatives))
    assert hinted.sm_active_pct == near_one.sm_active_pct


def test_what_a_greedy_framework_took_is_not_what_it_needs() -> None:
    for part in (0.75, 0.9, 0.95, 0.99):
        said = from_runs(Question(runs=[evidence("1", int(81559 * part), **GREEDY)]))
        assert "at once, so that what it needs is not known" in str(said)
    for peak, fields in ((40_000, GREEDY), (int(81559 * 0.75), {**GREEDY, "grew_until_s": 600.0}), (61_000, {})):
        assert isinstance(from_runs(Question(runs=[evidence("1", peak, **fields)])), Footprint)
    mixed = from_runs(Question(runs=[evidence("1", 5000, **GREEDY), evidence("2", int(81559 * 0.75), **GREEDY)]))
    assert isinstance(mixed, Footprint)
    assert mixed.evidence_count == 1


def test_a_job_that_grew_may_grow_again() -> None:
    grown = from_runs(Question(runs=[evidence("1", 4000), evidence("2", 4000), evidence("3", 5000)]))
    assert isinstance(grown, Footprint)
    assert q(grown)[1] == near(5000 * 1.05 * 1.25)
    assert "the newest needed 25% more than any before" in grown.provenance
    steady = from_runs(Question(runs=[evidence("1", 4000), evidence("2", 5000), evidence("3", 5010)]))
    assert isinstance(steady, Footprint)
    assert q(steady)[1] == near(5010 * 1.05)


def test_margins_of_a_sites_own() -> None:
    own = Calibration({"exact-few": Margin(1.5, 200)})
    answer = from_runs(Question(runs=[evidence("1", 4000)], calibration=own))
    assert isinstance(answer, Footprint)
    assert q(answer)[1] == 6000
    assert "margin 1.50 by 200 earlier answers" in answer.provenance
    many = from_runs(Question(runs=[evidence(str(one), 4000) for one in range(3)], calibration=own))
    assert isinstance(many, Footprint)
    assert q(many)[1] == near(4200)


def test_conformal_needs_enough_answers() -> None:
    assert conformal([1.0] * 98) is None
    assert conformal([1.0] * 99) == Margin(1.0, 99)
    assert conformal([*[1.0] * 98, 1.4]) == Margin(1.4, 99)
    assert conformal([*[1.0] * 98, float("inf")]) == Margin(float("inf"), 99)
    assert conformal([*[1.0] * 198, 3.0]) == Margin(1.0, 199)


@given(st.lists(st.floats(0.5, 2.0), min_size=200, max_size=400))
def test_the_conformal_margin_covers_what_it_was_taken_from(ratios: list[float]) -> None:
    margin = conformal(ratios, 0.9)
    assert margin
    assert sum(ratio <= margin.factor for ratio in ratios) >= 0.9 * len(ratios)

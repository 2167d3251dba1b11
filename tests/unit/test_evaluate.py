# SPDX-License-Identifier: Apache-2.0
"""Replaying a table of runs: what counts as what, and that a run never knows of itself."""

import csv
import io
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.cli.colloc.evaluate import evaluate
from slurm_colloc.errors import InputError
from slurm_colloc.estimate.bounds import lower_bound, upper_bound
from slurm_colloc.estimate.replay import MODES, POLICIES, Pieces, Score, replay, scores
from slurm_colloc.estimate.runs_table import COLUMNS, MAY_BE_EMPTY, Table, parse_table
from tests.unit.made import MIG_POOL, near, site

HEAD = ",".join((*COLUMNS, *MAY_BE_EMPTY))
PIECES = Pieces({"": (1000, 2000, 4000, 8000)})


def row(at_s: object, batch: object, peak_mib: object, *, state: str = "COMPLETED", model: str = "A100") -> str:
    return f"{at_s},python train.py --batch-size {batch},{model},{state},{peak_mib},,,"


def table(*rows: str) -> Table:
    return parse_table("\n".join((HEAD, *rows)) + "\n")


def scored(mode: str, found: Table, pieces: Pieces = PIECES) -> dict[tuple[str, str, str], Score]:
    done = replay(MODES[mode](found.rows), pieces)
    return {(one.policy, one.rung, one.known): one for one in scores(done.outcomes)}


# --- bounds ---


def test_bounds_are_those_of_clopper_and_pearson() -> None:
    assert upper_bound(0, 100) == pytest.approx(1 - 0.05 ** (1 / 100))
    assert upper_bound(1, 10) == pytest.approx(0.39416, abs=1e-5)
    assert upper_bound(5, 100) == pytest.approx(0.10225, abs=1e-5)
    assert lower_bound(9, 10) == pytest.approx(1 - 0.39416, abs=1e-5)
    assert (upper_bound(0, 0), lower_bound(0, 0), upper_bound(7, 7)) == (1.0, 0.0, 1.0)
    with pytest.raises(ValueError, match="no share"):
        upper_bound(3, 2)


@given(st.integers(1, 20_000), st.data())
def test_a_bound_lies_beyond_the_rate_and_grows_with_it(of: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(0, of - 1))
    assert count / of < upper_bound(count, of) < upper_bound(count + 1, of) <= 1
    assert lower_bound(count, of) <= count / of


# --- the table ---


def test_rows_that_cannot_be_used_are_counted_by_reason() -> None:
    found = table(
        row(1, 8, 900),
        row(2, 8, ""),
        row(3, 8, "nan"),
        row(4, 8, -1),
        row(5, 8, "much"),
        row("", 8, 900),
        row(6, 8, 0),
        row(7, 8, "", state="GPU_OOM"),
        row(8, 8, 900, model=""),
        row(9, 8, 900, state=""),
        "1,2",
        row(10, 8, "inf"),
    )
    assert (found.rows_in, len(found.rows), sum(found.rejected.values())) == (12, 1, 11)
    assert found.rejected == {
        "no peak_mib of a run that completed": 2,
        "peak_mib is NaN, negative or beyond all bounds": 3,
        "peak_mib is no number": 1,
        "no at_s": 1,
        "no peak_mib of a run that did not complete": 1,
        "no gpu_model": 1,
        "no state": 1,
        "not as many values as the header has names": 1,
    }


def test_a_clock_that_goes_back_is_counted_and_the_rows_are_put_in_order() -> None:
    found = table(row(5, 8, 900), row(3, 16, 900), row(9, 32, 900))
    assert (found.clock_back, [one.run.ended_s for one in found.rows]) == (1, [3, 5, 9])


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (HEAD.replace("peak_mib", "peak_mb", 1), "column 'peak_mb' is not known; the nearest that is: 'peak_mib'"),
        (HEAD.replace(",allocator_peak_mib", ""), "lacks the column 'allocator_peak_mib'"),
        (f"{HEAD},at_s", "names a column twice"),
        ("", "lacks the column 'at_s'"),
    ],
)
def test_a_header_that_is_not_understood_is_an_error(header: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        parse_table(f"{header}\n")


@given(st.text(max_size=200))
def test_any_text_is_a_table_or_an_error_of_ours(text: str) -> None:
    with suppress(InputError):
        found = parse_table(f"{HEAD}\n{text}")
        assert found.rows_in == len(found.rows) + sum(found.rejected.values())


# --- the replay ---


def test_a_run_knows_only_what_ended_before_it() -> None:
    """Three batch sizes on a line: nothing is known of the first, one run of the second, a line of the third."""
    of = scored("history", table(row(1, 8, 900), row(2, 16, 1100), row(3, 32, 1500)))
    ladder = of["ladder", "", ""]
    assert (ladder.placements, ladder.answered, ladder.abstained, ladder.configurations) == (3, 2, 1, 3)
    assert of["ladder", "near", ""].answered == 2
    assert (of["exact", "", ""].answered, of["exact", "", ""].median_error) == (0, None)
    assert of["whole GPU always", "", ""]._replace(configurations=0) == Score(
        "whole GPU always", "", "", 3, 0, 3, 0, 0, 0, 0, 3, 24000, 5000, None, None, 0, 0
    )


def test_runs_of_the_same_moment_do_not_know_each_other() -> None:
    assert scored("history", table(row(1, 8, 900), row(1, 8, 900)))["ladder", "", ""].answered == 0


def test_what_came_out_smaller_is_out_of_memory_and_what_came_out_larger_too_big() -> None:
    of = scored("history", table(row(1, 8, 900), row(2, 8, 1500), row(3, 8, 1500), row(4, 8, 950), row(5, 8, 1900)))
    exact = of["exact", "", ""]
    # 900 x 1.15 gives 2000 for 1500, and 1500 x 1.15 for 1900: their piece, though under-estimated.
    assert (exact.answered, exact.underestimates, exact.out_of_memory) == (4, 2, 0)
    assert (exact.exact, exact.too_big) == (2, 2), "a job that grew gets as much again"
    small = scored("history", table(row(1, 8, 800), row(2, 8, 1500)))["exact", "", ""]
    assert (small.underestimates, small.out_of_memory, small.exact, small.allocated_mib) == (1, 1, 0, 1000)


def test_what_did_not_complete_is_a_bound_and_never_the_truth() -> None:
    found = table(row(1, 8, 900), row(2, 8, 3000, state="GPU_OOM"), row(3, 8, 3500))
    of = scored("history", found)
    exact = of["exact", "", ""]
    assert (exact.placements, exact.answered) == (2, 1), "the run that failed is not placed"
    assert (exact.out_of_memory, exact.exact) == (0, 1), "but raises what the next one gets"
    assert exact.median_error == near(1 - 900 / 3500)


def test_what_was_measured_on_another_gpu_is_no_answer() -> None:
    found = table(row(1, 8, 900, model="H100"), row(2, 8, 900), row(3, 8, 900))
    assert scored("history", found)["ladder", "", ""].answered == 1


def test_leaving_a_configuration_out_leaves_its_repeats_out_too() -> None:
    found = table(row(1, 8, 900), row(2, 8, 900), row(3, 16, 1100), row(4, 32, 1500))
    of = scored("leave-one-out", found)
    # Of 2 + 1 + 1 runs, each of three configurations has two others: one of them, the pair, or all.
    assert {known: of["ladder", "", known].placements for known in ("1 other", "2 other", "all others")} == {
        "1 other": 8,
        "2 other": 4,
        "all others": 4,
    }
    assert all(of["exact", "", known].answered == 0 for known in ("1 other", "2 other", "all others"))
    assert of["near", "", "all others"].median_error == near(0)


def test_repeats_know_the_other_runs_of_the_same_configuration() -> None:
    of = scored("repeats", table(row(1, 8, 900), row(2, 8, 910), row(3, 8, 890), row(4, 16, 1100)))
    assert {key[2]: one.placements for key, one in of.items() if key[:2] == ("exact", "")} == {
        "1 repeat": 6,
        "2 repeat": 3,
        "all repeats": 3,
    }
    assert of["exact", "", "2 repeat"].out_of_memory == 0


def test_a_family_of_many_sizes_is_replayed_in_bounded_time() -> None:
    found = table(*(row(number, number, 500 + number) for number in range(1, 61)))
    of = scored("leave-one-out", found)
    assert of["ladder", "", "2 other"].placements <= 60 * 60


def test_pieces_go_by_the_gpu_model_and_keep_their_headroom() -> None:
    found = table(row(1, 8, 900), row(2, 8, 900), row(3, 8, 900, model="B"), row(4, 8, 9000), row(5, 8, 900))
    done = replay(MODES["history"](found.rows), Pieces({"A100": (1000, 2000, 8000)}, headroom_mib=100))
    assert done.not_placed == {"a GPU model of which no piece is known": 1, "larger than the whole GPU": 1}
    exact = [one for one in done.outcomes if one.policy == "exact" and one.chosen_mib]
    assert [one.chosen_mib for one in exact] == [2000, 8000], "900 x 1.15 + 100 is more than 1000"


@pytest.mark.parametrize("sizes", [{}, {"": (0, 5)}])
def test_no_pieces_is_an_error(sizes: dict[str, Sequence[int]]) -> None:
    with pytest.raises(InputError, match="above 0"):
        replay([], Pieces(sizes))


# --- the command ---


@pytest.fixture
def path(tmp_path: Path) -> str:
    made = tmp_path / "table.csv"
    rows = [row(number, batch, 500 + 20 * batch) for number, batch in enumerate((8, 16, 32, 64, 8, 16))]
    made.write_text("\n".join((HEAD, *rows, row(9, 8, ""))) + "\n")
    return str(made)


def test_the_table_shows_each_policy_with_its_bounds(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    evaluate(path, slices="1000,2000,4000,8000", mode="history")
    text = capsys.readouterr().out
    assert all(f"  {policy}  " in text for policy in POLICIES)
    assert "placed by memory alone" in text
    assert "7 rows in, 6 used, 1 rejected (no peak_mib of a run that completed: 1); 0 of those used did not" in text
    assert "0.0 % (<= 77.6)" in text, "two placements without a failure say little"


def test_json_and_csv_hold_the_same_figures(path: str, tmp_path: Path) -> None:
    made = [tmp_path / "out.json", tmp_path / "out.csv"]
    for form, out in zip(("json", "csv"), made, strict=True):
        evaluate(path, slices="1000,2000", mode="leave-one-out", form=form, output=str(out))
    shown = json.loads(made[0].read_text())
    rows = list(csv.DictReader(io.StringIO(made[1].read_text())))
    assert [one["out_of_memory"] for one in shown["scores"]] == [int(one["out_of_memory"]) for one in rows]
    assert all(one["exact_lower"] <= (one["exact_rate"] or 1) <= one["exact_upper"] for one in shown["scores"])
    assert (shown["schema"], shown["rejected"]) == (1, {"no peak_mib of a run that completed": 1})


def test_without_slices_the_sites_pools_say_what_there_is(
    path: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "slurm_colloc.cli.colloc.evaluate.site_or_none",
        lambda: site(MIG_POOL._replace(gpu_model="A100"), headroom_mib=256),
    )
    evaluate(path)
    assert "A100: 9984, 20090, 40448, 81559 MiB; 256 MiB of each are kept free" in capsys.readouterr().out
    monkeypatch.setattr("slurm_colloc.cli.colloc.evaluate.site_or_none", site)
    with pytest.raises(InputError, match=r"of no pool .* give --slices"):
        evaluate(path)
    monkeypatch.setattr("slurm_colloc.cli.colloc.evaluate.site_or_none", lambda: None)
    with pytest.raises(InputError, match=r"no site.toml .* give --slices"):
        evaluate(path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"slices": "5G"}, "is not MiB by comma"),
        ({"slices": "0"}, "is not MiB by comma"),
        ({"mode": "random"}, "is not one of history, leave-one-out, repeats"),
        ({"form": "html"}, "is not one of text, json, csv"),
        ({"slices": "10"}, r"larger than the whole GPU: 6"),
    ],
)
def test_what_cannot_be_evaluated_is_an_error(path: str, options: dict[str, str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        evaluate(path, **{"slices": "1000", **options})
    with pytest.raises(InputError, match="cannot be read"):
        evaluate(f"{path}.none", slices="1000")

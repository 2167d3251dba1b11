# SPDX-License-Identifier: Apache-2.0
"""The measured set of neighbours: what is planned, and what is recorded of it."""

from collections import Counter
from pathlib import Path

import pytest

from tests.gpu import neighbours
from tests.gpu.footprints import read_table

TABLE = Path(__file__).parents[1] / "gpu" / "neighbours_h200.csv"


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str]]:
    return read_table(TABLE, neighbours.COLUMNS)


def test_each_part_is_recorded_and_each_row_counted(rows: list[dict[str, str]]) -> None:
    assert [neighbours.missing(rows, part) for part in ("alone1", "alone2", "limited", "mixed")] == [[]] * 4
    assert Counter(row["part"] for row in rows) == {"alone": 48, "limited": 24, "mixed": 121, "drift": 35}
    assert {row["state"] for row in rows} == {"COMPLETED"}


def test_what_stopped_is_begun_where_it_stopped(rows: list[dict[str, str]]) -> None:
    kept = [row for row in rows if row["part"] != "mixed" or row["run"] not in ("3", "35")]
    assert [run.run for run in neighbours.missing(kept, "mixed")] == ["3", "35"]
    failed = [{**row, "state": "SILENT"} if row["program"] == "waves" else row for row in rows]
    assert [run.programs for run in neighbours.missing(failed, "alone2")] == [("waves",)]


def test_mixes_fill_the_shares_and_no_two_programs_have_the_same_cores(rows: list[dict[str, str]]) -> None:
    units = neighbours.shares(rows)
    planned = neighbours.mixes(units)
    assert len({frozenset(run.programs) for run in planned}) == 35
    assert Counter(len(run.programs) for run in planned) == {2: 9, 3: 9, 4: 9, 5: 8}
    for run in planned:
        assert 80 <= sum(units[name] for name in run.programs) <= 100
        assert len({neighbours.home(name, 8) for name in run.programs}) == len(run.programs)
    # What keeps 77 % of the SMs busy counts for 64 of 80; what would need more than seven eighths gets no share.
    assert units["spins"] == 80
    busier = [{**row, "sm_active_q95_pct": "84"} if row["program"] == "spins" else row for row in rows]
    assert "spins" not in neighbours.shares(busier)


def test_slowdowns_are_against_the_mean_alone(rows: list[dict[str, str]]) -> None:
    assert [row["slowdown"] for row in rows] == [row["slowdown"] for row in neighbours.with_slowdowns(rows)]
    alone = [float(row["steps_per_s"]) for row in rows if row["part"] == "alone" and row["program"] == "decoding"]
    (beside,) = (row for row in rows if row["program"] == "decoding" and row["beside"] == "waves")
    assert float(beside["slowdown"]) == pytest.approx(sum(alone) / 2 / float(beside["steps_per_s"]), abs=1e-4)

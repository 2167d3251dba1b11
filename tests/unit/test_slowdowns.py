# SPDX-License-Identifier: Apache-2.0
"""What tests/gpu/slowdowns.py plans, and the tables that it measured."""

import csv
import shlex
from pathlib import Path

import pytest

from tests.gpu import slowdowns
from tests.gpu.footprint_job import parse
from tests.gpu.footprints import read_table

TABLES = sorted(Path(slowdowns.__file__).parent.glob("slowdowns_*.csv"))


def test_the_plan_holds_every_kind_of_job() -> None:
    jobs = [parse(shlex.split(command)[2:]) for command in slowdowns.plan()]
    assert len({*slowdowns.plan()}) == len(jobs) >= 60
    assert len({job.model for job in jobs}) >= 20
    assert {job.task for job in jobs} == {"train", "infer", "generate"}
    assert {job.loader for job in jobs if job.host_ms} == {"serial", "ahead"}
    assert {job.dtype for job in jobs} == {"fp32", "bf16"}
    assert {job.library for job in jobs[:12]} == {"torchvision", "transformers", "own"}


def _row(command: str, limit_pct: int, **more: object) -> dict[str, str]:
    row = {"command": command, "limit_pct": limit_pct, "state": "COMPLETED", "gr_active_pct": 20.0, "steps_per_s": 1.0}
    return {name: str(value) for name, value in (row | more).items()}


def test_what_is_there_or_failed_is_not_run_again() -> None:
    rows = [_row("a", limit, gr_active_pct=99.0) for limit in (100, 70)] + [_row("b", 100, state="GPU_OOM")]
    assert slowdowns.missing(["a", "b", "c"], rows) == [("a", [46, 25, 13]), ("c", [100, 70, 46, 25, 13])]


def test_jobs_that_wait_for_their_host_are_measured_three_times_and_the_fastest_row_counts() -> None:
    rows = [_row("a", limit, steps_per_s=rate) for limit in slowdowns.LIMITS_PCT for rate in (5.0, 6.0)]
    assert slowdowns.missing(["b", "a"], rows) == [("b", [100, 70, 46, 25, 13]), ("a", [100, 70, 46, 25, 13])]
    assert {row["steps_per_s"] for row in slowdowns.best(rows)["a"].values()} == {"6.0"}


def test_rows_are_appended(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    slowdowns.add(table, [{"command": "a", "limit_pct": 100, "state": "COMPLETED", "steps_per_s": 1.23456789}])
    slowdowns.add(table, [{"command": "a", "limit_pct": 70, "state": "FAILED"}])
    rows = read_table(table, slowdowns.COLUMNS)
    assert [(row["limit_pct"], row["steps_per_s"]) for row in rows] == [("100", "1.23457"), ("70", "")]


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_a_measured_table_has_each_point_of_its_jobs(path: Path) -> None:
    with path.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    found = slowdowns.best(rows)
    assert {*found} <= {*slowdowns.plan()}
    assert all({*points} == {*slowdowns.LIMITS_PCT} for points in found.values())
    assert {row["state"] for row in rows} == {"COMPLETED"}
    assert all(float(row["steps_per_s"]) > 0 and float(row["sm_active_pct"]) > 0 for row in rows)
    assert {(int(row["limit_pct"]), int(row["sm_count"])) for row in rows} == {
        *((100, 132), (70, 92), (46, 60), (25, 32), (13, 16))
    }

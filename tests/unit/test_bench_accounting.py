# SPDX-License-Identifier: Apache-2.0
"""The benchmark of accounting, at a size at which it takes seconds: what it asks for, prints and holds true."""

import pytest

from tests import bench_accounting
from tests.fakes.sacct_rows import Made, jobs, truth, window

SINCE_S, UNTIL_S = window(1_800_000_000)


def test_the_truth_is_clipped_and_knows_parts_of_gpus() -> None:
    (job,) = jobs(1, SINCE_S, UNTIL_S)
    slices = job._replace(devices=1, parts=4)
    made: list[Made] = [
        slices._replace(start_s=SINCE_S - 3600, end_s=SINCE_S + 7 * 3600),
        slices._replace(start_s=UNTIL_S - 7 * 3600, end_s=None),
        slices._replace(start_s=None, end_s=SINCE_S + 3600),
        slices._replace(start_s=UNTIL_S, end_s=UNTIL_S + 60),
    ]
    assert truth(made, SINCE_S, UNTIL_S) == (4, 14.0, 2.0)


def test_colloc_finds_the_truth_over_rows_and_over_samples(capsys: pytest.CaptureFixture[str]) -> None:
    bench_accounting.main(
        ["--sizes", "300,600", "--rounds", "1", "--programs", "plain split-and-sum,colloc", "--samples", "20000"]
    )
    printed = capsys.readouterr().out
    assert printed.count("(100.00 %)") == 4
    assert "GPU-hours as written" in printed

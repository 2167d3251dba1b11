# SPDX-License-Identifier: Apache-2.0
"""What others measured on real MIG slices (tests/recorded/mig-slices) is whole, and what it says of slowdowns holds."""

import csv

from tests.unit.made import RECORDED

ACTIVITIES = ("sm_active", "dram_active", "gr_active", "gpu_util", "mem_util")
with (RECORDED / "mig-slices" / "slices.csv").open(newline="") as _file:
    ROWS = list(csv.DictReader(_file))
BUSY = [row for row in ROWS if row["gr_active_whole_pct"] or row["gpu_util_whole_pct"]]
ACTIVE = [row for row in ROWS if row["sm_active_whole_pct"]]


def _busy(row: dict[str, str]) -> float:
    """Return the part of the time in which the whole GPU ran a kernel."""
    return float(row["gr_active_whole_pct"] or row["gpu_util_whole_pct"]) / 100


def _shares(row: dict[str, str]) -> tuple[float, float]:
    """Return how many times the slice's SMs, and how many times its memory slices, the whole GPU has."""
    return int(row["sm_count_whole"]) / int(row["sm_count"]), int(row["mem_slices_whole"]) / int(row["mem_slices"])


def _in_proportion(row: dict[str, str]) -> float:
    """Return the slowdown if what the SMs did took as many times longer as there are fewer of them."""
    return 1 + float(row["sm_active_whole_pct"]) / 100 * (_shares(row)[0] - 1)


def test_each_placement_is_of_a_part_of_a_gpu_and_stands_once() -> None:
    assert len({(row["source"], row["job"], row["slice"]) for row in ROWS}) == len(ROWS) == 407
    assert (len(BUSY), len(ACTIVE)) == (281, 39)
    for row in ROWS:
        assert float(row["slowdown"]) > 0
        assert 0 < int(row["mem_slices"]) < int(row["mem_slices_whole"])
        assert not row["sm_count"] or 0 < int(row["sm_count"]) < int(row["sm_count_whole"])
        for name in ACTIVITIES:
            assert 0 <= float(row[f"{name}_whole_pct"] or 0) <= 100


def test_no_job_slowed_by_more_than_its_share_of_sms() -> None:
    assert all(float(row["slowdown"]) <= _shares(row)[0] for row in ROWS if row["sm_count"])


def test_the_time_without_a_kernel_does_not_slow() -> None:
    """What runs kernels slows at most by the scarcer of SMs and memory, the rest not: kept within 3 %."""
    for row in BUSY:
        assert float(row["slowdown"]) <= 1.03 * (1 + _busy(row) * (max(_shares(row)) - 1)), row


def test_in_proportion_to_sm_activity_is_an_upper_bound() -> None:
    for row in ACTIVE:
        assert float(row["slowdown"]) <= 1.02 * _in_proportion(row), row

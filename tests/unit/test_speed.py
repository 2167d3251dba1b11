# SPDX-License-Identifier: Apache-2.0
"""What placement/speed.py promises of a slice, held against what was measured."""

import csv
from pathlib import Path
from typing import NamedTuple

import pytest

from slurm_colloc.placement.speed import most_on_slice, on_slice
from tests.gpu import slowdowns

FOLDER = Path(slowdowns.__file__).parent
SLICES = FOLDER.parent / "recorded" / "mig-slices" / "slices.csv"


class Placed(NamedTuple):
    """One job on a part of a GPU's SMs: its activity on the whole, whole SMs over the part's, measured slowdown."""

    sm_active_pct: float
    whole_over_own: float
    slowdown: float


def limited(card: str) -> list[Placed]:
    """Return the placements of one card's table; no job is slower on more SMs, so that what says so is noise."""
    with (FOLDER / f"slowdowns_{card}.csv").open(newline="") as stream:
        jobs = slowdowns.best(list(csv.DictReader(stream)))
    found = []
    for points in jobs.values():
        by_size = sorted((int(one["sm_count"]), float(one["steps_per_s"])) for one in points.values())
        active = float(points[100]["sm_active_pct"])
        rates = {sms: max(rate for fewer, rate in by_size if fewer <= sms) for sms, _ in by_size}
        (*parts, whole) = rates
        found += [Placed(active, whole / part, rates[whole] / rates[part]) for part in parts]
    return found


def on_real_slices() -> list[Placed]:
    with SLICES.open(newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["sm_active_whole_pct"]]
    return [
        Placed(
            float(row["sm_active_whole_pct"]),
            int(row["sm_count_whole"]) / int(row["sm_count"]),
            float(row["slowdown"]),
        )
        for row in rows
    ]


@pytest.mark.parametrize(
    ("placed", "bound", "accepted", "over", "at_least_pct"),
    [
        (limited("h100"), 1.1, 38, 0, 34),
        (limited("h200"), 1.1, 40, 2, 35),
        (on_real_slices(), 1.1, 2, 0, 22),
        (limited("h100"), 1.25, 88, 1, 60),
        (limited("h200"), 1.25, 96, 1, 63),
        (on_real_slices(), 1.25, 7, 0, 70),
        (limited("h100"), 1.6, 138, 1, 73),
        (limited("h200"), 1.6, 147, 0, 79),
        (on_real_slices(), 1.6, 14, 0, 87),
    ],
)
def test_few_are_slower_than_the_bound(
    placed: list[Placed], bound: float, accepted: int, over: int, at_least_pct: float
) -> None:
    taken = [one for one in placed if one.sm_active_pct <= most_on_slice(bound, one.whole_over_own)]
    within = sum(one.slowdown <= bound for one in taken)
    assert (len(taken), len(taken) - within) == (accepted, over)
    assert 100 * within / sum(one.slowdown <= bound for one in placed) >= at_least_pct
    # The activity that a bound allows is the one at which few are slower than it.
    assert all(on_slice(one.sm_active_pct, one.whole_over_own).upper <= bound + 1e-9 for one in taken)

# SPDX-License-Identifier: Apache-2.0
"""What placement/speed.py promises, held against what was measured."""

import csv
import itertools
import json
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_colloc.placement.speed import (
    most_in_part,
    most_on_slice,
    on_share,
    on_slice,
    part_needed,
)
from tests.gpu import slowdowns
from tests.unit.made import RECORDED

FOLDER = Path(slowdowns.__file__).parent
SLICES = FOLDER.parent / "recorded" / "mig-slices" / "slices.csv"


class Placed(NamedTuple):
    """One job on a part of a GPU's SMs: its activity on the whole, whole SMs over the part's, measured slowdown."""

    sm_active_pct: float
    whole_over_own: float
    slowdown: float


def limited(card: str) -> list[Placed]:
    """Return the placements of one card's table."""
    return [one for placed in limited_by_network(card).values() for one in placed]


def limited_by_network(card: str) -> dict[str, list[Placed]]:
    """Return them by the network that ran; no job is slower on more SMs, so that what says so is noise."""
    with (FOLDER / f"slowdowns_{card}.csv").open(newline="") as stream:
        jobs = slowdowns.best(list(csv.DictReader(stream)))
    found: dict[str, list[Placed]] = {}
    for command, points in jobs.items():
        by_size = sorted((int(one["sm_count"]), float(one["steps_per_s"])) for one in points.values())
        active = float(points[100]["sm_active_pct"])
        rates = {sms: max(rate for fewer, rate in by_size if fewer <= sms) for sms, _ in by_size}
        (*parts, whole) = rates
        network = command.split("--model ")[1].split()[0]
        found.setdefault(network, []).extend(Placed(active, whole / part, rates[whole] / rates[part]) for part in parts)
    return found


def on_real_slices() -> list[Placed]:
    with SLICES.open(newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["sm_active_whole_pct"]]
    assert len(rows) == 39
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


def mixes() -> list[list[tuple[float, float]]]:
    """Return the mixes measured under MPS on an H100: of each job its activity alone and its slowdown."""
    found: dict[str, list[tuple[float, float]]] = {}
    with (FOLDER / "mixes_h100.csv").open(newline="") as stream:
        for row in csv.DictReader(stream):
            if "twice" not in row["mix"]:
                slowdown = float(row["alone_steps_per_s"]) / float(row["steps_per_s"])
                found.setdefault(row["mix"], []).append((float(row["alone_sm_active_pct"]), slowdown))
    for one in json.loads((RECORDED / "h100-mps-slowdowns.json").read_text())["seen"]:
        own, others = one["sm_active_pct"], one["others_pct"]
        job = (own, one["slowdown"])
        if "beside" in one["name"]:
            found.setdefault(str(sorted((own, others))), []).append(job)
        else:
            found[one["name"]] = [job] * (1 + round(others / own))
    return list(found.values())


MIXES = mixes()


def is_good(mix: list[tuple[float, float]], bound: float) -> bool:
    return all(slowdown <= bound for _, slowdown in mix)


def kept(taken: list[list[tuple[float, float]]], bound: float) -> tuple[int, int, int]:
    """Return how many jobs there are, how many of them are over the bound, and in how many mixes none is."""
    slowdowns = [slowdown for mix in taken for _, slowdown in mix]
    return len(slowdowns), sum(one > bound for one in slowdowns), sum(is_good(mix, bound) for mix in taken)


@pytest.mark.parametrize(
    ("bound", "found", "good"), [(1.1, (23, 2, 9), 20), (1.25, (76, 0, 27), 37), (1.6, (157, 2, 49), 57)]
)
def test_few_of_those_that_share_a_gpu_are_slower_than_the_bound(
    bound: float, found: tuple[int, int, int], good: int
) -> None:
    taken = [mix for mix in MIXES if sum(part_needed(active, bound) for active, _ in mix) <= 1 + 1e-9]
    assert kept(taken, bound) == found
    assert sum(is_good(mix, bound) for mix in MIXES) == good
    assert len(MIXES) == 67


@pytest.mark.parametrize("bound", [1.05, 1.1, 1.25, 1.5, 1.6, 3.0])
def test_what_a_share_holds_is_what_needs_it(bound: float) -> None:
    for percent in range(1, 88):
        active = most_in_part(percent / 100, bound)
        assert part_needed(active, bound) == pytest.approx(percent / 100) or active == 100


@given(
    st.lists(st.tuples(st.floats(0.1, 100), st.floats(0, 100)), min_size=2, max_size=48),
    st.floats(1.01, 1.6),
)
def test_whatever_jobs_fill_a_gpu_each_has_no_more_beside_it_than_it_bears(
    jobs: list[tuple[float, float]], bound: float
) -> None:
    jobs = [(active, max(active, busy)) for active, busy in jobs]
    kept: list[tuple[float, float]] = []
    for job in jobs:
        if sum(part_needed(active, bound, busy) for active, busy in (*kept, job)) <= 1:
            kept.append(job)
    for active, busy in kept:
        others = sum(one for one, _ in kept) - active
        assert 1 + (busy / 100) ** 2 * others / 100 / 0.64 <= bound + 1e-6
    assert sum(active for active, _ in kept) <= 105 + 1e-6


def test_the_busier_a_job_is_the_less_may_run_beside_it() -> None:
    """The less it is, the less it is slowed on a slice, too; and in turns nothing else counts."""
    parts = [part_needed(32, 1.25, busy) for busy in (40, 60, 98)]
    assert parts == [0.4, pytest.approx(4 / 9), pytest.approx(1 - 0.2 / 0.98**2)]
    assert part_needed(32, 1.25) == part_needed(32, 1.25, 40)
    assert [part_needed(11, 1.25, busy, in_turns=True) for busy in (26.7, None)] == [0.3, pytest.approx(33.2 / 89)]
    assert part_needed(90, 1.25, 95) > 1
    # Beyond what was measured a bound allows no more.
    assert part_needed(32, 5.0, 98) == part_needed(32, 1.6, 98)
    uppers = [on_slice(18, 132 / 16, busy).upper for busy in (None, 100, 40)]
    assert uppers[0] == uppers[1] == pytest.approx(1 + 0.18 * 7.25 - 0.06)
    assert uppers[2] == pytest.approx(1 + (0.18 * 7.25 - 0.06) / 1.24)
    assert on_share(32, 1.25, 98).expected == pytest.approx(1 + 0.16)
    assert on_share(32, 1.25, 40).expected == pytest.approx(1 + 0.16 * 0.48)


def test_a_network_that_the_rule_for_slices_was_not_chosen_by_is_told_as_well() -> None:
    """Leave one network out: what a job hides, and at most how much, are chosen by the others."""
    bound = 1.25
    of_network: dict[str, list[tuple[float, float]]] = {}
    for card in ("h100", "h200"):
        for network, placed in limited_by_network(card).items():
            lacking = [(one.sm_active_pct / 100 * (one.whole_over_own - 1), one.slowdown) for one in placed]
            of_network.setdefault(network, []).extend(lacking)
    rules = list(itertools.product((0.6, 0.7, 0.8, 0.9, 1.0), (0.0, 0.02, 0.04, 0.06, 0.08, 0.1)))

    def judged(networks: list[str], part: float, hidden: float) -> tuple[int, int]:
        upper = [(1 + max(part * y, y - hidden), slow) for name in networks for y, slow in of_network[name]]
        taken = [slow for foretold, slow in upper if foretold <= bound]
        return len(taken), sum(slow > bound for slow in taken)

    accepted = over = 0
    for out in of_network:
        others = [name for name in of_network if name != out]
        kept_by = [(count, rule) for rule in rules for count, bad in [judged(others, *rule)] if bad <= 0.02 * count]
        count, bad = judged([out], *max(kept_by)[1])
        accepted, over = accepted + count, over + bad
    within = sum(slow <= bound for found in of_network.values() for _, slow in found)
    assert (accepted, over, within, len(of_network)) == (195, 2, 293, 27)

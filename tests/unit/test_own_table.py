# SPDX-License-Identifier: Apache-2.0
"""The figures that docs/explanation/estimate.md gives of the project's own table are those that it yields."""

import functools
from pathlib import Path

import pytest

from slurm_colloc.estimate.bounds import upper_bound
from slurm_colloc.estimate.replay import LADDER, MODES, Pieces, Score, replay, scores
from slurm_colloc.estimate.runs_table import Table, parse_table

TABLE = Path(__file__).resolve().parents[1] / "gpu/footprints_h200.csv"
DOCS = Path(__file__).resolve().parents[2] / "docs/explanation/estimate.md"
# Slices of an A100-40GB, the finest there are, so that to be exact is hardest, and the whole H200.
PIECES = Pieces({"": (4864, 9856, 19968, 40192, 143156)})


@functools.cache
def table() -> Table:
    return parse_table(TABLE.read_text())


@functools.cache
def score(mode: str, policy: str, known: str) -> Score:
    rows = table().rows
    if mode == "leave-one-out":
        # Three runs alike to the MiB are one thing learned, not three.
        rows = tuple({row.run.signature: row for row in reversed(rows)}.values())[::-1]
    found = scores(replay(MODES[mode](rows), PIECES).outcomes)
    return next(one for one in found if (one.policy, one.rung, one.known) == (policy, "", known))


def test_the_table_is_whole() -> None:
    rows = table().rows
    assert (len(rows), table().rejected, table().clock_back) == (table().rows_in, {}, 0)
    assert len({row.run.signature for row in rows}) >= 240
    assert {row.run.state for row in rows} == {"COMPLETED", "GPU_OOM"}
    assert all(row.allocator_peak_mib for row in rows)
    assert sum(row.run.sm_active_mean_pct is not None and row.run.dram_active_q95_pct is not None for row in rows) > 300


@pytest.mark.parametrize(
    ("policy", "known", "median_error", "out_of_memory", "exact"),
    [
        (LADDER, "1 other", 0.30, 0.005, 0.53),
        (LADDER, "2 other", 0.02, 0.012, 0.80),
        (LADDER, "all others", 0.012, 0.02, 0.84),
    ],
)
def test_the_ladder_is_as_close_as_the_docs_say(
    policy: str, known: str, median_error: float, out_of_memory: float, exact: float
) -> None:
    found = score("leave-one-out", policy, known)
    assert found.median_error is not None
    assert found.median_error <= median_error
    assert (upper_bound(found.out_of_memory, found.answered) or 0) <= out_of_memory
    assert found.exact / found.answered >= exact
    assert found.answered / found.placements >= 0.97
    assert _row(found) in DOCS.read_text()


def _row(of: Score) -> str:
    """Return the line of the docs that these figures make."""
    said = {"1 other": "one other", "2 other": "two others", "all others": "all others"}[of.known]

    def rate(count: int) -> str:
        return f"{100 * count / of.answered:.1f} % ({100 * (upper_bound(count, of.answered) or 0):.1f})"

    words = (
        said,
        str(of.placements),
        f"{100 * of.answered / of.placements:.0f} %",
        rate(of.underestimates),
        rate(of.out_of_memory),
        f"{100 * of.exact / of.answered:.0f} %",
        f"{of.allocated_mib / of.ideal_mib:.2f}",
        f"{100 * (of.median_error or 0):.1f} %, {100 * (of.p95_error or 0):.0f} %",
    )
    return f"| {' | '.join(words)} |"


def test_repeats_of_a_configuration_are_alike_to_the_mib() -> None:
    peaks: dict[str, set[float]] = {}
    for row in table().rows:
        if row.completed:
            peaks.setdefault(row.run.signature, set()).add(row.peak_mib)
    assert all(len(found) == 1 for found in peaks.values())
    found = score("repeats", LADDER, "1 repeat")
    assert found.out_of_memory == 0
    assert found.allocated_mib / found.ideal_mib <= 1.08

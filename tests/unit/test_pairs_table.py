# SPDX-License-Identifier: Apache-2.0
"""csub on the table of pairs of submissions (tests/recorded/job-pairs), which tests/pairs.py reads as it is meant."""

from collections import Counter

import pytest

from tests.pairs import HALVES, TABLE, answer, load

PAIRS = {half: load(TABLE / half) for half in HALVES}


@pytest.mark.parametrize("half", HALVES)
def test_bigger_jobs_are_not_taken_for_the_same(half: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most one of a hundred bigger ones is; and at most a fifth of the unchanged are measured again."""
    monkeypatch.setattr("slurm_colloc.estimate.files._MOST_S", 60.0)  # a busy machine has nothing to do with it
    found = Counter((pair.verdict, answer(pair)) for pair in PAIRS[half] if pair.verdict != "unsure")
    of = {verdict: sum(count for (one, _), count in found.items() if one == verdict) for verdict, _ in found}
    assert (found["bigger", "same"] + found["bigger", "near"]) / of["bigger"] <= 0.01
    assert found["unchanged", "same"] / of["unchanged"] >= {"open": 0.90, "held-out": 0.83}[half]

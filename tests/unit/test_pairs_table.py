# SPDX-License-Identifier: Apache-2.0
"""csub on the table of pairs of submissions (tests/recorded/job-pairs), which tests/pairs.py reads as it is meant."""

from collections import Counter

import pytest

from tests.pairs import HALVES, TABLE, answer, is_wrong, known_again, load

PAIRS = {half: load(TABLE / half) for half in HALVES}
# At most so many of a hundred bigger ones are taken for the same or nearly, and of unchanged ones measured again.
AT_MOST = {
    "open": (0, 10),
    "held-out": (1, 17),
    "habits-open": (0, 15),
    "habits-kept-apart": (0, 15),
    "habits-variants": (1, 9),
    "later-open": (0, 12),
    "later-kept-apart": (0, 16),
}


@pytest.mark.parametrize("half", HALVES)
def test_bigger_jobs_are_not_taken_for_the_same(half: str) -> None:
    found = Counter((pair.verdict, is_wrong(pair, answer(pair))) for pair in PAIRS[half])
    shares = [100 * found[of, True] / (found[of, True] + found[of, False]) for of in ("bigger", "unchanged")]
    assert all(share <= most for share, most in zip(shares, AT_MOST[half], strict=True)), shares


@pytest.mark.parametrize("half", HALVES)
def test_the_first_of_a_pair_is_known_when_it_is_submitted_again(half: str) -> None:
    """Otherwise it says nothing that the second is not taken for it; of each half one says nothing."""
    assert len([pair.id for pair in PAIRS[half] if not known_again(pair)]) <= 1


def test_each_pair_stands_once_and_has_a_class_that_is_described() -> None:
    pairs = [pair for half in HALVES for pair in PAIRS[half]]
    rows = {line.split("|")[1].strip() for line in (TABLE / "README.md").read_text().splitlines() if "|" in line}
    assert {pair.kind for pair in pairs} <= rows
    assert {pair.verdict for pair in pairs} == {"bigger", "unchanged", "unsure"}
    assert max(Counter(pair.id for half in HALVES for pair in PAIRS[half]).values()) == 1
    assert [pair.id for pair in pairs if pair.first == pair.second and not pair.edited] == []
    contents = Counter(repr((pair.first, pair.second)) for pair in pairs)
    assert [what for what, count in contents.items() if count > 1] == []

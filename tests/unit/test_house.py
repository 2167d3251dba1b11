# SPDX-License-Identifier: Apache-2.0

import tomllib
from pathlib import Path

import pytest

from tests.house import PHRASES, faults, hard_to_read, lowered, phrase_percent, rooms, size, stumbles, table

# A licence, a comment and two docstrings, and fourteen tokens.
CODE = '''# SPDX-License-Identifier: Apache-2.0
"""Of what there is."""

def f(found: int) -> int:
    """Return it."""
    return found + 1  # as it is
'''
TEST = """\
def test_a(): assert "five words make one phrase" in f()
def test_b(): assert "no phrase: col001" in f()
def test_c():
    with raises(E, match="one phrase is asserted here"): f()
def helper(): assert "five words make one phrase" in f()
"""


@pytest.mark.parametrize(
    ("name", "text", "count"),
    [
        ("a.py", CODE, 14),
        ("a.sql", "-- what it is\nselect a, b from t -- of t\n", 5),
        ("a.c", "/* of\n two */ int a; // one\n", 2),
        ("a.sh", "#!/bin/sh\n# why\necho a # b\n", 4),
        ("a.j2", "{# what\n#}a {{ b }}\n", 4),
        ("a", "#!/bin/sh\necho a\n", 2),
        ("b", "echo a\n", 0),
        ("a.csv", "1 2 3\n", 0),
    ],
)
def test_size(tmp_path: Path, name: str, text: str, count: int) -> None:
    (tmp_path / name).write_text(text)
    assert size(tmp_path / name) == count


def test_a_room_has_what_lies_below_it(tmp_path: Path) -> None:
    package = tmp_path / "package"
    (package / "a/b").mkdir(parents=True)
    for place in ("top.py", "a/one.py", "a/b/two.py"):
        (package / place).write_text("x = 1\n")
    assert rooms(package) == {"package": 3, "a": 6}


def test_two_of_three_assert_a_phrase(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TEST)
    assert round(phrase_percent(tmp_path)) == 67


@pytest.mark.parametrize(
    ("tokens", "ceiling", "is_fault"),
    [(4000, 4000, 0), (4001, 4000, 1), (3801, 4000, 0), (3800, 4000, 1), (401, 500, 0), (400, 500, 1), (0, 10, 1)],
)
def test_a_room_has_its_ceiling(tokens: int, ceiling: int, is_fault: int) -> None:
    assert len(faults({"room": tokens}, {"room": ceiling})) == is_fault


def test_phrases_have_theirs() -> None:
    assert faults({PHRASES: 24.9}, {PHRASES: 25}) == []
    assert len(faults({PHRASES: 25.1}, {PHRASES: 25})) == len(faults({PHRASES: 23}, {PHRASES: 25})) == 1


def test_a_new_room_needs_one() -> None:
    assert len(faults({"new": 1}, {})) == 1


def test_ceilings_fall_and_never_rise() -> None:
    fallen = lowered({"a": 5, "b": 50, PHRASES: 7.2}, {"a": 10, "b": 40, "gone": 3, PHRASES: 25})
    assert fallen == {"a": 5, "b": 40, PHRASES: 8}
    assert tomllib.loads(table(fallen)) == fallen


def test_what_a_reader_stumbles_over_is_found() -> None:
    places, _, bound = stumbles(CODE.replace("it is", "it stands here"))
    assert [(place.line, place.kind) for place in places] == [(1, "sentence"), (4, "name")]
    assert bound == 1


def test_a_room_that_is_hard_to_read_is_named(tmp_path: Path) -> None:
    plain = "def get(path: str) -> int: ...\n"
    for place, text in (
        ("hard/a.py", CODE),
        ("plain/a.py", plain),
        ("long/a.py", CODE + plain * 30),
        ("top.py", plain),
    ):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text(text)
    assert [line.partition(" its ")[0] for line in hard_to_read(tmp_path)] == [
        "hard: 100.0 % of",
        "hard: 100.0 % of",
        "long: 100.0 % of",
    ]

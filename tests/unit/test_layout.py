# SPDX-License-Identifier: Apache-2.0
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from slurm_colloc.core.units import printable
from slurm_colloc.report.layout import cut, fitting, folded, table_lines


@pytest.mark.parametrize(
    ("text", "columns", "shown"),
    [
        ("abcdef", 6, "abcdef"),
        ("abcdefg", 6, "abc…fg"),
        ("日本語", 6, "日本語"),
        ("日本語の名前", 8, "日本…前"),  # a wide letter that does not fit is left out whole
        ("e\u0301" * 9, 5, "e\u0301e\u0301…e\u0301e\u0301"),
        ("x" + "\u0301" * 500, 5, "x" + "\u0301" * 9 + "…"),
        ("abc", 1, "…"),
        ("abc", 0, ""),
    ],
)
def test_a_name_is_cut_in_its_middle_by_how_wide_it_looks(text: str, columns: int, shown: str) -> None:
    assert cut(text, columns) == shown


@given(st.text(max_size=60).map(printable), st.integers(0, 40))
def test_what_is_cut_fits(text: str, columns: int) -> None:
    shown = cut(text, columns)
    assert cell_len(shown) <= columns
    assert shown == text or cell_len(text) > columns or len(text) > 4 * columns


@given(st.lists(st.text("ab日e\u0301", min_size=1, max_size=30), max_size=20), st.integers(6, 60))
def test_a_line_is_folded_between_words(words: list[str], columns: int) -> None:
    line = " ".join(words)
    lines = folded(line, columns)
    assert all(cell_len(one) <= columns for one in lines)
    assert "".join(lines).replace(" ", "") == "".join(words), "nothing is left out"
    if max(map(cell_len, words), default=0) <= columns - 2:
        assert " ".join(lines).split() == words
    assert folded(line, None) == [line]


@pytest.mark.parametrize(
    ("line", "columns", "lines"),
    [
        ("  memory     8 GiB at peak", 20, ["  memory     8 GiB", "       at peak"]),
        ("  memory     8 GiB at peak", 17, ["  memory     8", "  GiB at peak"]),  # so far in there is no room
        ("  given      " + "日" * 8, 20, ["  given      日日日", "       日日日日日"]),
        ("       |" + "▁" * 60 + "| 0 to 100 %", 40, ["       |" + "▁" * 60 + "| 0 to 100 %"]),
        (
            "       $ csub --gpu-footprint=mem=4G,sm=9 train.sh",
            40,
            ["       $ csub --gpu-footprint=mem=4G,sm=9 train.sh"],
        ),
    ],
)
def test_text_behind_a_title_goes_on_below_itself(line: str, columns: int, lines: list[str]) -> None:
    assert folded(line, columns, 7) == lines


def test_columns_of_low_rank_are_taken_first() -> None:
    widths, ranks = [5, 7, 3], [2, 0, 1]
    assert [fitting(widths, ranks, room) for room in (8, 9, 14, 20, 21)] == [[], [1], [1, 2], [1, 2], [0, 1, 2]]
    assert fitting([9, 1], [0, 1], 5) == [], "what matters less takes no one's place"


def test_columns_stand_below_each_other_however_wide_letters_are() -> None:
    lines = table_lines([["NAME", "N"], ["日本", "1"], ["e\u0301", "22"], ["total", "23"]])
    assert lines == ["NAME    N", "---------", "日本    1", "e\u0301      22", "---------", "total  23"]

# SPDX-License-Identifier: Apache-2.0
import re

import pytest

from slurm_colloc.core.errors import InputError
from slurm_colloc.slurm.hostlist import count, expand, fold
from tests.unit.golden import Printed


def test_a_list_and_its_names() -> None:
    assert expand("g[1-3],m1") == ("g1", "g2", "g3", "m1")
    assert fold(["m1", "g3", "g1", "g2"]) == "g[1-3],m1"
    assert (expand(""), fold([])) == ((), "")
    with pytest.raises(InputError, match="missing bracket"):
        expand("g[1-")
    assert fold(["g1", "g[1-"]) == "g1,g[1-"


def test_no_file_of_groups_is_asked() -> None:
    """Such a file may name a program to be run, and the word may be anybody's."""
    assert expand("@all,g1") == ("@all", "g1")
    assert fold(["@all", "g1"]) == "@all,g1"


@pytest.mark.parametrize(
    "text",
    [
        "n[1-99999999999]",
        "n[1-1000]x[1-2000]",
        f"n[1-{'9' * 400}]",
        f"n[{','.join(['1-65536'] * 17)}]",
        f"n[{'9' * 40}]",
    ],
)
def test_what_is_longer_than_any_cluster_is_refused_before_it_is_made(text: str, printed: Printed) -> None:
    """A job's name stands in the lines that are read, too, and anybody may write that."""
    with pytest.raises(InputError):
        expand(text)
    with printed.raises("slurm", InputError):
        expand("n[1-99999999999]")
    assert fold([text, "g1"]) == f"{text},g1"


@pytest.mark.parametrize("span", [" 1-3", "1 -3", "1- 3", "1-0_3", "+1-3", "1-+3", "-1-3", "1-٣", "1-3\t", "a-c"])
def test_numbers_are_slurms(span: str, printed: Printed) -> None:
    """What Python takes for a number beyond that would pass by the bound."""
    with pytest.raises(InputError, match=re.escape(f"'{span}'")) as raised:
        expand(f"n[{span}]")
    printed("slurm", str(raised.value).replace(span, "SPAN"))
    with pytest.raises(InputError, match=re.escape(f"'{span}'")):
        count(f"n[{span}]x[1-2]")


def test_a_list_is_counted_without_its_names() -> None:
    assert [count(text) for text in ("g[1-3],m1", "n[01-16]x[0-1]", "n[9-1]", "", "n[1-4/2]")] == [4, 32, 1, 0, 4]

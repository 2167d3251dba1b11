# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from slurm_colloc.core.errors import ConfigError, UnsureError
from slurm_colloc.slurm.directives import read_script
from slurm_colloc.slurm.option_tables import SBATCH_OPTIONS, Option
from slurm_colloc.slurm.options import join_options, listed_options, site_option, split_command_line

TABLE = SBATCH_OPTIONS["24.11"]
SITE = ("container-image=", "no-container-mount-home", "x11=?", "Bad_Case=")
RECORDED = Path(__file__).parent.parent / "recorded"


@pytest.mark.parametrize(
    ("text", "argument"), [("image=", "required"), ("flag", "none"), ("x11=?", "optional"), ("a.b_C=", "required")]
)
def test_one_option(text: str, argument: str) -> None:
    assert site_option(text) == Option(text.rstrip("=?"), "", argument, "")


@pytest.mark.parametrize("text", ["", "=", "=?", "--image=", "image=x", "image=??", "a b", "a\n", "\u00e9="])
def test_no_option(text: str) -> None:
    with pytest.raises(ConfigError, match="none of"):
        site_option(text)


def test_they_are_read_like_others() -> None:
    table = join_options(TABLE, SITE)
    line = split_command_line(["--container-im", "a:b", "--no-container-m", "--x11", "--Bad_Case=", "a.sh"], table)
    assert [(one.name, one.value) for one in line.options] == [
        ("container-image", "a:b"),
        ("no-container-mount-home", None),
        ("x11", None),
        ("Bad_Case", ""),
    ]
    script = read_script(b"#!/bin/sh\n#SBATCH --container-image x --x11=first -N2\n", table, "24.11")
    assert [(one.name, one.value) for one in script.options] == [
        ("container-image", "x"),
        ("x11", "first"),
        ("nodes", "2"),
    ]
    for word in ("--no-container-mount-home=1", "--container-image"):
        with pytest.raises(UnsureError):
            split_command_line([word], table)


def test_a_known_name_stays_what_it_is() -> None:
    table = join_options(TABLE, ["container", "gres", "x11=?", "x11="])
    assert table[: len(TABLE)] == TABLE
    assert table[len(TABLE) :] == (Option("x11", "", "optional", ""),)


def test_an_abbreviation_becomes_ambiguous() -> None:
    assert split_command_line(["--gres-f=x"], TABLE).options[0].name == "gres-flags"
    with pytest.raises(UnsureError, match="ambiguous"):
        split_command_line(["--gres-f=x"], join_options(TABLE, ["gres-format="]))
    with pytest.raises(UnsureError, match="ambiguous"):
        split_command_line(["--part=x"], join_options(TABLE, ["parts"]))
    assert split_command_line(["--partition=x"], join_options(TABLE, ["partition-x"])).options[0].name == "partition"


@pytest.mark.parametrize("release", ["22.05", "24.11", "26.05"])
def test_what_sbatch_lists(release: str) -> None:
    said = (RECORDED / f"slurm-{release}" / "sbatch" / "possibilities.txt").read_text()
    assert sorted(listed_options(said)) == sorted(option.name for option in SBATCH_OPTIONS[release])


def test_what_sbatch_lists_with_plugins() -> None:
    said = "sbatch: option '--=' is ambiguous; possibilities: '--account' '--container-image' '--x11'\nTry \"sbatch\"\n"
    assert listed_options(said) == ("account", "container-image", "x11")
    assert listed_options("sbatch: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host\n") == ()
    assert listed_options("") == ()

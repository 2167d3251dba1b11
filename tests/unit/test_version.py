# SPDX-License-Identifier: Apache-2.0
"""The version stands in slurm_colloc/__init__.py; whatever else says it, says the same."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from slurm_colloc import __version__
from tests.unit.programs import colloc
from tests.unit.shell import Shell

CHECKOUT = Path(__file__).resolve().parents[2]


def test_the_build_takes_it_from_the_package() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"] == {"path": "slurm_colloc/__init__.py"}


def test_the_changelog_begins_with_it_and_goes_back_in_order() -> None:
    headings = re.findall(r"^## (.*)$", (CHECKOUT / "CHANGELOG.md").read_text(), re.MULTILINE)
    found = [re.fullmatch(r"(\d+)\.(\d+)\.(\d+) \((unreleased|\d{4}-\d\d-\d\d)\)", heading) for heading in headings]
    versions = [tuple(map(int, one.groups()[:3])) for one in found if one]
    assert len(versions) == len(headings), headings
    assert ".".join(map(str, versions[0])) == __version__
    assert versions == sorted(set(versions), reverse=True)
    assert all(one and one[4] != "unreleased" for one in found[1:])


def test_the_manual_pages_are_of_this_version() -> None:
    pages = list((CHECKOUT / "docs" / "man").glob("*.[1-8]"))
    assert pages
    for page in pages:
        (title,) = re.findall(r"^\.TH (.*)$", page.read_text(), re.MULTILINE)
        assert f"slurm_colloc {__version__}" in title.replace('"', "").replace("\\-", "-"), (page.name, title)


def test_both_programs_say_it(shell: Shell) -> None:
    assert colloc("--version") == 0
    assert colloc.out == f"colloc {__version__}\n"
    assert f"\n  csub {__version__}: " in shell.run("--help").stdout

# SPDX-License-Identifier: Apache-2.0
"""Docs are tested too: commands and options in them exist, links lead somewhere, generated pages are not stale."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer.core
import typer.main

from slurm_colloc.audit.rules import RULES
from slurm_colloc.cli.colloc import COMMANDS
from slurm_colloc.cli.colloc.app import build
from slurm_colloc.cli.csub_pack import RESUME
from slurm_colloc.config import load_site
from slurm_colloc.report.formats import json_schema
from slurm_colloc.report.rules_page import rules_page
from slurm_colloc.site.doctor.checks import CHECKS
from slurm_colloc.site.doctor.checks import reference as doctor_reference
from slurm_colloc.site.reference import reference
from slurm_colloc.slurm.options import SBATCH_OPTIONS
from slurm_colloc.submit.own_options import OWN_OPTIONS

CHECKOUT = Path(__file__).resolve().parents[2]
PAGES = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").rglob("*.md"))]


def test_the_reference_of_site_toml_is_not_stale() -> None:
    assert (CHECKOUT / "docs/reference/site.toml.md").read_text() == reference(), "run 'make docs'"


def test_the_checks_of_the_doctor_are_all_documented() -> None:
    assert (CHECKOUT / "docs/reference/doctor.md").read_text() == doctor_reference(), "run 'make docs'"
    rows = re.findall(r"^\| (DOC\d+) \| (.*) \|$", (CHECKOUT / "docs/how-to/doctor.md").read_text(), re.MULTILINE)
    assert rows == [(check.code, check.title) for check in CHECKS]


def test_the_reference_of_audit_rules_is_not_stale() -> None:
    page = (CHECKOUT / "docs/reference/audit-rules.md").read_text()
    assert page == rules_page(RULES.values()), "run 'make docs'"
    anchors = {
        re.sub(r"[^a-z0-9 -]", "", line[3:].lower()).replace(" ", "-")
        for line in page.splitlines()
        if line[:3] == "## "
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", page)) == anchors


def test_the_schema_of_reports_is_not_stale() -> None:
    assert (CHECKOUT / "docs/reference/report.schema.json").read_text() == json_schema(), "run 'make docs'"


def test_readme_is_short() -> None:
    assert len((CHECKOUT / "README.md").read_text().splitlines()) < 120


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_links_and_files_named_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target
    for target in re.findall(r"`((?:docs|templates|tests|site-configs|slurm_colloc)/[\w./-]*)`", page.read_text()):
        assert (CHECKOUT / target).exists(), target


def _commands() -> list[tuple[str, list[str]]]:
    text = "\n".join(page.read_text() for page in PAGES)
    found = re.findall(r"(?:^|`)(colloc|csub) ([^`#\n]*)", text, re.MULTILINE)
    return [(program, words.split()) for program, words in found]


def test_every_command_shown_exists_with_its_options() -> None:
    root = typer.main.get_command(build(COMMANDS))
    own = {f"--{option.name}" for option in (*SBATCH_OPTIONS["22.05"], *OWN_OPTIONS)}
    seen = 0
    for program, words in _commands():
        end = words.index("--") if "--" in words else len(words)
        options = {word.split("=")[0] for word in words[:end] if word.startswith("--")}
        if program == "csub":
            of_packs = {f"--{RESUME.name}"} if words[:1] == ["pack"] else set()
            assert options <= own | of_packs, (program, words)
            seen += 1
            continue
        command = root
        for word in words:
            # Typer brings its own click, so groups are known by what they have.
            inner: dict[str, typer.core.TyperCommand] = getattr(command, "commands", {})
            if not inner or word.startswith("-"):
                break
            assert word in inner, (program, words)
            command = inner[word]
        known = {option for parameter in command.params for option in parameter.opts}
        assert options <= known, (program, words, options - known)
        seen += 1
    assert seen > 15


@pytest.mark.parametrize(
    "site", sorted((CHECKOUT / "site-configs").glob("*/site.toml")), ids=lambda path: path.parent.name
)
def test_example_sites_are_valid(site: Path) -> None:
    assert load_site(str(site)).pool

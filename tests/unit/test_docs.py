# SPDX-License-Identifier: Apache-2.0
"""Docs are tested too: commands and options in them exist, links lead somewhere, generated pages are not stale."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import typer.core
import typer.main

from slurm_colloc.cli.colloc import COMMANDS
from slurm_colloc.cli.colloc.app import build
from slurm_colloc.pack.command_line import RESUME
from slurm_colloc.site.doctor.checks import CHECKS
from slurm_colloc.slurm.option_tables import SBATCH_OPTIONS
from slurm_colloc.submit.own_options import OWN_OPTIONS
from tests.doc_examples import CHECKOUT, PAGES, tokens
from tests.pages import DOCS, pages


@pytest.mark.parametrize("path", pages())
def test_what_is_made_of_the_code_is_not_stale(path: str) -> None:
    assert (DOCS / path).read_text() == pages()[path](), "run 'make docs'"


def test_the_how_to_of_the_doctor_lists_every_check() -> None:
    rows = re.findall(r"^\| (DOC\d+) \| (.*) \| (\w+) \|$", (DOCS / "how-to/doctor.md").read_text(), re.MULTILINE)
    assert rows == [(check.code, check.title, check.severity) for check in CHECKS]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(CHECKOUT)))
def test_links_lead_somewhere_and_files_named_exist(page: Path) -> None:
    for target in _links(page):
        address = urlsplit(target)
        if address.scheme:
            assert address.scheme == "https", target
            assert re.fullmatch(r"[a-z0-9.-]+\.[a-z]+", address.netloc), target
            continue
        other = page.parent / address.path if address.path else page
        assert other.exists(), target
        if address.fragment:
            assert address.fragment in _anchors(other), target
    for target in re.findall(r"`((?:docs|templates|tests|site-configs|slurm_colloc)/[\w./-]*)`", page.read_text()):
        assert (CHECKOUT / target).exists(), target


_PRINTED = [*sorted((CHECKOUT / "tests/golden/printed").iterdir()), *(CHECKOUT / "tests/golden").glob("*.txt")]


def _prose(page: Path) -> str:
    """Return what a page says, without its code and where its links lead."""
    children = (child for token in tokens(page) for child in token.children or ())
    return "".join(child.content if child.type == "text" else " " for child in children)


def _links(page: Path) -> list[str]:
    inline = (child for token in tokens(page) for child in token.children or ())
    return [str(child.attrs["href"]) for child in inline if child.type == "link_open"]


def _anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub and Sphinx give the headings of a page."""
    found = tokens(page)
    headings = (after.content for token, after in pairwise(found) if token.type == "heading_open")
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_is_in_the_index() -> None:
    listed = {(DOCS / target).resolve() for target in _links(DOCS / "index.md")}
    assert listed >= {path.resolve() for path in DOCS.rglob("*.md") if path.name != "index.md"}


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


def test_one_word_for_one_thing() -> None:
    rows = re.findall(
        r"^\| (?!word |---)(.+?) \| .+ \| (.*)\|$", (DOCS / "reference/glossary.md").read_text(), re.MULTILINE
    )
    assert 0 < len(rows) <= 40
    others = "|".join(re.escape(word) for _, said in rows for word in said.strip().split(", ") if word)
    pages_said = {page: _prose(page) for page in PAGES if page.name != "glossary.md"}
    # Below the titles, which are names of tests.
    printed_said = {path: re.sub(r"(?m)^## .*", "", path.read_text()) for path in [*_PRINTED]}
    found = [
        (path.name, said[max(0, match.start() - 40) : match.end() + 20])
        for path, said in (pages_said | printed_said).items()
        for match in re.finditer(rf"(?<![\w-])(?:{others})s?(?![\w-])", said)
    ]
    assert found == []


def test_readme_is_short() -> None:
    assert len((CHECKOUT / "README.md").read_text().splitlines()) <= 80

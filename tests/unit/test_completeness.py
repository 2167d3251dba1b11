# SPDX-License-Identifier: Apache-2.0
"""What CONTRIBUTING.md asks of whoever adds something: nothing else would notice that it is missing."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import yaml

from slurm_colloc import __version__
from slurm_colloc.audit.rules import RULES
from slurm_colloc.core.model import SharingMode

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGE = CHECKOUT / "slurm_colloc"
SOURCES = [*sorted((PACKAGE / "sources").glob("[!_]*.py")), PACKAGE / "store/text_rows.py"]


def called(path: Path) -> set[str]:
    """Return the names that are used in a file: of functions, attributes and what it imports."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {node.id for node in nodes if isinstance(node, ast.Name)}
    return names | {node.attr for node in nodes if isinstance(node, ast.Attribute)}


@pytest.mark.parametrize("code", sorted(RULES))
def test_every_rule_has_tests_of_its_own(code: str) -> None:
    tests = (CHECKOUT / f"tests/unit/test_{code.lower()}.py").read_text()
    assert "def test_" in tests
    assert "tmp_path" in tests, "none asks a real store"


def test_every_parser_of_a_source_is_attacked() -> None:
    parsers = {
        node.name
        for source in SOURCES
        for node in ast.parse(source.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("parse_")
    }
    assert len(parsers) > 8
    assert parsers - called(CHECKOUT / "tests/fuzz_targets.py") == {"parse_limit"}  # by sacct-taken, as a column


def test_every_template_of_a_script_is_rendered() -> None:
    shared = {
        "sample",
        "late",
        "restart",
        "end",
        "exported",
        "counted",
        "set",
        "unasked",
    }  # with any mode, and by the templates of two
    templates = {path.name.removesuffix(".sbatch.j2") for path in (CHECKOUT / "templates").glob("*.sbatch.j2")}
    assert templates == {*map(str, SharingMode), *shared}
    for name in sorted(shared):
        users = [*(CHECKOUT / "templates").glob("*.j2"), PACKAGE / "submit/render.py"]
        assert any(f'"{name}' in path.read_text() for path in users), name


def test_a_release_has_one_version() -> None:
    cited = yaml.safe_load((CHECKOUT / "CITATION.cff").read_text())
    assert cited["version"] == __version__
    assert f"\n## {__version__} (" in (CHECKOUT / "CHANGELOG.md").read_text()


def test_workflows_call_what_the_makefile_has() -> None:
    jobs = yaml.safe_load((CHECKOUT / ".github/workflows/check.yml").read_text())["jobs"]
    said = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    targets = {line.split()[1] for line in said if line.startswith("make ")}
    assert targets == {"check", "test-python", "test-oldest"}
    assert targets < set(re.findall(r"(?m)^([a-z-]+):", (CHECKOUT / "Makefile").read_text()))

# SPDX-License-Identifier: Apache-2.0
"""Every exit status is a documented one, and each documented one occurs."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from slurm_colloc.core.errors import CollocError, Status
from tests.pages import DOCS

CLI = Path(__file__).resolve().parents[2] / "slurm_colloc" / "cli"
ENDS = ("Exit", "exit", "_exit", "SystemExit")


def trees(pattern: str) -> Iterator[ast.Module]:
    for path in sorted(CLI.glob(pattern)):
        yield ast.parse(path.read_text())


def statuses(tree: ast.Module) -> set[str]:
    found = [one for one in ast.walk(tree) if isinstance(one, ast.Attribute)]
    return {one.attr for one in found if getattr(one.value, "id", "") == "Status"}


def test_colloc_ends_by_a_status_that_has_a_name() -> None:
    calls = [
        node
        for tree in (*trees("colloc/*.py"), *trees("sampling.py"))
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) in ENDS
    ]
    assert len(calls) > 10
    for call in calls:
        assert not [one for one in ast.walk(call) if isinstance(one, ast.Constant)], ast.unparse(call)


def test_each_status_of_colloc_occurs_and_is_documented() -> None:
    named = {name for tree in trees("colloc/*.py") for name in statuses(tree)}
    kinds: list[type[CollocError]] = [CollocError, *CollocError.__subclasses__()]
    assert named | {kind.exit_status.name for kind in kinds} == {status.name for status in Status}
    shown = (DOCS / "reference/exit-status.md").read_text()
    assert re.findall(r"^- `(\d+)`$", shown, re.MULTILINE) == [str(status.value) for status in Status]


def test_csub_returns_what_its_page_says() -> None:
    returned = {
        node.value.value
        for tree in trees("csub*.py")
        for node in ast.walk(tree)
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Constant) and type(node.value.value) is int
    }
    page = (DOCS / "reference/csub.md").read_text().partition("\n## Exit status\n")[2].partition("\n## ")[0]
    assert {int(one) for one in re.findall(r"^- `(\d+)`$", page, re.MULTILINE)} == returned - {0} | {130}

# SPDX-License-Identifier: Apache-2.0
"""docs/explanation/architecture.md: the layers are those that are kept, and what it says is in a room is there."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGE = CHECKOUT / "slurm_colloc"
TEXT = (CHECKOUT / "docs/explanation/architecture.md").read_text()
ROWS = [line.strip("|").split("|", 1) for line in TEXT.splitlines() if line.startswith("| `")]


def named(rooms: str, what: str) -> list[tuple[str, list[str]]]:
    """Return each name in a row's text, with the rooms it may be in."""
    folders = [room.rstrip("/") for room in re.findall(r"`([^`]+/)`", rooms)]
    return [(name.rstrip("/"), folders) for name in re.findall(r"`([^`]+)`", what)]


def is_there(name: str, folders: list[str]) -> bool:
    stems = [name, *(f"{folder}/{name}" for folder in folders)]
    return any((PACKAGE / f"{stem}{suffix}").exists() for stem in stems for suffix in ("", ".py"))


def test_the_layers_are_those_that_are_kept() -> None:
    contracts = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    [told] = re.findall(r"kept by import-linter:\n`([^`]+)`, and within core `([^`]+)`", TEXT)
    assert [" ".join(layers.split()) for layers in told] == [" > ".join(one["layers"]) for one in contracts]


def test_every_room_is_in_the_table_and_no_other() -> None:
    besides = ("__init__.py", "__pycache__", "py.typed")
    there = {path.name + "/" * path.is_dir() for path in PACKAGE.iterdir() if path.name not in besides}
    assert there == {room for rooms, _ in ROWS for room in re.findall(r"`([^`]+)`", rooms)}


@pytest.mark.parametrize(("name", "folders"), [one for row in ROWS for one in named(*row)])
def test_what_a_room_is_said_to_have_is_there(name: str, folders: list[str]) -> None:
    assert is_there(name, folders)


def test_the_picture_names_what_there_is() -> None:
    picture = TEXT.split("```")[1]
    names = re.findall(r"\b[a-z]+/[a-z_]+\b", picture)
    assert len(names) > 10
    assert [name for name in names if not is_there(name, [])] == []

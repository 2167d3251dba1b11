# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the unit tests."""

import os
import re
import tempfile
from pathlib import Path

import pytest

from slurm_colloc.core.config import SiteConfig
from tests.unit.golden import Printed
from tests.unit.made import site
from tests.unit.shell import Shell

CHECKOUT = str(Path(__file__).parents[2])


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SiteConfig:
    """Return a site with a history, and a user without one."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    (tmp_path / "state" / "history").mkdir(parents=True)
    plain = site()
    return plain._replace(paths=plain.paths._replace(state=str(tmp_path / "state")))


@pytest.fixture
def printed(request: pytest.FixtureRequest, tmp_path: Path) -> Printed:
    """Return what compares texts with the golden file of a command; folders of this run are shown by fixed words."""
    name = request.node.originalname.removeprefix("test_").replace("_", " ")
    home = os.environ["HOME"]

    def plain(text: str) -> str:
        for folder, word in ((str(tmp_path), "/tmp/test"), (home, "/home/ann"), (CHECKOUT, "/checkout")):
            text = text.replace(folder, word)
        return re.sub(rf"{re.escape(tempfile.gettempdir())}/tmp\w{{8}}\b", "/tmp/test", text)

    return Printed(name, plain)

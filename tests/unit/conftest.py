# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the unit tests."""

from pathlib import Path

import pytest

from tests.unit.shell import Shell


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)

# SPDX-License-Identifier: Apache-2.0
"""No part of a golden file is left of a test that is gone."""

import re
from pathlib import Path

from tests.unit.golden import GOLDEN, parts


def test_each_part_is_of_a_test_that_is_there() -> None:
    sources = (path.read_text() for path in Path(__file__).parent.glob("test_*.py") if path != Path(__file__))
    tests = {name for source in sources for name in re.findall(r"^def test_(\w+)\(.*", source, re.MULTILINE)}
    titles = {title for path in (GOLDEN / "printed").iterdir() for title in parts(f"printed/{path.name}")}
    assert titles
    assert {re.sub(r"(, \d+)?(: .*)?$", "", title).replace(" ", "_") for title in titles} <= tests

# SPDX-License-Identifier: Apache-2.0
"""What is printed, compared whole with a file of tests/golden. COLLOC_GOLDEN=write writes it, to be read then."""

import os
from collections.abc import Iterable
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "golden"


def compare(name: str, printed: str | bytes) -> None:
    """Assert that a golden file holds what was printed, byte for byte."""
    path = GOLDEN / name
    text = printed.encode() if isinstance(printed, str) else printed
    if os.environ.get("COLLOC_GOLDEN") == "write":
        path.write_bytes(text)
    assert text.decode() == path.read_text()


def titled(parts: Iterable[tuple[str, str]]) -> str:
    """Return texts of one file, each below its title."""
    return "".join(f"## {title}\n\n{text.rstrip()}\n\n" for title, text in parts)

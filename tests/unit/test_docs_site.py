# SPDX-License-Identifier: Apache-2.0
"""The documentation as a site: it builds without a warning, without the network, and the same each time."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.doc_examples import CHECKOUT, PAGES


def built(folder: Path) -> dict[str, bytes]:
    """Build into a folder, and return its files by name."""
    argv = ["-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-d", str(folder / "trees")]
    done = subprocess.run(
        [sys.executable, *argv, str(CHECKOUT / "docs"), str(folder / "html")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    files = (path for path in (folder / "html").rglob("*") if path.is_file())
    return {str(path.relative_to(folder / "html")): path.read_bytes() for path in files}


def test_it_builds_without_a_warning_and_the_same_each_time(tmp_path: Path) -> None:
    pages = built(tmp_path / "a")
    assert built(tmp_path / "b") == pages
    docs = {
        path.relative_to(CHECKOUT / "docs").with_suffix(".html") for path in PAGES if CHECKOUT / "docs" in path.parents
    }
    assert {str(path) for path in docs} <= pages.keys()
    shown = pages["index.html"].decode()
    # Each heading of index.md with its pages is in the sidebar of every page.
    assert re.findall(r'class="caption-text">([^<]+)<', shown)[:2] == ["For users", "For administrators"]
    # A page loads nothing from elsewhere.
    loads = {
        address for text in pages.values() for address in re.findall(rb'(?:src|<link[^>]* href)="(https?:[^"]+)"', text)
    }
    assert loads == set()

# SPDX-License-Identifier: Apache-2.0
"""Programs of this machine that a test drives, and programs of a test's own."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from slurm_colloc.cli.colloc import main


def need_program(*names: str) -> str:
    """Return the first of these programs that is there; skip without, or fail where COLLOC_REQUIRE_CLUSTER=1."""
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        reason = f"no {' or '.join(names)} here: run tests/cluster/bootstrap.sh"
        if os.environ.get("COLLOC_REQUIRE_CLUSTER") == "1":
            pytest.fail(f"COLLOC_REQUIRE_CLUSTER=1, but {reason}", pytrace=False)
        pytest.skip(reason)
    return found


def executable(path: Path, text: str) -> Path:
    """Write a program that all may run."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def program(folder: Path, name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a shell script called ``name`` before all programs on PATH."""
    executable(folder / "bin" / name, "#!/bin/sh\n" + script)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")


def colloc(*argv: str) -> int:
    """Run colloc in this process and return its exit status."""
    before, sys.argv = sys.argv, ["colloc", *argv]
    try:
        main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    finally:
        sys.argv = before

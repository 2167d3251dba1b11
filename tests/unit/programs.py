# SPDX-License-Identifier: Apache-2.0
"""Programs of this machine that a test drives, and programs of a test's own."""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TextIO
from unittest import mock

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


@contextmanager
def umask(mode: int) -> Iterator[None]:
    """Have this umask."""
    before = os.umask(mode)
    try:
        yield
    finally:
        os.umask(before)


def program(folder: Path, name: str, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a shell script called ``name`` before all programs on PATH."""
    executable(folder / "bin" / name, "#!/bin/sh\n" + script)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")


class Colloc:
    """colloc in this process: a call returns its exit status, and keeps what it said."""

    def __init__(self) -> None:
        self.out = self.err = ""

    def __call__(self, *argv: str) -> int:
        with (
            mock.patch.object(sys, "argv", ["colloc", *argv]),
            _kept(sys.stdout, redirect_stdout) as out,
            _kept(sys.stderr, redirect_stderr) as err,
        ):
            try:
                main()
            except SystemExit as ended:
                status = ended.code if isinstance(ended.code, int) else 1
        self.out, self.err = out.getvalue().decode(), err.getvalue().decode()
        return status


@contextmanager
def _kept(stream: TextIO, redirect: Callable[[TextIO], AbstractContextManager[TextIO]]) -> Iterator[io.BytesIO]:
    """Keep what is written to a standard stream, unless a test has put a terminal in its place; pytest shows it too."""
    kept = io.BytesIO()
    if stream.isatty() and stream not in (sys.__stdout__, sys.__stderr__):
        yield kept
        return
    text = io.TextIOWrapper(kept, "utf-8", newline="")
    with redirect(text):
        yield kept
    text.detach()
    stream.write(kept.getvalue().decode())


colloc = Colloc()


def timeless(text: str) -> str:
    """Return what was printed with a word for each time, which is another in each run."""
    return re.sub(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d)?(\.\d+)?([+-]\d\d:\d\d)?)?", "TIME", text)

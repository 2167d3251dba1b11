# SPDX-License-Identifier: Apache-2.0
"""Terminals that a test reads: pseudo-terminals in the place of a standard stream of this process."""

import fcntl
import os
import pty
import struct
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from threading import Thread

import pytest


class Screen:
    """What was written to a terminal, and how many columns it has."""

    def __init__(self, columns: int) -> None:
        self._found = b""
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.stream = TextIOWrapper(os.fdopen(theirs, "wb", buffering=0), encoding="utf-8", write_through=True)
        self._reader = Thread(target=self._read)
        self._reader.start()

    @property
    def text(self) -> str:
        """Return what was written so far."""
        return self._found.decode(errors="replace").replace("\r\n", "\n")

    def _read(self) -> None:
        while True:
            try:
                part = os.read(self._ours, 65_536)
            except OSError:  # the other end is closed
                part = b""
            if not part:
                break
            self._found += part
        os.close(self._ours)

    def close(self) -> None:
        """Close it, and have all of its text."""
        self.stream.close()
        self._reader.join()


@contextmanager
def screen(monkeypatch: pytest.MonkeyPatch, stream: str, columns: int = 80) -> Iterator[Screen]:
    """Have a terminal for ``stream``, stdout or stderr; its text is there when it is closed."""
    for variable in ("COLUMNS", "NO_COLOR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    shown = Screen(columns)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(sys, stream, shown.stream)
            yield shown
    finally:
        shown.close()

# SPDX-License-Identifier: Apache-2.0
"""What systemd is told arrives at a real socket, under both kinds of name."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from slurm_colloc.core.errors import ProcessError
from slurm_colloc.observe.notify import notify
from tests.unit.golden import Printed


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_hears_what_it_is_told(abstract: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"@colloc-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(name.replace("@", "\0"))
        systemd.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        notify("READY=1\nSTATUS=8 GPUs")
        notify("WATCHDOG=1")
        assert [systemd.recv(100), systemd.recv(100)] == [b"READY=1\nSTATUS=8 GPUs", b"WATCHDOG=1"]


@pytest.mark.parametrize("address", [None, ""])
def test_without_systemd_nothing_is_said(address: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "socket", lambda *_: pytest.fail("a socket was opened"))
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    if address is not None:
        monkeypatch.setenv("NOTIFY_SOCKET", address)
    notify("READY=1")


def test_a_systemd_that_does_not_listen_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    with printed.raises("agent", ProcessError, "'WATCHDOG=1'"):
        notify("WATCHDOG=1")

# SPDX-License-Identifier: Apache-2.0
import sys
import threading

import pytest

from slurm_colloc.cli.colloc.output import say
from slurm_colloc.cli.colloc.progress import progress
from tests.unit.terminals import screen
from tests.waiting import wait_for

HIDDEN, SHOWN = "\x1b[?25l", "\x1b[?25h"  # the cursor


def test_a_person_who_waits_sees_how_far_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with screen(monkeypatch, "stderr") as shown, progress("adding [b]up", after_s=0) as step:
        step(2, 3)
        wait_for(lambda: "adding [b]up" in shown.text and "2/3" in shown.text)
        say("what is said meanwhile")
    assert "colloc: what is said meanwhile\n" in shown.text
    assert shown.text.count(HIDDEN) == shown.text.count(SHOWN) > 0
    assert shown.text.endswith("\x1b[2K"), "it is gone"


def test_an_error_leaves_the_terminal_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        with progress("x", after_s=0) as step:
            step(1, 2)
            wait_for(lambda: HIDDEN in shown.text)
            raise KeyboardInterrupt

    with screen(monkeypatch, "stderr") as shown, pytest.raises(KeyboardInterrupt):
        interrupted()
    assert shown.text.count(HIDDEN) == shown.text.count(SHOWN) > 0


def test_nobody_waits_for_what_is_soon_done(monkeypatch: pytest.MonkeyPatch) -> None:
    with screen(monkeypatch, "stderr") as shown, progress("x", after_s=600) as step:
        step(1, 2)
    assert shown.text == ""
    assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]


def test_nothing_is_shown_to_a_file(capfd: pytest.CaptureFixture[str]) -> None:
    assert not sys.stderr.isatty()
    with progress("x", after_s=0) as step:
        step(1, 2)
    assert capfd.readouterr() == ("", "")

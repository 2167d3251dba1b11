# SPDX-License-Identifier: Apache-2.0
"""What a test started ends with pytest, whoever of it is killed, and so does what it was told to make."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.processes import start_ticks
from tests.waiting import wait_for

CHECKOUT = Path(__file__).resolve().parents[2]
# A daemon in a session of its own, of no parent and no environment, and a folder; then the test waits.
TEST = """\
import os, pathlib, subprocess, time
from tests.reaper import new_folder

here = pathlib.Path(__file__).parent
daemon = "setsid sleep {seconds} & echo $! >daemon"

def test_waits():
    (here / "made").write_text(str(new_folder("reaped-", str(here))))
    if {is_mounted}:
        subprocess.run(["mount", "-t", "tmpfs", "none", (here / "made").read_text()])
    subprocess.run(["sh", "-c", daemon], cwd=here, env={{"PATH": "/usr/bin:/bin"}}, start_new_session=True)
    (here / "half").write_text(str(os.getpid()))
    (here / "half").rename(here / "pytest")
    time.sleep({wait_s})
"""


class Run:
    """A pytest of one test that has started a daemon."""

    def __init__(self, folder: Path, *argv: str, wait_s: float = 60, is_mounted: bool = False) -> None:
        self.folder = folder
        text = TEST.format(seconds=61.25, wait_s=wait_s, is_mounted=is_mounted)
        (folder / "test_it.py").write_text(text)
        (folder / "pytest.ini").touch()
        command = [
            str(Path(sys.executable).with_name("pytest")),
            "-p",
            "tests.reaper",
            "-p",
            "no:cacheprovider",
            *argv,
            ".",
        ]
        environ = os.environ | {"PYTHONPATH": str(CHECKOUT)}
        environ.pop("PYTEST_XDIST_WORKER", None)
        self.first = subprocess.Popen(
            command, cwd=folder, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, process_group=0
        )
        wait_for((folder / "pytest").exists, "the test does not run")
        self.daemon, self.pytest = (int((folder / name).read_text()) for name in ("daemon", "pytest"))
        self.made = Path((folder / "made").read_text())

    def ends(self) -> tuple[int, bytes]:
        """Wait for the end of all that holds standard error, and return how pytest ended."""
        said = self.first.communicate(timeout=30)[1]
        wait_for(lambda: start_ticks(self.daemon) is None, "the daemon runs on", 5)
        return self.first.returncode, said


KILLED: dict[str, Callable[[Run], None]] = {
    "the first": lambda run: run.first.kill(),
    "by SIGTERM": lambda run: run.first.terminate(),
    "the tests": lambda run: os.kill(run.pytest, signal.SIGKILL),
    "all of the group": lambda run: os.killpg(run.first.pid, signal.SIGKILL),
}


@pytest.mark.parametrize("kill", KILLED)
def test_nothing_stays(tmp_path: Path, kill: str) -> None:
    run = Run(tmp_path, is_mounted=os.geteuid() == 0)
    KILLED[kill](run)
    assert run.ends()[0] != 0
    assert not run.made.exists()
    assert start_ticks(run.pytest) is None


def test_a_worker_goes_too(tmp_path: Path) -> None:
    run = Run(tmp_path, "-n", "1")
    run.first.kill()
    run.ends()
    assert start_ticks(run.pytest) is None


def test_an_interrupt_reaches_the_tests(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.first.send_signal(signal.SIGINT)
    assert run.ends()[0] == pytest.ExitCode.INTERRUPTED
    assert not run.made.exists()


def test_what_is_left_at_the_end_is_told(tmp_path: Path) -> None:
    run = Run(tmp_path, wait_s=0)
    code, said = run.ends()
    assert (code, b"sleep 61.25" in said) == (0, True)
    assert run.made.exists(), "a lab in which a test failed is somebody's to look at"

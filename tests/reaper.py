# SPDX-License-Identifier: Apache-2.0
"""What the tests start ends with them, however pytest ends: a plugin of pytest, and the program that it runs under.

pytest goes on in a grandchild. The process between is a subreaper: daemons, whatever their session and user, become its
children when their own parents end. When pytest has ended, or the process that was called first, which waits, is
killed, it kills all of its children and removes the folders of `new_folder`. A lab by hand has none of this.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:  # the program starts without it
    import pytest

# The folder of a test run, whose processes inherit the name. It is removed when pytest ends by itself: where it is
# still there, the run was interrupted or killed.
RUN = "COLLOC_TEST_RUN"
# What tests have told to end may still be at it.
LEFT_WAIT_S = 3.0
KILL_WAIT_S = 10.0
_PDEATHSIG, _SUBREAPER = 1, 36
_INTERRUPTED = 2
_is_reaped = False


def new_folder(prefix: str, parent: str = "/var/tmp") -> Path:
    """Make a folder for one user of the tests, which goes with the run if that is killed."""
    made = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    if run := os.environ.get(RUN):
        (Path(run) / f"made-{made.name}").symlink_to(made)
    return made


# --- in pytest ---------------------------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder that the whole run shares, and go on under the reaper."""
    if not hasattr(config, "workerinput"):
        os.environ[RUN] = run = tempfile.mkdtemp(prefix="colloc-run-", dir="/var/tmp")
        if "pytest" in sys.argv[0]:  # not what calls pytest within itself again and again
            _go_on_below(run)


def pytest_sessionstart(session: pytest.Session) -> None:
    """Let the reaper know where tests may have mounted something."""
    if not hasattr(session.config, "workerinput"):
        base: Path = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        (Path(os.environ[RUN]) / "base").symlink_to(base)


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Leave the folder to the reaper, with all that it names, where somebody has interrupted the run."""
    if not hasattr(session.config, "workerinput") and exitstatus == _INTERRUPTED and _is_reaped:
        os.environ.pop(RUN)


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the folder that the whole run shared."""
    if not hasattr(config, "workerinput") and RUN in os.environ:
        shutil.rmtree(os.environ.pop(RUN))


def _go_on_below(run: str) -> None:
    """Return in a new grandchild; this process waits, its child becomes the reaper."""
    global _is_reaped
    first = os.getpid()
    waited_for = {signal.SIGINT, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
    if reaper := os.fork():
        _wait(reaper, waited_for)
    _prctl(_SUBREAPER, 1)
    if tests := os.fork():
        os.setsid()  # what is sent to pytest's process group does not end it
        os.execv(sys.executable, [sys.executable, "-I", __file__, str(first), str(tests), run])
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    _prctl(_PDEATHSIG, signal.SIGKILL)
    _is_reaped = True


def _wait(reaper: int, signals: set[signal.Signals]) -> NoReturn:
    """Wait for the reaper and end as it does; pass on an interrupt that no terminal has sent to pytest as well."""
    while True:
        pid, status = os.waitpid(reaper, os.WNOHANG)
        if pid:
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
        seen = signal.sigwaitinfo(signals)
        if seen.si_signo == signal.SIGINT and seen.si_code <= 0:
            os.kill(reaper, signal.SIGINT)


# --- the reaper --------------------------------------------------------------------------------------------------


class _Orphaned(Exception):
    """The process that was called first is gone."""


def main(first: int, tests: int, run: Path) -> int:
    """Wait for pytest, leave nothing of it, and return its exit status."""
    signal.signal(signal.SIGINT, lambda *_: os.kill(tests, signal.SIGINT))
    signal.signal(signal.SIGTERM, _orphaned)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # as it was begun, an interrupt waited for this
    try:
        _prctl(_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != first:
            raise _Orphaned
        code = _outlived(tests)
    except _Orphaned:
        code = 128 + signal.SIGKILL
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not run.exists():
        _tell_of_left()
    _kill_all()
    if run.exists():
        _remove(run)
    return code


def _orphaned(*_: object) -> NoReturn:
    raise _Orphaned


def _outlived(tests: int) -> int:
    """Wait until pytest has ended, also for orphans that end before: a test may look for them."""
    while True:
        pid, status = os.waitpid(-1, 0)
        if pid == tests:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code


def _tell_of_left() -> None:
    """Name what tests that ended by themselves have left running."""
    until = time.monotonic() + LEFT_WAIT_S
    while (left := list(_children())) and time.monotonic() < until:
        time.sleep(0.05)
    for pid in left:
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        print(f"a test left this running: {argv[:200]}", file=sys.stderr)


def _kill_all() -> None:
    """Kill each child, and what becomes a child by that, until there is none; only a child's pid is nobody else's."""
    until = time.monotonic() + KILL_WAIT_S
    while (left := list(_children())) and time.monotonic() < until:
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _children() -> Iterator[int]:
    """Yield the children that have not ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return
    yield from map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split())


def _remove(run: Path) -> None:
    """Remove what a run that was killed has made; pytest's own folders stay, without what is mounted there."""
    folders = {link: str(link.readlink()) for link in run.iterdir() if link.is_symlink()}
    mounted = [line.split(" ")[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for point in reversed(mounted):
        if f"{point}/".startswith(tuple(f"{folder}/" for folder in folders.values())):
            subprocess.run(["umount", "--lazy", point], check=False)
    for link, folder in folders.items():
        if link.name != "base":
            shutil.rmtree(folder, ignore_errors=True)
    shutil.rmtree(run, ignore_errors=True)


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None).prctl(option, value, 0, 0, 0):
        raise OSError(f"prctl {option} failed")


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])))

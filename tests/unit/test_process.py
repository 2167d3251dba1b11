# SPDX-License-Identifier: Apache-2.0
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from slurm_colloc.core.clock import with_timeout
from slurm_colloc.core.errors import ProcessError, UnansweredError
from slurm_colloc.core.process import ask, replace, run, spawn
from slurm_colloc.core.shipped import folder
from tests.waiting import wait_for


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_run_returns_what_was_said() -> None:
    done = run(python("import sys; print('a'); print('b', file=sys.stderr); sys.exit(3)"), 30)
    assert done == (3, b"a\n", b"b\n")
    assert run(python("import sys; print(len(sys.stdin.read()))"), 30).stdout == b"0\n"
    assert run(python("import os; os.kill(os.getpid(), 9)"), 30).status == -9


def test_time_is_bounded() -> None:
    with pytest.raises(ProcessError, match=r"did not answer within 0\.2 s"):
        run(python("import time; time.sleep(60)"), 0.2)


def test_what_cannot_start() -> None:
    with pytest.raises(ProcessError, match="'nosuch'"):
        run(["nosuch"], 1)
    with pytest.raises(ProcessError, match="cannot be started"):
        run(["x\0y"], 1)
    with pytest.raises(ProcessError, match="cannot be started"):
        replace(["/no/such/program"], {})
    # A process that goes on must not die of a pipe that somebody closed.
    assert signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN
    before = os.listdir("/proc/self/fd")
    for tied in (False, True):
        for program in ("/no/such/program", "/", "x\0y"):
            with pytest.raises(ProcessError, match="cannot be started"):
                spawn([program], {}, None, tied=tied)
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("name", ["pipe", "fork", "posix_spawn", "memfd_create"])
def test_a_limit_leaves_nothing_started(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    before = os.listdir("/proc/self/fd")
    monkeypatch.setattr(os, name, refused)
    with pytest.raises(ProcessError, match="cannot be started"):
        spawn(["/bin/true"], {}, None, tied=True) if name == "fork" else run(["/bin/true"], 30)
    assert os.listdir("/proc/self/fd") == before


def test_no_room_for_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("_thread.start_new_thread", refused)
    with pytest.raises(ProcessError, match="deciding: can't"):
        with_timeout(1, "deciding", lambda: 1)


TIED = """
import fcntl, os, sys, time
from slurm_colloc.core.process import spawn
ask = fcntl.fcntl
def late(descriptor, command, *argument):
    if command == fcntl.F_SETOWN and sys.argv[1] == "early":
        os.write(1, str(os.getpid()).encode())
        time.sleep(1)
    return ask(descriptor, command, *argument)
fcntl.fcntl = late
program = ["/bin/sh", "-c", "echo ran >>$RAN; exec sleep 60"]
child = spawn(program, {"RAN": sys.argv[2], "PATH": os.environ["PATH"]}, None, tied=True)
os.write(1, str(child.pid).encode())
time.sleep(60)
"""


@pytest.mark.parametrize("when", ["early", "late"])
def test_a_tied_program_dies_with_whoever_started_it(tmp_path: Path, when: str) -> None:
    """Also where that died between the fork and the request for the signal: then it is not even begun."""
    ran = tmp_path / "ran"
    starter = spawn([sys.executable, "-c", TIED, when, str(ran)], dict(os.environ), None)
    child = int(os.read(starter.stdout, 100))
    if when == "late":
        wait_for(ran.exists, "it was not begun", 20)
    os.kill(starter.pid, signal.SIGKILL)
    os.waitpid(starter.pid, 0)
    wait_for(lambda: ended(child), "it goes on", 20)
    assert ran.exists() is (when == "late")


def ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # it ended before its file was opened, or before that was read
        return True


def test_ask_names_the_last_line() -> None:
    assert ask(python("print(1)"), 30) == b"1\n"
    with pytest.raises(ProcessError, match="ended with status 2: last"):
        ask(python("import sys; print('first\\nlast', file=sys.stderr); sys.exit(2)"), 30)
    with pytest.raises(ProcessError, match="nothing on standard error"):
        ask(python("raise SystemExit(1)"), 30)


def test_spawn_passes_environment() -> None:
    child = spawn(python("import os; print(os.environ['A'])"), {"A": "é"}, None)
    assert os.read(child.stdout, 100) == "é\n".encode()
    assert os.waitpid(child.pid, 0)[1] == 0


def test_shipped_folders() -> None:
    assert {"mps.sbatch.j2", "sample.sbatch.j2"} <= set(os.listdir(folder("templates")))
    assert os.listdir(folder("site-configs"))
    with pytest.raises(FileNotFoundError, match="'other' is missing"):
        folder("other")


LEAVES = "import subprocess, sys; subprocess.Popen(['sleep', '20']); "


def test_what_a_program_leaves_behind_is_not_waited_for() -> None:
    began_s = time.monotonic()
    done = run(python(LEAVES + "print('a' * 100000); print(sys.stdin.read(), file=sys.stderr)"), 30, {}, b"b")
    assert done == (0, b"a" * 100000 + b"\n", b"b\n")
    assert run(python(LEAVES + "sys.exit(3)"), 30, {}).status == 3
    spams = "subprocess.Popen(['timeout', '20', 'yes'])"
    assert run(python(LEAVES + spams), 30, dict(os.environ)).status == 0
    assert time.monotonic() - began_s < 10


@pytest.mark.parametrize("code", ["", "import os; os.close(1); os.close(2); "])
def test_the_time_of_a_program_by_itself_is_bounded(code: str) -> None:
    began_s = time.monotonic()
    with pytest.raises(UnansweredError, match=r"did not answer within 0\.5 s"):
        run(python(code + "import time; time.sleep(60)"), 0.5, {})
    assert time.monotonic() - began_s < 20
    with pytest.raises(ProcessError, match="cannot be started"):
        run(["/no/such/program"], 1, {})


def test_a_program_may_be_called_by_another_name_than_its_path() -> None:
    shell = ["/bin/sh", "-c", 'tr "\\0" "\\n" <"/proc/$$/cmdline" | head -1']
    child = spawn(shell, dict(os.environ), None, "sbatch")
    assert os.read(child.stdout, 100) == b"sbatch\n"
    os.waitpid(child.pid, 0)
    assert run(shell, 30, dict(os.environ), called="sbatch").stdout == b"sbatch\n"
    code = f"import os; from slurm_colloc.core.process import replace; replace({shell}, os.environ, 'sbatch')"
    assert run(python(code), 30).stdout == b"sbatch\n"

# SPDX-License-Identifier: Apache-2.0
import os
import signal
import sys
import time

import pytest

from slurm_colloc.errors import ProcessError, UnansweredError
from slurm_colloc.process import ask, replace, run, spawn
from slurm_colloc.shipped import folder


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
    with pytest.raises(ProcessError, match="there is no 'nosuch' on PATH"):
        run(["nosuch"], 1)
    with pytest.raises(ProcessError, match="cannot be started"):
        run(["x\0y"], 1)
    with pytest.raises(ProcessError, match="cannot be started"):
        replace(["/no/such/program"], {})
    # A process that goes on must not die of a pipe that somebody closed.
    assert signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN
    with pytest.raises(ProcessError, match="cannot be started"):
        spawn(["/no/such/program"], {}, None)


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
    code = f"import os; from slurm_colloc.process import replace; replace({shell}, os.environ, 'sbatch')"
    assert run(python(code), 30).stdout == b"sbatch\n"

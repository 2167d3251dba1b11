# SPDX-License-Identifier: Apache-2.0
import os
import re
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_colloc.core.errors import ProcessError
from slurm_colloc.core.model import Load
from slurm_colloc.core.process import launch
from slurm_colloc.pack import mps_daemon as module
from slurm_colloc.pack.mps_daemon import Mps, short_folder
from tests.fakes import mps_control
from tests.fakes.mps_control import Ill
from tests.unit.golden import Printed

LOAD = Load(3000, 20.0)


@pytest.fixture
def own(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The environment of a job on a node with MPS; in its TMPDIR a socket fits, as in pytest's it does not."""
    mps_control.install(tmp_path)
    with tempfile.TemporaryDirectory(prefix="t-") as short:
        yield {"PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": short}


@pytest.fixture
def daemon(own: dict[str, str]) -> Iterator[Mps]:
    started = Mps.start(short_folder("7", own), "GPU-1", own)
    yield started
    started.quit()


def ill(own: dict[str, str], *words: Ill) -> dict[str, str]:
    return {**own, "FAKE_MPS": ",".join(words)}


def working(folder: str) -> list[int]:
    return module._working(f"{folder}/pipe")


def sleeper() -> int:
    pid = os.fork()
    if not pid:
        os.execvp("sleep", ["sleep", "60"])
    return pid


@pytest.fixture
def tasks() -> Iterator[list[int]]:
    pids = [sleeper() for _ in range(3)]
    yield pids
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_a_daemon_lives_in_private_folders_until_it_is_quit(own: dict[str, str]) -> None:
    folder = short_folder("7", own)
    assert folder.startswith(f"{own['TMPDIR']}/csub-mps-7-")
    daemon = Mps.start(folder, "GPU-1", {**own, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "14"})
    assert [stat.S_IMODE(os.stat(path).st_mode) for path in (folder, daemon.pipe, daemon.log)] == [0o700] * 3
    assert daemon.alive()
    assert daemon.clients() == set()
    (pid,) = working(folder)
    environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    assert b"CUDA_VISIBLE_DEVICES=GPU-1" in environ
    # Slurm sets it for a task; the daemon would limit everybody by it.
    assert not [item for item in environ if item.startswith(b"CUDA_MPS_ACTIVE")]
    daemon.quit()
    assert not daemon.alive()
    assert working(folder) == []
    assert not os.path.exists(folder)
    daemon.quit()  # again: nothing


def test_only_clients_of_this_daemon_are_counted_and_terminated(daemon: Mps, tasks: list[int]) -> None:
    environment = daemon.environment(LOAD, {})
    for pid in tasks[:2]:
        mps_control.join(environment, pid)
    assert daemon.clients() == set(tasks[:2])
    daemon.terminate([tasks[0], tasks[2], 1])
    daemon.terminate([])
    log = Path(daemon.log, "control.log").read_text()
    assert [line.split()[-1] for line in log.splitlines() if "Terminated" in line] == [str(tasks[0])]


def test_quit_ends_the_server_beneath_its_clients(daemon: Mps, tasks: list[int]) -> None:
    mps_control.join(daemon.environment(LOAD, {}), tasks[0])
    assert len(working(daemon.folder)) == 2
    daemon.quit()
    assert working(daemon.folder) == []


def test_a_task_is_told_its_limits_unless_the_user_set_them(daemon: Mps) -> None:
    assert daemon.environment(LOAD, {}) == {
        "CUDA_MPS_PIPE_DIRECTORY": daemon.pipe,
        "CUDA_MPS_LOG_DIRECTORY": daemon.log,
        "CUDA_VISIBLE_DEVICES": "0",
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=3000M",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    }
    users = {
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=1G",
        "XLA_PYTHON_CLIENT_PREALLOCATE": "true",
        "CUDA_VISIBLE_DEVICES": "3",
        "CUDA_MPS_PIPE_DIRECTORY": "/tmp/nvidia-mps",
        "HOME": "/home/a",
    }
    told = daemon.environment(LOAD, users)
    assert [told[name] for name in list(users)[:2]] == ["0=1G", "true"]
    # Slurm sets the one in every job, and with the other they would miss the daemon: nobody may change these.
    assert (told["CUDA_VISIBLE_DEVICES"], told["CUDA_MPS_PIPE_DIRECTORY"]) == ("0", daemon.pipe)
    assert "HOME" not in told


def test_a_slow_daemon_is_waited_for(own: dict[str, str]) -> None:
    daemon = Mps.start(short_folder("7", own), "0", ill(own, Ill.SLOW))
    assert daemon.alive()
    daemon.quit()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (Ill.FAILS, "ended with status 1: "),
        (Ill.NO_PID_FILE, "'nvidia-cuda-mps-control.pid'.*: .*Start"),
        (Ill.DEAF, r"\b1\.5\b"),
    ],
)
def test_of_a_daemon_that_does_not_start_nothing_is_left(
    own: dict[str, str], words: Ill, message: str, monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    monkeypatch.setattr(module, "_START_S", 1.5)
    monkeypatch.setattr(module, "_ANSWER_S", 1.5)
    folder = short_folder("7", own)
    with pytest.raises(ProcessError, match=f"(?s){message}") as raised:
        Mps.start(folder, "0", ill(own, words))
    printed("pack", re.sub(r"\[.* Control \d+\]", "[TIME]", str(raised.value)), case=words.name)
    assert working(folder) == []
    assert os.listdir(own["TMPDIR"]) == []


def test_a_node_without_mps_says_so(own: dict[str, str], printed: Printed) -> None:
    with printed.raises("pack", ProcessError):
        Mps.start(short_folder("7", own), "0", {**own, "PATH": "/nonexistent"})
    assert os.listdir(own["TMPDIR"]) == []


def test_a_daemon_that_died_is_noticed_and_its_server_is_ended(daemon: Mps, tasks: list[int]) -> None:
    mps_control.join(daemon.environment(LOAD, {}), tasks[0])
    os.kill(int(Path(daemon.pipe, "nvidia-cuda-mps-control.pid").read_text()), signal.SIGKILL)
    assert module._wait(lambda: not daemon.alive(), 5)
    assert daemon.clients() is None
    daemon.terminate(tasks)
    daemon.quit()
    assert working(daemon.folder) == []
    assert not os.path.exists(daemon.folder)


def test_a_daemon_that_does_not_quit_is_killed(own: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_ANSWER_S", 1.5)
    daemon = Mps.start(short_folder("7", own), "0", ill(own, Ill.HANGS))
    began = time.monotonic()
    daemon.quit()
    assert time.monotonic() - began < 12
    assert working(daemon.folder) == []
    assert not os.path.exists(daemon.folder)


@pytest.mark.parametrize("length", [80, 81])
def test_a_path_too_long_for_a_socket_is_not_used(own: dict[str, str], length: int) -> None:
    base = Path(f"{own['TMPDIR']}/".ljust(length - len("/csub-mps-7-12345678/pipe"), "a"))
    base.mkdir()
    daemon = Mps.start(short_folder("7", {"TMPDIR": str(base)}), "0", own)
    assert daemon.folder.startswith(f"{base}/" if length == 80 else "/tmp/csub-mps-7-")
    daemon.quit()
    assert os.listdir(base) == []


@pytest.mark.parametrize("tmpdir", ["/nonexistent", "relative", ""])
def test_where_tmpdir_cannot_serve_another_is_taken(tmpdir: str) -> None:
    folder = short_folder("7", {"TMPDIR": tmpdir})
    assert os.path.dirname(folder) == "/tmp"
    shutil.rmtree(folder)


def test_where_everything_is_full_each_place_is_named(
    own: dict[str, str], monkeypatch: pytest.MonkeyPatch, printed: Printed
) -> None:
    def full(folder: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_probe", full)
    with pytest.raises(ProcessError, match=r"'/.*/t-\w+': .*'/tmp': .*'/dev/shm': ") as raised:
        short_folder("7", own)
    printed("pack", str(raised.value).replace(own["TMPDIR"], "/scratch/t"))
    assert os.listdir(own["TMPDIR"]) == []


def test_an_answer_that_refuses_is_no_number() -> None:
    assert module._numbers(b"12\n 13 \nServer 14 not found\n\n") == {12, 13}


def test_a_daemons_output_is_not_waited_for(tmp_path: Path) -> None:
    began = time.monotonic()
    done = launch(["sh", "-c", "echo up; echo down >&2; sleep 5 & exit 3"], 30, os.environ)
    assert done == (3, b"", b"up\ndown\n")
    assert time.monotonic() - began < 4

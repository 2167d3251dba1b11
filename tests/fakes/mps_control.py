# SPDX-License-Identifier: Apache-2.0
"""An nvidia-cuda-mps-control without a GPU: ``install`` puts it beneath a PATH, ``join`` makes a process a client.

What it says and does is what tests/gpu/mps.py and users.py recorded of the real one. FAKE_MPS in its environment makes
it misbehave: any of the words of ``Ill``, with commas between them.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

NAME = "nvidia-cuda-mps-control"


class Ill(StrEnum):
    """How it misbehaves."""

    FAILS = "fails"  # -d ends with an error
    SLOW = "slow"  # the pid file comes half a second after -d has ended
    NO_PID_FILE = "no pid file"
    DIES = "dies"  # as soon as it has been asked its first question
    DEAF = "deaf"  # takes commands and answers none
    HANGS = "hangs at quit"


class Answer(NamedTuple):
    """What the control program prints, and how it ends."""

    stdout: str = ""
    stderr: str = ""
    status: int = 0


# What driver 580.159 was seen to say on an H100. {server}, {client} and {value} are filled in. A refusal is an answer
# like any other: status 0, on standard output.
ANSWERS = {
    "no daemon": Answer(stderr="Cannot find MPS control daemon process\n", status=1),
    "already running": Answer("An instance of this daemon is already running\n", status=1),
    "fails": Answer(status=1),  # on a pipe folder whose path is too long, for one: not a word, not even in its log
    "nothing": Answer(),
    "server status": Answer("ACTIVE\n"),
    "no server": Answer("Server {server} not found\n"),
    "terminated": Answer("0\n"),
    "not terminated, no client": Answer("201\n"),
    "not terminated, no server": Answer("Server {server} not found\nServer {server} not found!\n1\n"),
    "threads": Answer("{value:.1f}\n"),
    "unknown": Answer('Unknown command "{value}"\n'),
    "not its user": Answer(
        "Insufficient privileges for UID {value}. Control deamon settings can only be modified by the user who started "
        "it or by the root user.\n"
    ),
    "may not quit": Answer("Not enough privilege to execute quit command\n"),
}
_PRIVILEGED = "control_privileged"
CONTEXT = "context-of-cuda"
_PR_SET_PDEATHSIG = 1


def install(folder: Path) -> None:
    """Make ``folder`` one to put first on PATH, with an nvidia-smi beside it."""
    install_smi(folder)
    program = folder / NAME
    # By itself, so that it runs where nobody sees the checkout or its environment; another release's Debian has its own
    # python3 and not this one's.
    python = os.path.realpath(sys.executable)
    python = "/usr/bin/python3" if python == os.path.realpath("/usr/bin/python3") else python
    program.write_text(f"#!{python} -I\n{Path(__file__).read_text()}")
    program.chmod(0o755)


def install_smi(folder: Path) -> None:
    """Make an nvidia-smi in ``folder`` that knows those as computing that have CONTEXT open."""
    program = folder / "nvidia-smi"
    program.write_text(
        '#!/bin/sh\nfor path in /proc/[0-9]*/fd/*; do case $(readlink "$path") in'
        f' */{CONTEXT}) pid=${{path#/proc/}}; echo "GPU-1, ${{pid%%/*}}, 100";; esac; done 2>/dev/null\n'
    )
    program.chmod(0o755)


def join(environment: Mapping[str, str], pid: int) -> None:
    """Make a process a client, as the first call of CUDA would."""
    _tell(environment["CUDA_MPS_PIPE_DIRECTORY"], f"join {pid}\n")


def main(argv: Sequence[str]) -> None:
    """Be the control program."""
    pipes = os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or "/tmp/nvidia-mps"
    if argv[:1] == ["-d"]:
        if Ill.FAILS in _ills() or len(pipes) >= 88:
            _end(ANSWERS["fails"])
        if _alive(pipes):
            _end(ANSWERS["already running"])
        _daemonize(pipes, for_all="-multiuser-server" in argv)
    elif not _alive(pipes):
        _end(ANSWERS["no daemon"])
    else:
        _end(_tell(pipes, sys.stdin.read()))


def _end(answer: Answer) -> None:
    sys.stdout.write(answer.stdout)
    sys.stderr.write(answer.stderr)
    sys.exit(answer.status)


def _ills() -> list[str]:
    return os.environ.get("FAKE_MPS", "").split(",")


def _alive(pipes: str) -> bool:
    try:
        os.kill(int((Path(pipes) / f"{NAME}.pid").read_text()), 0)
    except PermissionError as error:
        return error.filename is None  # it lives, and is another user's
    except (OSError, ValueError):
        return False
    return True


def _tell(pipes: str, commands: str) -> Answer:
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(str(Path(pipes) / "control"))
        line.sendall(commands.encode())
        line.shutdown(socket.SHUT_WR)
        said = b""
        while part := line.recv(65536):
            said += part
    return Answer(*json.loads(said)) if said else ANSWERS["nothing"]


def _daemonize(pipes: str, *, for_all: bool) -> None:
    if os.fork():
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    # It keeps no output open, or its starter's pipe would never end.
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)
    try:
        Daemon(Path(pipes), Path(os.environ["CUDA_MPS_LOG_DIRECTORY"]), for_all=for_all).serve()
    finally:
        os._exit(0)


class Daemon:
    """The daemon and its one server, a process of its own that does nothing."""

    def __init__(self, pipes: Path, logs: Path, *, for_all: bool) -> None:
        self.pipes, self.logs, self.for_all, self.server, self.asks = pipes, logs, for_all, 0, 0
        self.clients: list[int] = []
        os.umask(0)  # whatever its starter's
        pipes.mkdir(exist_ok=True)
        for left in ("control", _PRIVILEGED, "log"):
            (pipes / left).unlink(missing_ok=True)
        self.door, self.privileged = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
        self.door.bind(str(pipes / "control"))
        self.privileged.bind(str(pipes / _PRIVILEGED))
        self.door.listen(64)
        os.mkfifo(pipes / "log")
        (pipes / "control_lock").touch()
        self.note("Start")
        if Ill.SLOW in _ills():
            time.sleep(0.5)
        if Ill.NO_PID_FILE not in _ills():
            (pipes / f"{NAME}.pid").write_text(str(os.getpid()))

    def note(self, words: str) -> None:
        """Write to the log."""
        with (self.logs / "control.log").open("a") as stream:
            stream.write(f"[{time.strftime('%Y-%m-%d %H:%M:%S')} Control {os.getpid()}] {words}\n")

    def serve(self) -> None:
        """Answer until told to quit."""
        while True:
            line, _ = self.door.accept()
            self.asks = int.from_bytes(line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[4:8], sys.byteorder)
            commands = b""
            while part := line.recv(65536):
                commands += part
            if Ill.DEAF in _ills():
                unanswered.append(line)
                continue
            answers = [self.answer(command.split()) for command in commands.decode().splitlines()]
            whole = Answer("".join(a.stdout for a in answers), "".join(a.stderr for a in answers))
            with contextlib.suppress(OSError):
                line.sendall(json.dumps(whole).encode())
            line.close()
            if b"quit" in commands and self.may():
                os._exit(0)
            if Ill.DIES in _ills():
                self.note("Fatal")
                return

    def may(self) -> bool:
        """Return whether who asks may change and end it."""
        return self.asks in (0, os.getuid())

    def answer(self, words: Sequence[str]) -> Answer:
        """Return what one command is answered."""
        self.clients = [pid for pid in self.clients if _lives(pid)]
        server, client = ([*words[1:], "", ""])[:2]
        match words[:1]:
            case ["quit"] if not self.may():
                return ANSWERS["may not quit"]
            case [name] if name.startswith("set_") and not self.may():
                return _filled("not its user", value=self.asks)
            case ["join"] if not self.for_all and self.asks != os.getuid():
                return ANSWERS["nothing"]  # to the client CUDA says 805
            case ["join"]:
                return self.join(int(words[1]))
            case ["quit"]:
                return self.quit(at_once="-t" in words)
            case ["get_server_list"]:
                return _lines([self.server] if self.server else [])
            case ["get_client_list" | "get_server_status"] if server != str(self.server):
                return _filled("no server", server=server)
            case ["get_client_list"]:
                return _lines(self.clients)
            case ["get_server_status"]:
                return ANSWERS["server status"]
            case ["terminate_client"]:
                return self.terminate(server, client)
            case ["set_default_active_thread_percentage"]:
                return _filled("threads", value=float(words[1]))
            case ["set_default_device_pinned_mem_limit"]:
                return ANSWERS["nothing"]
        return _filled("unknown", value=" ".join(words))

    def terminate(self, server: str, client: str) -> Answer:
        """Take a client off the GPU; it stays a client until it ends."""
        if server != str(self.server):
            return _filled("not terminated, no server", server=server)
        if client not in map(str, self.clients):
            return ANSWERS["not terminated, no client"]
        self.note(f"Terminated {client}")
        return ANSWERS["terminated"]

    def join(self, pid: int) -> Answer:
        """Take a client; the first one starts the server."""
        if not self.server:
            self.server = os.fork()
            if not self.server:
                ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
                os.closerange(3, 64)  # else whoever asked would wait for the end of this process
                signal.pause()
                os._exit(0)
            self.note(f"Starting new server {self.server}")
        self.clients.append(pid)
        return ANSWERS["nothing"]

    def quit(self, *, at_once: bool) -> Answer:
        """End the server and leave the folder as the real one leaves it; without -t, not before the clients end."""
        while Ill.HANGS in _ills() or (not at_once and any(map(_lives, self.clients))):
            time.sleep(0.05)
        if self.server:
            os.kill(self.server, signal.SIGKILL)
            os.waitpid(self.server, 0)
        for name in ("log", f"{NAME}.pid"):
            (self.pipes / name).unlink(missing_ok=True)
        self.note("Exit")
        return ANSWERS["nothing"]


# Connections that are never answered, kept so that they stay open.
unanswered: list[socket.socket] = []


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _lines(numbers: Sequence[int]) -> Answer:
    return Answer("".join(f"{number}\n" for number in numbers))


def _filled(name: str, **values: str | float) -> Answer:
    answer = ANSWERS[name]
    return answer._replace(stdout=answer.stdout.format(**values))


if __name__ == "__main__":
    main(sys.argv[1:])

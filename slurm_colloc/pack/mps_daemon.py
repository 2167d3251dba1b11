# SPDX-License-Identifier: Apache-2.0
"""The private MPS daemon of one job: started, asked, and ended through nvidia-cuda-mps-control.

MPS fails open: a process that does not find its daemon runs as ordinary CUDA with the whole GPU and says nothing. A
folder too long for a socket is therefore never used, the daemon is asked a question before anybody relies on it, and
``Mps.clients`` tells who is truly under it.
"""

import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from slurm_colloc.core import clock
from slurm_colloc.core.errors import ProcessError
from slurm_colloc.core.files import PRIVATE_FOLDER
from slurm_colloc.core.model import Load
from slurm_colloc.core.process import launch, run
from slurm_colloc.core.units import whole
from slurm_colloc.pack.processes import Process, is_still, process, processes, variables_of

CONTROL = "nvidia-cuda-mps-control"
PREFIX = "csub-mps-"
_PIPE, _LOG, _PID_FILE = "pipe", "log", f"{CONTROL}.pid"
# The longest of the names that the daemon makes in its pipe folder.
_LONGEST_NAME = "control_privileged"
# With a pipe folder of 80 bytes a real daemon started, with 88 not, though its sockets' paths would have fitted then.
_PIPE_BYTES = 80
_START_S, _ANSWER_S, _QUIT_S, _POLL_S = 30.0, 4.0, 5, 0.02
_PROBE_BYTES = 64 * 1024
# The kernel keeps 15 bytes of a program's name: the daemon's and its server's are then the same.
_COMM = CONTROL[:15]
# One task's matter. The daemon would hand them on to every client as a default.
_NOT_THE_DAEMONS = ("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")


def short_folder(job_id: str, environment: Mapping[str, str]) -> str:
    """Make a new folder for a daemon, for this user alone (0700), where its sockets fit and files can be written.

    Tried are $TMPDIR, /tmp and /dev/shm.

    Raises:
        ProcessError: it works in none of them; says why for each.
    """
    refused = []
    for base in dict.fromkeys((environment.get("TMPDIR", ""), "/tmp", "/dev/shm")):  # noqa: S108 - private below it
        if not os.path.isabs(base):
            continue
        folder = ""
        try:
            folder = tempfile.mkdtemp(prefix=f"{PREFIX}{job_id}-", dir=base)
            _probe(folder)
            return folder
        except OSError as error:
            refused.append(f"'{base}': {error.strerror or error}")
            if folder:
                shutil.rmtree(folder, ignore_errors=True)
    raise ProcessError(f"no folder for the MPS daemon's sockets: {'; '.join(refused)}; set TMPDIR to a short local one")


def _probe(folder: str) -> None:
    """Make the daemon's folders and do there what it will do: sockets fail on some file systems, files on full ones."""
    pipe = os.path.join(folder, _PIPE)
    if (length := len(os.fsencode(pipe))) > _PIPE_BYTES:
        raise OSError(f"'{pipe}' has {length} bytes, {_PIPE_BYTES} are known to do")
    for made in (pipe, os.path.join(folder, _LOG)):
        os.mkdir(made, PRIVATE_FOLDER)
    path = os.path.join(pipe, _LONGEST_NAME)
    with socket.socket(socket.AF_UNIX) as probe:
        probe.bind(path)
    os.unlink(path)
    with open(path, "wb") as stream:
        stream.write(bytes(_PROBE_BYTES))
    os.unlink(path)


def _working(pipe: str) -> list[int]:
    """Return the pids of this user's MPS daemons and servers with this pipe folder."""
    found, mark = [], b"CUDA_MPS_PIPE_DIRECTORY=" + os.fsencode(pipe)
    for one in processes():
        with suppress(OSError), open(f"/proc/{one.pid}/comm") as stream:
            if stream.read().rstrip("\n") == _COMM and mark in variables_of(one.pid):
                found.append(one.pid)
    return found


def _wait(done: Callable[[], bool], timeout_s: float) -> bool:
    deadline_s = clock.ticking() + timeout_s
    while not done():
        if clock.ticking() > deadline_s:
            return False
        clock.pause(_POLL_S)
    return True


class Mps:
    """A running daemon; its clients are one user's processes that have its ``environment``."""

    def __init__(self, folder: str, environment: Mapping[str, str]) -> None:
        """Take a daemon that was started; use ``start``."""
        self.folder = folder
        self.pipe = os.path.join(folder, _PIPE)
        self.log = os.path.join(folder, _LOG)
        self._environment = {
            **{name: value for name, value in environment.items() if name not in _NOT_THE_DAEMONS},
            "CUDA_MPS_PIPE_DIRECTORY": self.pipe,
            "CUDA_MPS_LOG_DIRECTORY": self.log,
        }
        self._daemon: Process | None = None

    @classmethod
    def start(cls, folder: str, devices: str, environment: Mapping[str, str]) -> "Mps":
        """Start a daemon for ``devices`` (CUDA_VISIBLE_DEVICES) in a folder of ``short_folder``.

        Returns when the daemon has answered.

        Raises:
            ProcessError: nvidia-cuda-mps-control is missing, or the daemon does not answer; nothing of it is left.
        """
        mps = cls(folder, {**environment, "CUDA_VISIBLE_DEVICES": devices})
        try:
            mps._begin()
        except ProcessError as error:
            said = mps.said()
            mps.quit()
            raise ProcessError(
                f"the MPS daemon does not start: {error}{f'; it logged: {said}' if said else ''}"
            ) from error
        return mps

    def _begin(self) -> None:
        done = launch([CONTROL, "-d"], _START_S, self._environment)
        if done.status != 0:
            raise ProcessError(f"'{CONTROL} -d' ended with status {done.status}: {done.last_words}")
        if not _wait(lambda: self._found() is not None, _START_S):
            raise ProcessError(f"'{CONTROL} -d' ended well, but in {_START_S:g} s no daemon wrote '{_PID_FILE}'")
        self._daemon = self._found()
        self._servers()

    def environment(self, load: Load, own: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that a task needs to be a client.

        Nobody may change the daemon's place, nor that its one GPU is number 0; a limit or an allocator's setting that
        ``own``, the user's environment, has already is the user's.
        """
        courtesy = {
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"0={load.memory_mib}M",
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            "TF_FORCE_GPU_ALLOW_GROWTH": "true",
        }
        return {
            **{name: own.get(name, value) for name, value in courtesy.items()},
            "CUDA_MPS_PIPE_DIRECTORY": self.pipe,
            "CUDA_MPS_LOG_DIRECTORY": self.log,
            "CUDA_VISIBLE_DEVICES": "0",
        }

    def clients(self) -> set[int] | None:
        """Return the pids of the processes that are under this daemon; None where it does not answer.

        Each question adds lines to its log.
        """
        with suppress(ProcessError):
            return {client for server in self._servers() for client in self._clients_of(server)}
        return None

    def alive(self) -> bool:
        """Tell whether the daemon, the very one that was started, is still there.

        New clients of a dead daemon take the whole GPU in silence, and those that it had hang before they fail.
        """
        return self._daemon is not None and is_still(self._daemon)

    def terminate(self, pids: Iterable[int]) -> None:
        """Take those of ``pids`` that are clients off the GPU before anybody kills them, as far as the daemon answers.

        A client that is killed in the middle of a kernel can take every neighbour with it, by an illegal memory access
        (seen on an H100). One that was terminated stays a client until it ends, and may hang: kill it then.
        """
        wanted = set(pids)
        with suppress(ProcessError):
            for server in self._servers():
                for client in sorted(wanted & self._clients_of(server)):
                    self._ask(f"terminate_client {server} {client}")

    def said(self) -> str:
        """Return the last line of the daemon's logs, "" if there is none."""
        for name in ("server.log", "control.log"):
            with suppress(OSError), open(os.path.join(self.log, name), errors="replace") as stream:
                lines = stream.read().strip().splitlines()
                if lines:
                    return lines[-1]
        return ""

    def quit(self) -> None:
        """End the daemon and its servers, at last by force, and remove its folder."""
        if self.alive():
            with suppress(ProcessError):
                # It waits for its clients without -t, for ever.
                self._ask(f"quit -t {_QUIT_S}")
                _wait(lambda: not self.alive(), _QUIT_S)
        for _ in range(3):
            # The daemon first, since it would start another server.
            left = sorted(_working(self.pipe), key=lambda pid: self._daemon is None or pid != self._daemon.pid)
            if not left:
                break
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            _wait(lambda: not any(map(process, left)), 1.0)  # noqa: B023 - ends before left changes
        shutil.rmtree(self.folder, ignore_errors=True)

    def _servers(self) -> set[int]:
        return _numbers(self._ask("get_server_list"))

    def _clients_of(self, server: int) -> set[int]:
        return _numbers(self._ask(f"get_client_list {server}"))

    def _ask(self, command: str) -> bytes:
        """Give one command to the daemon of this pipe folder and return its answer."""
        done = run([CONTROL], _ANSWER_S, self._environment, f"{command}\n".encode())
        if done.status != 0:
            raise ProcessError(
                f"the MPS daemon was asked '{command}' and ended with status {done.status}: {done.last_words}"
            )
        return done.stdout

    def _found(self) -> Process | None:
        """Return the process that the daemon's file names; None where there is none that lives."""
        try:
            with open(os.path.join(self.pipe, _PID_FILE)) as stream:
                return process(int(stream.read()))
        except (OSError, ValueError):
            return None


def _numbers(answer: bytes) -> set[int]:
    # Refusals come as answers, with status 0, and may have numbers in them: "Server 12 not found".
    return {pid for line in answer.decode(errors="replace").splitlines() if (pid := whole(line.strip())) is not None}

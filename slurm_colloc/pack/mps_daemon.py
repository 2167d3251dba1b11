# SPDX-License-Identifier: Apache-2.0
"""The private MPS daemon of one job: started, asked, and ended through nvidia-cuda-mps-control.

MPS fails open: a process that does not find its daemon runs as ordinary CUDA with the whole GPU and says nothing. So a
folder too long for a socket is refused before it is used, the daemon is asked a question before anybody relies on it,
and ``Mps.clients`` tells who is truly under it.
"""

import os
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress

from slurm_colloc import clock
from slurm_colloc.errors import ProcessError, StoreError
from slurm_colloc.files import PRIVATE_FOLDER, private_folder
from slurm_colloc.model import Load
from slurm_colloc.pack.processes import process
from slurm_colloc.process import launch, run
from slurm_colloc.units import whole

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


def _too_long(pipe: str) -> str:
    length = len(os.fsencode(pipe))
    return f"'{pipe}' has {length} bytes, {_PIPE_BYTES} are known to do" if length > _PIPE_BYTES else ""


def _probe(folder: str) -> None:
    """Do there what the daemon will do: sockets fail on some file systems, files on full ones."""
    path = os.path.join(folder, _PIPE, _LONGEST_NAME)
    if wrong := _too_long(os.path.dirname(path)):
        raise OSError(wrong)
    os.mkdir(os.path.dirname(path), PRIVATE_FOLDER)
    with socket.socket(socket.AF_UNIX) as probe:
        probe.bind(path)
    os.unlink(path)
    with open(path, "wb") as stream:
        stream.write(bytes(_PROBE_BYTES))
    os.unlink(path)


def _began(pid: int) -> str:
    """Return when the process began, in ticks since boot; "" if it is none or has ended. A pid alone is used again."""
    found = process(pid)
    return str(found.began_ticks) if found else ""


def _daemons() -> Iterator[tuple[int, str]]:
    """Yield pid and pipe folder of this user's MPS daemons and servers on this node."""
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with suppress(OSError):
            with open(f"/proc/{name}/comm") as stream:
                if stream.read().rstrip("\n") != _COMM:
                    continue
            with open(f"/proc/{name}/environ", "rb") as raw:
                for item in raw.read().split(b"\0"):
                    variable, _, value = item.partition(b"=")
                    if variable == b"CUDA_MPS_PIPE_DIRECTORY" and _began(int(name)):
                        yield int(name), os.fsdecode(value)


def _end_daemons(pipe: str, daemon: int = 0) -> None:
    """Kill what works in this pipe folder: ``daemon``, where known, first, since it would start another server."""
    for _ in range(3):
        left = sorted((pid for pid, of in _daemons() if of == pipe), key=lambda pid: (pid != daemon, pid))
        if not left:
            return
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        _wait(lambda: not any(_began(pid) for pid in left), 1.0)  # noqa: B023 - ends before left changes


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
        self._daemon = (0, "")

    @classmethod
    def start(cls, folder: str, devices: str, environment: Mapping[str, str]) -> "Mps":
        """Start a daemon for ``devices`` (CUDA_VISIBLE_DEVICES) with its pipe and log folders below ``folder``.

        Returns when the daemon has answered. What a dead daemon left in ``folder`` is
        removed.

        Raises:
            ProcessError: nvidia-cuda-mps-control is missing, the folder cannot serve, or the daemon does not answer;
                nothing of it is left.
        """
        mps = cls(folder, {**environment, "CUDA_VISIBLE_DEVICES": devices})
        if wrong := _too_long(mps.pipe):
            raise ProcessError(f"folder '{folder}' is too long for the MPS daemon: {wrong}; choose a shorter one")
        if mps._found_pid():
            raise ProcessError(f"an MPS daemon runs in '{folder}' already; quit it before another is started")
        _end_daemons(mps.pipe)
        try:
            private_folder(folder)
            shutil.rmtree(mps.pipe, ignore_errors=True)
            for made in (mps.pipe, mps.log):
                private_folder(made)
        except StoreError as error:
            raise ProcessError(f"the MPS daemon has no folder: {error}") from error
        try:
            mps._begin()
        except ProcessError as error:
            said = mps.said()
            _end_daemons(mps.pipe)
            mps._remove()
            raise ProcessError(
                f"the MPS daemon does not start: {error}{f'; it logged: {said}' if said else ''}"
            ) from error
        return mps

    def _begin(self) -> None:
        done = launch([CONTROL, "-d"], _START_S, self._environment)
        if done.status != 0:
            said = done.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"]
            raise ProcessError(f"'{CONTROL} -d' ended with status {done.status}: {said[-1]}")
        if not _wait(lambda: self._found_pid() != 0, _START_S):
            raise ProcessError(f"'{CONTROL} -d' ended well, but in {_START_S:g} s no daemon wrote '{_PID_FILE}'")
        pid = self._found_pid()
        self._daemon = (pid, _began(pid))
        self._servers()

    def environment(self, load: Load, own: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that a task needs to be a client.

        Where the daemon is, and that its one GPU is number 0, nobody may change; a limit or an allocator's setting that
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

    def clients(self) -> set[int]:
        """Return the pids of the processes that are under this daemon; each question adds lines to its log.

        Raises:
            ProcessError: the daemon does not answer.
        """
        return {client for server in self._servers() for client in self._clients_of(server)}

    def alive(self) -> bool:
        """Tell whether the daemon, the very one that was started, is still there.

        Without it new clients take the whole GPU in silence, and those that it had hang before they fail.
        """
        pid, began = self._daemon
        return bool(began) and _began(pid) == began

    def terminate(self, pids: Iterable[int]) -> None:
        """Take those of ``pids`` that are clients off the GPU, before anybody kills them.

        A client that is killed in the middle of a kernel can take every neighbour with it, by an illegal memory access
        (seen on an H100). One that was terminated stays a client until it ends, and may hang: kill it then.

        Raises:
            ProcessError: the daemon does not answer.
        """
        wanted = set(pids)
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
        """End the daemon and its servers, at last by force, and remove its folders."""
        if self.alive():
            with suppress(ProcessError):
                # Without -t it waits for its clients, for ever.
                self._ask(f"quit -t {_QUIT_S}")
                _wait(lambda: not self.alive(), _QUIT_S)
        _end_daemons(self.pipe, self._daemon[0])
        self._remove()

    def _servers(self) -> set[int]:
        return _numbers(self._ask("get_server_list"))

    def _clients_of(self, server: int) -> set[int]:
        return _numbers(self._ask(f"get_client_list {server}"))

    def _ask(self, command: str) -> bytes:
        """Give one command to the daemon of this pipe folder and return its answer."""
        done = run([CONTROL], _ANSWER_S, self._environment, f"{command}\n".encode())
        if done.status != 0:
            said = done.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"]
            raise ProcessError(f"the MPS daemon was asked '{command}' and ended with status {done.status}: {said[-1]}")
        return done.stdout

    def _found_pid(self) -> int:
        """Return the pid in the daemon's file, 0 if there is none that lives."""
        try:
            with open(os.path.join(self.pipe, _PID_FILE)) as stream:
                pid = int(stream.read())
        except (OSError, ValueError):
            return 0
        return pid if _began(pid) else 0

    def _remove(self) -> None:
        for made in (self.pipe, self.log):
            shutil.rmtree(made, ignore_errors=True)
        with suppress(OSError):  # not empty: somebody else's things are in it
            os.rmdir(self.folder)


def _numbers(answer: bytes) -> set[int]:
    # Refusals come as answers, with status 0, and may have numbers in them: "Server 12 not found".
    return {pid for line in answer.decode(errors="replace").splitlines() if (pid := whole(line.strip())) is not None}

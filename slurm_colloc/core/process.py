# SPDX-License-Identifier: Apache-2.0
"""The only door to other programs: an argv list, never a shell.

``run`` runs a program to its end in a bounded time; ``ask``, ``ask_all`` and ``launch`` do so for what it answers, or
leaves behind. ``spawn`` and ``spawn_into`` start one for a caller that waits for its end. ``replace`` becomes it.
"""

import os
import select
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple, NoReturn

from slurm_colloc.core.errors import ProcessError, UnansweredError


def given_environment() -> dict[str, str]:
    """Return the environment that this process was given: Python adds LC_CTYPE to it in the C locale (PEP 538)."""
    environ = dict(os.environ)
    if "LC_CTYPE" in environ:
        with suppress(OSError), open("/proc/self/environ", "rb") as stream:
            if not any(entry.startswith(b"LC_CTYPE=") for entry in stream.read().split(b"\0")):
                del environ["LC_CTYPE"]
    return environ


# As large as Linux makes a pipe for whoever is not root (fs.pipe-max-size).
_PIPE_BYTES = 1024 * 1024
_LOOKS_EVERY_S = 0.01


class Finished(NamedTuple):
    """The exit status of a program (negative: the signal that ended it) and its output."""

    status: int
    stdout: bytes
    stderr: bytes

    @property
    def last_words(self) -> str:
        """Return the last line on its standard error."""
        return (self.stderr.decode(errors="replace").strip().splitlines() or ["nothing on standard error"])[-1]


def run(
    argv: Sequence[str],
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
    input: bytes = b"",
    called: str = "",
) -> Finished:
    """Run a program to its own end, not to that of what it leaves behind with its output still open.

    It is looked for on the PATH of its environment, and reads ``input`` on its standard input. ``called`` as with
    ``spawn``. Returned is what it said, whatever its exit status.

    Raises:
        ProcessError: it cannot be started or did not end within ``timeout_s``.
    """
    environ = os.environ if environment is None else environment
    path = _found(argv[0], environ)
    with _starting(argv[0]):
        stdin = readable(input)
    try:
        running = spawn([path, *argv[1:]], environ, stdin, called or argv[0])
    finally:
        os.close(stdin)
    said = {running.stdout: bytearray(), running.stderr: bytearray()}
    in_time = False
    try:
        in_time = read_all(running, {descriptor: text.extend for descriptor, text in said.items()}, timeout_s)
    finally:
        if not in_time:
            os.kill(running.pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(running.pid, 0)[1])
        os.close(running.stdout)
        os.close(running.stderr)
    if not in_time:
        raise UnansweredError(f"'{argv[0]}' did not answer within {timeout_s:g} s")
    return Finished(status, bytes(said[running.stdout]), bytes(said[running.stderr]))


def _found(program: str, environment: Mapping[str, str]) -> str:
    if "/" in program or "\0" in program:
        return program
    paths = (os.path.join(folder, program) for folder in os.get_exec_path(environment))
    path = next((path for path in paths if os.access(path, os.X_OK) and not os.path.isdir(path)), "")
    if not path:
        raise ProcessError(f"there is no '{program}' on PATH; is it installed and its module loaded?")
    return path


def launch(argv: Sequence[str], timeout_s: float, environment: Mapping[str, str]) -> Finished:
    """Run a program that leaves a daemon behind, in a process group of its own, until it has done so.

    The daemon may keep its output open for as long as it lives: it goes to memory, and what the program has said when
    it ends is returned, as said on its standard error.

    Raises:
        ProcessError: as ``run``; the caller sees to what was started.
    """
    said = os.memfd_create("said")
    try:
        pid = spawn_into([_found(argv[0], environment), *argv[1:]], environment, said)
        until = time.monotonic() + timeout_s
        while not (ended := os.waitpid(pid, os.WNOHANG))[0]:
            if time.monotonic() > until:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                raise UnansweredError(f"'{argv[0]}' did not answer within {timeout_s:g} s")
            time.sleep(_LOOKS_EVERY_S)
        return Finished(os.waitstatus_to_exitcode(ended[1]), b"", os.pread(said, os.fstat(said).st_size, 0))
    finally:
        os.close(said)


def ask(argv: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None) -> bytes:
    """Run a program and return its standard output.

    Raises:
        ProcessError: as ``run``, and for an exit status other than 0, with the last line of its standard error.
    """
    done = run(argv, timeout_s, environment)
    if done.status != 0:
        raise ProcessError(f"'{' '.join(argv)}' ended with status {done.status}: {done.last_words}")
    return done.stdout


def ask_all(
    questions: Sequence[Sequence[str]], timeout_s: float, environment: Mapping[str, str] | None = None
) -> list[bytes]:
    """Run several programs side by side and return their standard outputs.

    Raises:
        ProcessError: as ``ask``, for the first that fails.
    """
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(len(questions)) as pool:
        return list(pool.map(lambda argv: ask(argv, timeout_s, environment), questions))


class Running(NamedTuple):
    """A program that was started; its output comes through the two pipes."""

    pid: int
    stdout: int
    stderr: int


# Python ignores these; a program that it starts or becomes must find them as the user's shell would have left them.
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
_to_default: tuple[signal.Signals, ...] = _IGNORED_BY_PYTHON


def open_standard_descriptors() -> None:
    """Put /dev/null in place of closed standard descriptors, lest a file of ours come to stand there."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)


def keep_ignored(mask: int) -> None:
    """Leave those signals ignored that were so before Python started: ``mask`` is SigIgn of /proc/PID/status."""
    global _to_default
    _to_default = tuple(number for number in _IGNORED_BY_PYTHON if not mask >> (number - 1) & 1)


def spawn(
    argv: Sequence[str], environment: Mapping[str, str], stdin: int | None, called: str = "", *, tied: bool = False
) -> Running:
    """Start a program whose standard output and error come back through pipes; the caller reads them to the end.

    ``argv[0]`` is its path, which it is told as its name unless it is to be ``called`` otherwise. It inherits every
    descriptor that the caller's caller meant it to have: Python's own are never inheritable. One that is ``tied`` is
    killed by the kernel as soon as this process is no more.

    Raises:
        ProcessError: it cannot be started.
    """
    start = _fork_tied if tied else _posix_spawn
    with _starting(argv[0]), _pipes() as ends:
        out_read, out_write, err_read, err_write = ends
        doubles = [(out_write, 1), (err_write, 2)] + ([] if stdin is None else [(stdin, 0)])
        pid = start(argv[0], [called or argv[0], *argv[1:]], environment, doubles)
        ends[:] = [out_write, err_write]
    return Running(pid, out_read, err_read)


@contextmanager
def _starting(program: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise ProcessError(f"'{program}' cannot be started: {error}") from error


@contextmanager
def _pipes() -> Iterator[list[int]]:
    """Give the four ends of two pipes, and close those that are left in the list."""
    ends: list[int] = []
    try:
        ends += os.pipe()
        ends += os.pipe()
        yield ends
    finally:
        for descriptor in ends:
            os.close(descriptor)


def _posix_spawn(
    path: str, words: list[str], environment: Mapping[str, str], doubles: Sequence[tuple[int, int]]
) -> int:
    actions = [(os.POSIX_SPAWN_DUP2, ours, theirs) for ours, theirs in doubles]
    return os.posix_spawn(path, words, environment, file_actions=actions, setsigdef=_to_default)


def _fork_tied(path: str, words: list[str], environment: Mapping[str, str], doubles: Sequence[tuple[int, int]]) -> int:
    """Start a program to which the kernel sends SIGKILL when this process ends, and with it its end of a pipe.

    PR_SET_PDEATHSIG would do so too, but only ctypes reaches it, which takes 5 ms to import and not every Python has.

    Raises:
        OSError: it cannot be started.
    """
    import fcntl  # only csub's call of sbatch is tied

    with _pipes() as ends:
        failed, failing, life, alive = ends
        pid = os.fork()
        if pid == 0:
            try:
                os.close(alive)
                fcntl.fcntl(life, fcntl.F_SETOWN, os.getpid())
                fcntl.fcntl(life, fcntl.F_SETSIG, signal.SIGKILL)
                fcntl.fcntl(life, fcntl.F_SETFL, os.O_ASYNC)
                os.set_inheritable(life, True)
                poller = select.poll()
                poller.register(life)
                if not poller.poll(0):  # no signal tells of an end before it was asked for
                    for ours, theirs in doubles:
                        os.dup2(ours, theirs)
                    for number in _to_default:
                        signal.signal(number, signal.SIG_DFL)
                    os.execve(path, words, environment)
            except BaseException as error:  # noqa: BLE001 - this copy comes to nothing but the program
                os.write(failing, str(error).encode(errors="replace"))
            finally:
                os._exit(127)
        os.close(failing)
        ends.remove(failing)
        if said := os.read(failed, _PIPE_BYTES):
            os.waitpid(pid, 0)
            raise OSError(said.decode())
        ends.remove(alive)
        return pid


def readable(content: bytes) -> int:
    """Return a descriptor from which ``content`` can be read, as a program's standard input."""
    descriptor = os.memfd_create("stdin")
    while content:
        content = content[os.write(descriptor, content) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def put_back(content: bytes) -> None:
    """Have ``content``, which was read of standard input, stand there once more, and need no other descriptor."""
    os.close(0)
    readable(content)  # the lowest descriptor that is free
    os.set_inheritable(0, True)


def read_all(running: Running, sinks: Mapping[int, Callable[[bytes], object]], timeout_s: float | None = None) -> bool:
    """Give what a spawned program prints to the sinks of its pipes, until it has ended and nothing is left unread.

    Programs that it leaves in the background may hold the pipes open for ever, and are not waited for. Returns whether
    the program came to its end within ``timeout_s``.
    """
    until = None if timeout_s is None else time.monotonic() + timeout_s
    unread = dict(sinks)
    poller = select.poll()
    for descriptor in unread:
        poller.register(descriptor, select.POLLIN)
    with _ended(running.pid) as ended:
        if ended is not None:
            poller.register(ended, select.POLLIN)
        while unread or ended is not None:
            wait_ms = None if until is None else max(0.0, until - time.monotonic()) * 1000
            ready = [descriptor for descriptor, _ in poller.poll(wait_ms)]
            if not ready:
                return False
            # The order is that of the sinks: nobody can tell which of two pipes was written first.
            for descriptor in [number for number in unread if number in ready]:
                # All that a pipe holds: after the program's end no more of it is to come.
                if content := os.read(descriptor, _PIPE_BYTES):
                    unread[descriptor](content)
                else:
                    poller.unregister(descriptor)
                    del unread[descriptor]
            if ended in ready:
                return True
    return True


@contextmanager
def _ended(pid: int) -> Iterator[int | None]:
    """Give a descriptor that can be read once the process has ended; None before Linux 5.3."""
    try:
        descriptor = os.pidfd_open(pid)
    except OSError:
        yield None
        return
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def spawn_into(argv: Sequence[str], environment: Mapping[str, str], output: int) -> int:
    """Start a program in a process group of its own and return its pid; the caller waits for its end.

    It reads nothing, and both its output and its errors go to the descriptor ``output``. A terminal's signals to this
    process's group do not reach it.

    Raises:
        ProcessError: it cannot be started.
    """
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, output, 1),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    with _starting(argv[0]):
        return os.posix_spawn(
            argv[0], list(argv), environment, file_actions=actions, setpgroup=0, setsigdef=_to_default
        )


def detach(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Start a program in a session of its own that holds nothing of ours open, and return its pid.

    Nobody need wait for it: init takes its exit status when this process has ended.

    Raises:
        ProcessError: it cannot be started.
    """
    ends = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0), *((os.POSIX_SPAWN_DUP2, 0, other) for other in (1, 2))]
    # Our caller may have meant its programs to have some: a lock, the pipe of somebody who waits.
    opened = [int(name) for name in os.listdir("/proc/self/fd") if int(name) > 2]
    ends += [(os.POSIX_SPAWN_CLOSE, number) for number in opened if _is_inheritable(number)]
    with _starting(argv[0]):
        return os.posix_spawn(argv[0], list(argv), environment, file_actions=ends, setsid=True, setsigdef=_to_default)


def _is_inheritable(descriptor: int) -> bool:
    try:
        return os.get_inheritable(descriptor)
    except OSError:  # that of the folder, which is closed by now
        return False


def replace(argv: Sequence[str], environment: Mapping[str, str], called: str = "") -> NoReturn:
    """Become ``argv``: same process, descriptors and terminal; ``called`` as with ``spawn``.

    Raises:
        ProcessError: it cannot be started.
    """
    before = [(number, signal.signal(number, signal.SIG_DFL)) for number in _to_default]
    try:
        with _starting(argv[0]):
            os.execve(argv[0], [called or argv[0], *argv[1:]], environment)
    finally:
        for number, handler in before:  # this process goes on, and must not die of a pipe that somebody closed
            signal.signal(number, handler or signal.SIG_DFL)

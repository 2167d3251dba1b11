# SPDX-License-Identifier: Apache-2.0
"""The lab's long-lived processes: started in sessions of their own, recorded, and stopped by record only.

A record is a pid together with the process's start time, since a pid alone may belong to somebody else by the time
it is used. A pidfd is opened before the start time is compared, so no signal can reach a later owner of the pid.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.cluster.errors import LabError

TERM_WAIT_S = 15.0
KILL_WAIT_S = 5.0


@dataclass(frozen=True)
class Record:
    name: str
    pid: int
    start_ticks: int


def start_ticks(pid: int) -> int | None:
    """Return the process's start time in clock ticks since boot, None when it is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])


def is_alive(record: Record) -> bool:
    return start_ticks(record.pid) == record.start_ticks


class Book:
    """The file of records, one `pid start-ticks name` a line, in starting order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._children: dict[int, subprocess.Popen[bytes]] = {}

    def records(self) -> list[Record]:
        if not self.path.exists():
            return []
        rows = (line.split() for line in self.path.read_text().splitlines())
        return [Record(name, int(pid), int(ticks)) for pid, ticks, name in rows]

    def start(
        self,
        name: str,
        argv: Sequence[str | Path],
        *,
        log: Path,
        env: Mapping[str, str],
        cwd: Path | None = None,
    ) -> Record:
        """Start a process that outlives its caller, and write it down."""
        with log.open("ab") as out:
            child = subprocess.Popen(
                [str(a) for a in argv],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=dict(env),
                cwd=cwd or self.path.parent,
                start_new_session=True,
            )
        try:
            return self._write_down(name, child, log)
        except BaseException:
            # What is not in the book, nobody would ever stop.
            child.kill()
            child.wait()
            raise

    def _write_down(self, name: str, child: subprocess.Popen[bytes], log: Path) -> Record:
        ticks = start_ticks(child.pid)
        if ticks is None:
            raise LabError(f"{name} ended at once (exit {child.wait()})\n{tail(log)}")
        record = Record(name, child.pid, ticks)
        with self.path.open("a") as book:
            book.write(f"{record.pid} {record.start_ticks} {record.name}\n")
        self._children[child.pid] = child
        return record

    def stop(self, records: Iterable[Record], term_wait_s: float = TERM_WAIT_S) -> None:
        """End these processes: SIGTERM to all, SIGKILL to those left after the bound."""
        group = list(records)
        for sig, bound_s in ((signal.SIGTERM, term_wait_s), (signal.SIGKILL, KILL_WAIT_S)):
            group = [r for r in group if send(r, sig)]
            deadline = time.monotonic() + bound_s
            while time.monotonic() < deadline and any(map(is_alive, group)):
                time.sleep(0.02)
        for pid in [pid for pid in self._children if start_ticks(pid) is None]:
            self._children.pop(pid).wait()

    def clear(self) -> None:
        self.path.unlink(missing_ok=True)


def send(record: Record, sig: signal.Signals) -> bool:
    """Signal the recorded process and no other; False when it is gone."""
    try:
        fd = os.pidfd_open(record.pid)
    except (ProcessLookupError, FileNotFoundError):  # the latter where the number is some thread's by now
        return False
    try:
        if not is_alive(record):
            return False
        signal.pidfd_send_signal(fd, sig)
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)
    return True


def with_environment(wanted: Iterable[str]) -> list[Record]:
    """Find processes whose environment holds all of these: an entry `NAME=value`, or any value where it ends in `=`.

    The caller and its ancestors are left out: somebody may stop a lab from a shell inside one of its jobs.
    """
    needles = [("\0" + w if w.endswith("=") else f"\0{w}\0").encode() for w in wanted]
    ours = _ancestors()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) in ours:
            continue
        try:
            environ = b"\0" + (entry / "environ").read_bytes()
        except OSError:
            continue
        ticks = start_ticks(int(entry.name))
        if ticks is not None and all(n in environ for n in needles):
            found.append(Record("job", int(entry.name), ticks))
    return found


def processes_with(*words: str) -> Iterator[int]:
    """Yield the processes that have all of these on their command line."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            text = path.read_bytes()
            if all(word.encode() in text for word in words):
                yield int(path.parent.name)


def _ancestors() -> set[int]:
    pids, pid = set(), os.getpid()
    while pid > 0:
        pids.add(pid)
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            break
    return pids


def is_stepd(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == "slurmstepd"
    except OSError:
        return False


def tail(log: Path, lines: int = 15) -> str:
    """Return the last lines of a log, with its path, for an error message."""
    try:
        text = log.read_text(errors="replace")
    except OSError as exc:
        return f"(no {log}: {exc.strerror})"
    return f"last lines of {log}:\n" + "\n".join(text.splitlines()[-lines:])

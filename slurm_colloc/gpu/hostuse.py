# SPDX-License-Identifier: Apache-2.0
"""Use of the node by jobs besides their GPUs, so that an idle GPU can be told from a starved one.

CPU time and memory are the job's cgroup's where Slurm made one with that controller, else the sum over its processes.
A cgroup counts what its ended processes used; a sum over processes has the use of one that ended if its parent waited
for it, and counts shared pages once for each. Memory is what cannot be dropped: anonymous and shared pages of a
cgroup (``anon`` and ``shmem``, v1: ``rss`` and ``shmem``) without the page cache, resident sets of processes.

Bytes read and written are those that passed through system calls (``rchar`` and ``wchar`` of /proc/PID/io, which are
also what Slurm's own accounting takes). The kernel's counters of block devices, and with them the cgroups', see
nothing of a parallel file system, and Slurm switches on neither blkio nor io. Files that are mapped are missed.
"""

import os
import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from slurm_colloc.core.units import BYTES_PER_MIB, used_mib
from slurm_colloc.core.usage_model import HostSample
from slurm_colloc.gpu.proc import ProcessTable, parse_stat

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_FIGURE = re.compile(r"^(?:(\w+) )?([0-9]{1,20})$", re.MULTILINE)
_MOVED = re.compile(rb"rchar: ([0-9]+)\nwchar: ([0-9]+)\n")
_OCTAL = re.compile(r"\\([0-7]{3})")


# A process by pid and start time, or a cgroup by its path.
_Key = tuple[int, int] | str


class _Source(NamedTuple):
    """A file in a job's folder of one hierarchy: the figures in it that add up, and how many make one."""

    controller: str
    file: str
    figures: tuple[str, ...]
    per_unit: float


_CPU_S = (_Source("cpuacct", "cpuacct.usage", ("",), 1e9), _Source("", "cpu.stat", ("usage_usec",), 1e6))
_MEMORY_BYTES = (
    _Source("memory", "memory.stat", ("total_rss", "total_shmem"), 1),
    _Source("", "memory.stat", ("anon", "shmem"), 1),
)


def parse_figures(text: str, names: Sequence[str]) -> int | None:
    """Return the sum of the named figures in lines of ``name value``, None unless all are there.

    The name of a figure that stands alone is empty.
    """
    figures = dict(_FIGURE.findall(text))
    return sum(int(figures[name]) for name in names) if all(name in figures for name in names) else None


def parse_mounts(text: str) -> dict[str, str]:
    """Return where each cgroup controller is mounted, from /proc/self/mountinfo; v2's is ``""``."""
    mounts: dict[str, str] = {}
    for line in text.split("\n"):
        place, _, kind = (part.split(" ") for part in line.partition(" - "))
        # A mounted part of a hierarchy does not say which part it is.
        if len(place) < 5 or len(kind) < 3 or place[3] != "/":
            continue
        where = _OCTAL.sub(lambda match: chr(int(match[1], 8)), place[4])
        if kind[0] == "cgroup2":
            mounts.setdefault("", where)
        elif kind[0] == "cgroup":
            for option in kind[2].split(","):
                mounts.setdefault(option, where)
    return mounts


class Use(NamedTuple):
    """Use by one process, or a job's cgroup, so far; ``root`` is the oldest process of its line in the job."""

    root: _Key
    amount: float


_Uses = dict[_Key, Use]


def grown(now: _Uses | None, before: _Uses | None) -> float | None:
    """Return by how much the use of a job grew, None when that cannot be said.

    A process that ended has left its use with the root of its line, if that is there still: else it took its use along.
    """
    if now is None or before is None or not now.keys() & before.keys():
        return None
    was = sum(use.amount for key, use in before.items() if key in now or use.root in now)
    change = sum(use.amount for use in now.values()) - was
    return change if change >= 0 else None


class _Counters(NamedTuple):
    cpu_s: _Uses | None
    read_bytes: _Uses | None
    written_bytes: _Uses | None


class _Member(NamedTuple):
    """A process of a job: its pid, and what tells it and the root of its line from later ones."""

    pid: int
    key: _Key
    root: _Key


class HostUse:
    """Counters of jobs since the previous call."""

    def __init__(self) -> None:
        self._before: dict[str, _Counters] = {}
        self._mounts: dict[str, str] = {}

    def read(self, table: ProcessTable, jobs: Iterable[str]) -> tuple[HostSample, ...]:
        """Return what each of ``jobs`` did on the host since the previous call; None for what is not known.

        That is: each counter of a job that was not asked for the previous time or whose counter went back, and what
        the caller may not read: other users' bytes need CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH, all else is open.
        """
        self._mounts = self._mounts or parse_mounts(table.read("self", "mountinfo").decode(errors="replace"))
        members = table.members()
        before, self._before = self._before, {}
        samples = []
        for job_id in sorted(members.keys() & set(jobs)):
            processes = _members(table, members[job_id])
            folders = _folders(table, processes, self._mounts)
            read, written = _moved(table, processes)
            now = _Counters(_cpu(table, processes, folders), read, written)
            was = before.get(job_id, _Counters(None, None, None))
            samples.append(
                HostSample(
                    job_id,
                    cpu_s=grown(now.cpu_s, was.cpu_s),
                    host_mem_mib=_memory_mib(table, processes, folders),
                    read_mib=_mib(grown(now.read_bytes, was.read_bytes)),
                    written_mib=_mib(grown(now.written_bytes, was.written_bytes)),
                )
            )
            self._before[job_id] = now
        return tuple(samples)


def _mib(size_bytes: float | None) -> float | None:
    return None if size_bytes is None else size_bytes / BYTES_PER_MIB


def _members(table: ProcessTable, pids: Sequence[int]) -> list[_Member]:
    statuses = {pid: status for pid in pids if (status := table.known(pid)) is not None}
    roots: dict[int, _Key] = {}
    for pid in statuses:
        line = dict.fromkeys((pid,))
        while pid not in roots and (parent := statuses[pid].parent) in statuses and parent not in line:
            line[parent] = None
            pid = parent
        roots |= dict.fromkeys(line, roots.get(pid, (pid, statuses[pid].start_ticks)))
    return [_Member(pid, (pid, status.start_ticks), roots[pid]) for pid, status in statuses.items()]


def _folders(table: ProcessTable, members: Sequence[_Member], mounts: dict[str, str]) -> dict[str, str]:
    """Return the job's folder in each mounted hierarchy, from a process that Slurm has put into all of its own."""
    paths = max((table.folders(member.pid) for member in members), key=len, default={})
    return {name: mounts[name] + path for name, path in paths.items() if name in mounts}


def _figure(folders: dict[str, str], sources: Sequence[_Source]) -> tuple[str, float] | None:
    """Return the first source's file that can be read, and what it says."""
    for source in sources:
        if source.controller in folders:
            path = f"{folders[source.controller]}/{source.file}"
            try:
                with open(path, "rb", buffering=0) as stream:
                    value = parse_figures(stream.read().decode(errors="replace"), source.figures)
            except OSError:  # v2 without this controller, or a job that is over
                continue
            if value is not None:
                return path, value / source.per_unit
    return None


def _cpu(table: ProcessTable, members: Sequence[_Member], folders: dict[str, str]) -> _Uses | None:
    if figure := _figure(folders, _CPU_S):
        path, amount = figure
        return {path: Use(path, amount)}
    stats = ((member, parse_stat(table.read(member.pid, "stat"))) for member in members)
    return {member.key: Use(member.root, stat.cpu_ticks / _TICKS_PER_S) for member, stat in stats if stat}


def _memory_mib(table: ProcessTable, members: Sequence[_Member], folders: dict[str, str]) -> int | None:
    if figure := _figure(folders, _MEMORY_BYTES):
        return used_mib(int(figure[1]))
    pages = [text.split()[1] for member in members if (text := table.read(member.pid, "statm"))]
    return used_mib(sum(map(int, pages)) * _PAGE_BYTES) if pages else None


def _moved(table: ProcessTable, members: Sequence[_Member]) -> tuple[_Uses, _Uses] | tuple[None, None]:
    """Return the bytes read and written by process; None for both when one that is there may not be read."""
    read: _Uses = {}
    written: _Uses = {}
    for member in members:
        if match := _MOVED.match(table.read(member.pid, "io")):
            read[member.key] = Use(member.root, int(match[1]))
            written[member.key] = Use(member.root, int(match[2]))
        # Slurm leaves a process of root's in each job (its extern step), and that does nothing.
        elif table.owner(member.pid) not in (0, None):
            return None, None
    return read, written

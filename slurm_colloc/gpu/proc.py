# SPDX-License-Identifier: Apache-2.0
"""PID -> job: which of the node's processes belongs to which Slurm job, and which jobs are here.

A job is found by the kernel's cgroup path, else by the slurmstepd among the process's ancestors. The process's own
environment is the user's to write and is not read. No file is read beyond the length of an honest process's, and no
process that only calls itself slurmstepd is read twice.
"""

import os
import re
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

# v1: slurm[_<node>]/uid_U/job_J; v2: [<node>_]slurmstepd.scope/job_J, from 26.05 on the job's SLUID in place of job_J.
# All that under whatever slice or container. The first match counts and nothing under a user.slice does: there, and
# below their own step, users may make folders of any name.
_CGROUP_JOB = re.compile(
    r"(?:/(?!user\.slice/)[^/]+)*?/(?:slurm(?:_[^/]*)?/uid_[0-9]+|(?:[^/]*_)?slurmstepd\.scope)"
    r"/(?P<job>(?:job_(?P<id>[0-9]+)|s[0-9A-HJKMNP-TV-Z]{13}))(?=/|\Z)"
)
# All of the title, since setuid programs of root's take arguments of a user.
_STEPD = re.compile(rb"slurmstepd: \[([0-9]{1,20})(?:\.[^\]\0]*)?\]\0*")
_REAL_UID = re.compile(rb"^Uid:\s*([0-9]+)", re.MULTILINE)
# A process becomes another program or moves to another cgroup when it is young, so it is read a second time within a
# minute, and every process after some minutes; reading all at each pass would cost a node of 1,500 processes ten times
# what the rest of the sampler does. That a pid came round is seen at each pass.
_READ_ANEW_S = 60.0
_MINUTES_TO_READ_ALL = 10
# The PID namespace of the kernel itself (PROC_PID_INIT_INO): a GPU driver's pids are those of that one.
_HOST_NAMESPACE = "pid:[4026531836]"
# A command line has what its user wants, status has up to 65,536 groups in a user namespace, mountinfo all mounts of
# the node: the kernel's own come first. The file of cgroups v1 has a dozen lines of up to 4096 bytes.
_MOST_BYTES = {"cmdline": 256, "status": 512, "environ": 1 << 20, "mountinfo": 1 << 20}
_USUAL_MOST_BYTES = 65536


class Stat(NamedTuple):
    """One process as /proc/PID/stat has it.

    A pid alone is used again, with ``start_ticks``, the time at which it began, it is not.
    ``cpu_ticks`` are its own and those of the children that it waited for. One that has ``ended`` waits for its parent.
    """

    pid: int
    parent: int
    start_ticks: int
    command: str
    ended: bool
    cpu_ticks: int


def parse_stat(content: bytes) -> Stat | None:
    """Return what the line says; None for any other text. The name in parentheses may itself hold any of them."""
    pid, _, rest = content.partition(b" (")
    name, _, rest = rest.rpartition(b")")
    fields = rest.split(None, 20)
    with suppress(ValueError, IndexError):
        cpu_ticks = sum(map(int, fields[11:15]))
        ended = fields[0] in (b"Z", b"X")
        return Stat(int(pid), int(fields[1]), int(fields[19]), name.decode(errors="replace"), ended, cpu_ticks)
    return None


class _Step(NamedTuple):
    """A slurmstepd, and the job, or SLUID, that its cgroup is named after."""

    start_ticks: int
    job_id: str
    cgroup: str | None


def parse_cgroup_job(text: str) -> str | None:
    """Return the job id, or SLUID, in the text of /proc/PID/cgroup (v1 or v2); None outside any job."""
    return next((match["id"] or match["job"] for _, match in _cgroup_jobs(text)), None)


def parse_cgroup_folders(text: str) -> dict[str, str]:
    """Return the job's folder in each hierarchy of /proc/PID/cgroup that has one, by controller; v2's is ``""``."""
    return {name: match[0] for names, match in _cgroup_jobs(text) for name in names.split(",")}


def _cgroup_jobs(text: str) -> Iterator[tuple[str, re.Match[str]]]:
    # Not splitlines: a folder's name may hold all but a slash and a newline, and so forge a line of its own.
    for line in text.split("\n"):
        controllers, _, path = line.partition(":")[2].partition(":")
        if match := _CGROUP_JOB.match(path):
            yield controllers, match


def sees_host_pids() -> bool:
    """Return whether a pid that a driver tells means the same process here."""
    try:
        return os.readlink("/proc/self/ns/pid") == _HOST_NAMESPACE
    except OSError:
        return False


class ProcessTable:
    """The node's processes as of the last ``refresh``."""

    def __init__(self, root: str = "/proc") -> None:
        self._root = root
        self._status: dict[int, Stat] = {}
        self._cgroups: dict[int, tuple[str | None, dict[str, str]]] = {}
        self._inodes: dict[int, int] = {}
        self._young: set[int] = set()
        self._read_s, self._minutes = time.monotonic(), 0
        self._steps: dict[int, _Step] = {}
        # Processes that are called slurmstepd and are not Slurm's.
        self._others: set[int] = set()
        self._sluids: dict[str, str] = {}
        self._uid_map = self.read("self", "uid_map")
        self.refresh()

    def refresh(self) -> None:
        """Look again: at every process that was not there the last time, and at Slurm's own ones."""
        with os.scandir(self._root) as entries:
            # The kernel gives the folder of another process another inode, also where the pid is the same.
            inodes = {int(entry.name): entry.inode() for entry in entries if entry.name.isdigit()}
        before, self._inodes = self._inodes, inodes
        gone = {pid for pid, inode in before.items() if inodes.get(pid) != inode}
        self._young = self._young - gone | {pid for pid, inode in inodes.items() if before.get(pid) != inode}
        # The children of a process that ended have another parent now.
        orphans = {pid for pid, status in self._status.items() if status.parent in gone} if gone else set()
        self._forget(gone | orphans)
        now_s = time.monotonic()
        if now_s - self._read_s >= _READ_ANEW_S:
            self._read_s, self._minutes = now_s, (self._minutes + 1) % _MINUTES_TO_READ_ALL
            self._forget(self._young if self._minutes else set(self._status))
            self._young = set()
        for pid in inodes.keys() - self._status.keys():
            if (stat := self._fresh(pid)) is not None:
                self._status[pid] = stat
        self._find_steps()

    def _forget(self, pids: set[int]) -> None:
        self._others -= pids
        for pid in pids:
            self._status.pop(pid, None)
            self._cgroups.pop(pid, None)

    def _fresh(self, pid: int) -> Stat | None:
        return parse_stat(self.read(pid, "stat"))

    def _find_steps(self) -> None:
        before, self._steps = self._steps, {}
        for pid, status in self._status.items():
            if status.command != "slurmstepd" or pid in self._others:
                continue
            old = before.get(pid)
            # A child of slurmstepd has its name and title until it becomes the user's program.
            if old is None or old.start_ticks != status.start_ticks or status.parent in before:
                job_id = self._step_of(pid)
                now = self._fresh(pid) if job_id else None
                same = now is not None and now[:4] == status[:4]  # all but what it does
                old = _Step(status.start_ticks, job_id, None) if same else None
            if old is not None:
                # It is not in its cgroup from the first moment.
                self._steps[pid] = old if old.cgroup else old._replace(cgroup=self._cgroup_of(pid))
        self._sluids = {
            step.cgroup: step.job_id for step in self._steps.values() if step.cgroup and step.cgroup.startswith("s")
        }

    def read(self, pid: int | str, name: str) -> bytes:
        """Return a file of ``pid`` or ``self``, no more than an honest one has; empty when it may not be read."""
        left_bytes, content = _MOST_BYTES.get(name, _USUAL_MOST_BYTES), b""
        try:
            descriptor = os.open(f"{self._root}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                while left_bytes and (part := os.read(descriptor, left_bytes)):
                    content += part
                    left_bytes -= len(part)
                return content
            finally:
                os.close(descriptor)
        except OSError:  # it ended, or it is another user's: both mean "not visible", which the caller books as such
            return b""

    def pids(self) -> tuple[int, ...]:
        """Return every process seen."""
        return tuple(self._status)

    def status(self, pid: int) -> Stat | None:
        """Return what is known of ``pid`` now, None when it is not on this node or in another PID namespace."""
        return self._fresh(pid)

    def known(self, pid: int) -> Stat | None:
        """Return what the last ``refresh`` knew of ``pid``, without looking again."""
        return self._status.get(pid)

    def job_of_pid(self, pid: int) -> str:
        """Return the job of a PID, empty when it runs outside any job or cannot be seen.

        Its own cgroup is read now; its ancestors are those of the last ``refresh``, however many there are.
        """
        if job := self._job_named(self._cgroup_of(pid)):
            return job
        status, passed = self._fresh(pid), set[int]()
        while status is not None and status.pid not in passed:
            if status.pid in self._steps:
                return self._steps[status.pid].job_id
            passed.add(status.pid)
            status = self._status.get(status.parent)
        return ""

    def jobs(self) -> set[str]:
        """Return the jobs of which a slurmstepd is here."""
        return {step.job_id for step in self._steps.values()}

    def members(self) -> dict[str, list[int]]:
        """Return the processes of each job; slurmstepd is no member.

        Each new process is looked at once: one that changes its cgroup is found within a minute.
        """
        for pid in self._status.keys() - self._cgroups.keys():
            text = self.read(pid, "cgroup").decode(errors="replace")
            self._cgroups[pid] = parse_cgroup_job(text), parse_cgroup_folders(text)
        jobs = {pid: step.job_id for pid, step in self._steps.items()}
        members = defaultdict(list)
        for pid in self._status:
            if pid not in self._steps and (job := self._known_job(pid, jobs)):
                members[job].append(pid)
        return dict(members)

    def folders(self, pid: int) -> dict[str, str]:
        """Return the job's folders in the cgroups of a member, as ``parse_cgroup_folders`` does."""
        return self._cgroups[pid][1] if pid in self._cgroups else {}

    def _known_job(self, pid: int, jobs: dict[int, str]) -> str:
        """Return the job of ``pid`` by what is known of it and its ancestors, and note it in ``jobs`` for each."""
        line = []
        while pid not in jobs and pid in self._status:
            jobs[pid] = self._job_named(self._cgroups[pid][0])
            if jobs[pid]:
                break
            line.append(pid)
            pid = self._status[pid].parent
        job = jobs.get(pid, "")
        jobs.update(dict.fromkeys(line, job))
        return job

    def _cgroup_of(self, pid: int) -> str | None:
        return parse_cgroup_job(self.read(pid, "cgroup").decode(errors="replace"))

    def _job_named(self, named: str | None) -> str:
        """Return the job id for a job id or SLUID; empty for one that no slurmstepd here explains."""
        return self._sluids.get(named, "") if named and named.startswith("s") else named or ""

    def _step_of(self, pid: int) -> str:
        # Anybody may call a program slurmstepd; only root's, or one's own on a cluster without root, is Slurm's.
        if self.owner(pid) not in (0, os.geteuid()):
            self._others.add(pid)
            return ""
        match = _STEPD.fullmatch(self.read(pid, "cmdline"))
        return match[1].decode() if match else ""

    def owner(self, pid: int) -> int | None:
        """Return the real uid of ``pid``, -1 where it is in another user namespace; None when it is not known."""
        # There a user may be in 65,536 groups, all of which the kernel would write into the status before we see any.
        if self.read(pid, "uid_map") != self._uid_map:
            return None if self._fresh(pid) is None else -1
        # The owner of /proc/PID will not do: any process can make that root, by PR_SET_DUMPABLE.
        match = _REAL_UID.search(self.read(pid, "status"))
        return int(match[1]) if match else None

# SPDX-License-Identifier: Apache-2.0
"""One look at /proc: which process belongs to which Slurm job.

A job is found by the kernel's cgroup path, else by the slurmstepd among the process's ancestors. The process's own
environment is the user's to write and is never believed for that.
"""

import os
import re
from typing import NamedTuple

# v1: slurm[_<node>]/uid_U/job_J; v2: [<node>_]slurmstepd.scope/job_J, under whatever slice or container. The first
# match counts and nothing under user.slice does: there, and below their own step, users may make folders of any name.
_CGROUP_JOB = re.compile(
    r"^(?!/user\.slice/)(?:/[^/]+)*?/(?:slurm(?:_[^/]*)?/uid_[0-9]+|(?:[^/]*_)?slurmstepd\.scope)/job_([0-9]+)(?:/|$)"
)
# More GPUs than this on a node are a user's joke: the text comes from a process's environment.
_MOST_INDICES = 1024
_STEPD = re.compile(rb"slurmstepd: \[(\d+)(?:\.[^\]]*)?\]")
_REAL_UID = re.compile(rb"^Uid:\s*([0-9]+)", re.MULTILINE)


class Status(NamedTuple):
    """The part of /proc/PID/stat that the sampler uses."""

    parent: int
    start_ticks: int
    command: str


class NodeJob(NamedTuple):
    """A job step found on this node: its job and the GPU indices that Slurm gave to it."""

    job_id: str
    cluster: str
    node: str
    gres_indices: tuple[int, ...]

    def runs_on(self, cluster: str, node: str) -> bool:
        """Return whether Slurm started it on this node; one machine may carry nodes of several clusters."""
        return self.node in ("", node) and (not cluster or self.cluster in ("", cluster))


def parse_stat(text: str) -> Status:
    """Return parent, start time and name; the name stands in parentheses and may itself contain any of them."""
    name_from, name_to = text.index("(") + 1, text.rindex(")")
    fields = text[name_to + 2 :].split()
    return Status(int(fields[1]), int(fields[19]), text[name_from:name_to])


def parse_cgroup_job(text: str) -> str | None:
    """Return the job id in the text of /proc/PID/cgroup (v1 or v2), None outside any job."""
    for line in text.splitlines():
        match = _CGROUP_JOB.search(line.split(":", 2)[-1])
        if match:
            return match[1]
    return None


def parse_indices(text: str) -> tuple[int, ...]:
    """Return the indices in SLURM_JOB_GPUS (``0,1`` or ``0-2``); nothing when it holds anything but indices."""
    found: list[int] = []
    for item in filter(None, text.split(",")):
        first, dash, last = item.partition("-")
        if not item.isascii() or not first.isdigit() or (dash and not last.isdigit()) or len(item) > 9:
            return ()
        if int(last or first) >= _MOST_INDICES or len(found) > _MOST_INDICES:
            return ()
        found.extend(range(int(first), int(last or first) + 1))
    return tuple(found)


class ProcessTable:
    """A snapshot of the node's processes, read once for each pass of the sampler."""

    def __init__(self, root: str = "/proc") -> None:
        self._root = root
        self._status: dict[int, Status] = {}
        for name in os.listdir(root):
            if name.isdigit():
                text = self._read(int(name), "stat")
                if text:
                    self._status[int(name)] = parse_stat(text.decode(errors="replace"))

    def _read(self, pid: int, name: str) -> bytes:
        try:
            with open(f"{self._root}/{pid}/{name}", "rb") as stream:
                return stream.read()
        except OSError:  # it ended, or it is another user's: both mean "not visible", which the caller books as such
            return b""

    def pids(self) -> tuple[int, ...]:
        """Return every process seen."""
        return tuple(self._status)

    def status(self, pid: int) -> Status | None:
        """Return what is known of ``pid``, None when it is not on this node or in another PID namespace."""
        return self._status.get(pid)

    def environment(self, pid: int) -> dict[str, str]:
        """Return the environment ``pid`` was started with; empty when it may not be read."""
        pairs = (item.decode(errors="replace").partition("=") for item in self._read(pid, "environ").split(b"\0"))
        return {name: value for name, equals, value in pairs if equals}

    def job_of(self, pid: int) -> str:
        """Return the job that ``pid`` runs in, empty when it runs outside any job."""
        if pid not in self._status:
            return ""
        job = parse_cgroup_job(self._read(pid, "cgroup").decode(errors="replace"))
        if job:
            return job
        seen: set[int] = set()
        while pid in self._status and pid not in seen:
            seen.add(pid)
            found = self._step_of(pid)
            if found:
                return found
            pid = self._status[pid].parent
        return ""

    def _step_of(self, pid: int) -> str:
        if self._status[pid].command != "slurmstepd":
            return ""
        match = _STEPD.match(self._read(pid, "cmdline"))
        # Anybody may call a program slurmstepd; only root's, or one's own on a cluster without root, is Slurm's.
        if match is None or self._owner(pid) not in (0, os.geteuid()):
            return ""
        return match[1].decode()

    def _owner(self, pid: int) -> int:
        # Not the owner of /proc/PID: any process can make that root, by PR_SET_DUMPABLE.
        match = _REAL_UID.search(self._read(pid, "status"))
        return int(match[1]) if match else -1

    def node_jobs(self) -> tuple[NodeJob, ...]:
        """Return the job steps on this node, from the first process that each slurmstepd started."""
        steps = {pid: job for pid in self._status if (job := self._step_of(pid))}
        found = []
        for pid, status in self._status.items():
            if status.parent not in steps:
                continue
            environment = self.environment(pid)
            gpus = environment.get("SLURM_STEP_GPUS") or environment.get("SLURM_JOB_GPUS", "")
            cluster, node = environment.get("SLURM_CLUSTER_NAME", ""), environment.get("SLURMD_NODENAME", "")
            found.append(NodeJob(steps[status.parent], cluster, node, parse_indices(gpus)))
        return tuple(found)

# SPDX-License-Identifier: Apache-2.0
"""Waiting for jobs of the lab, and for their rows in the accounting."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from tests.cluster.errors import LabError

if TYPE_CHECKING:
    from tests.cluster.lab import Lab

# Whatever else Slurm says of a job is final.
ACTIVE = {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED"}
ACTIVE |= {"RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}


def states(lab: Lab) -> dict[int, str]:
    """Return the state of every job that the controller still knows, finished ones included."""
    return {job: state for job, _, state in _rows(lab)}


def _rows(lab: Lab) -> list[tuple[int, int, str]]:
    done = lab.run(["squeue", "-h", "--all", "-r", "-t", "all", "-o", "%A %F %T"], timeout=15)
    if done.returncode:
        raise LabError(f"squeue: {done.stderr.strip()}")
    rows = (line.split() for line in done.stdout.splitlines())
    return [(int(job), int(array), state) for job, array, state in rows]


def wait_finished(lab: Lab, job_ids: Iterable[int | str], timeout: float) -> dict[int, str]:
    wanted = {int(j) for j in job_ids}
    for _ in _polls(timeout):
        rows = [r for r in _rows(lab) if wanted & set(r[:2])]
        unknown = wanted - {i for row in rows for i in row[:2]}
        if unknown:
            raise LabError(f"the controller knows no job {', '.join(map(str, sorted(unknown)))}")
        if not any(state in ACTIVE for _, _, state in rows):
            return {job: state for job, _, state in rows}
    said = lab.run(["squeue", "-h", "--all", "-o", "%i %T %r %P %b %N"], timeout=15).stdout
    raise LabError(f"jobs not finished after {timeout:g} s:\n{said}")


def wait_state(lab: Lab, job: int | str, state: str, timeout: float) -> None:
    for _ in _polls(timeout):
        found = states(lab)[int(job)]
        if found == state:
            return
    raise LabError(f"job {job} is {found} and not {state} after {timeout:g} s")


def wait_accounted(lab: Lab, job_ids: Iterable[int | str], timeout: float) -> None:
    wanted = {str(j) for j in job_ids}
    # An array's rows reach the database one by one, so the controller says how many must come.
    tasks = {str(job) for job, array, _ in _rows(lab) if str(job) in wanted or str(array) in wanted}
    # Eligible too: slurmctld sends it up to four seconds after a short job's end, and until then `sacct -S` leaves the
    # job out although `sacct -j` shows it.
    argv = ["sacct", "-a", "-X", "-n", "-P", "-j", ",".join(wanted), "-o", "JobIDRaw,Eligible,End"]
    ended: set[str] = set()
    for _ in _polls(timeout):
        rows = [line.split("|") for line in lab.run(argv, timeout=30).stdout.splitlines()]
        ended = {job for job, *times in rows if not {"", "None", "Unknown"} & set(times)}
        if (tasks or wanted) <= ended:
            return
    raise LabError(f"no end in sacct after {timeout:g} s for jobs {', '.join(sorted((tasks or wanted) - ended))}")


def _polls(timeout: float) -> Iterator[None]:
    """Yield at once and then at growing intervals, once more after the time is over."""
    deadline, pause_s = time.monotonic() + timeout, 0.05
    while True:
        last = time.monotonic() >= deadline
        yield
        if last:
            return
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 0.5)

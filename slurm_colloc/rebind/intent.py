# SPDX-License-Identifier: Apache-2.0
"""A change of a waiting job that was written down, its fate, and why it is undone."""

import os
import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import NamedTuple, Protocol

from slurm_colloc.core.model import Footprint, Placement
from slurm_colloc.core.units import counted
from slurm_colloc.rebind.waiting import Change, Waiting
from slurm_colloc.slurm.pending import Assignments, PendingJob, parse_pending

# Why a job waits that only GPUs keep from starting.
_FOR_GPUS = frozenset({"None", "Priority", "Resources"})
# Why a job waits by what it asks for: number of jobs, begin time, somebody's hold and the like are none of that.
_OF_WHAT_IT_ASKS = r"BadConstraints|GRES|TRES|Billing|Wall|TimeLimit|Node|Mem|C[Pp][Uu]|Reserv|permitted"


class Control(Protocol):
    """A scontrol that changes and shows jobs, as the user who runs this."""

    def control(self, lines: Sequence[str]) -> str:
        """Return what scontrol prints for these lines."""


def records_after(slurm: Control, lines: Sequence[str], job_ids: Iterable[str]) -> dict[str, PendingJob]:
    """Have scontrol change jobs by these lines, and return the records of jobs as they are then, by their target."""
    lines = [*lines, *(f"show job {job_id}" for job_id in job_ids)]
    return parse_pending(slurm.control(lines)) if lines else {}


def own_records(
    slurm: Control, lines: Sequence[str], jobs: Iterable[Waiting], *, waiting: bool = True
) -> dict[str, list[PendingJob]]:
    """Have scontrol change jobs, and return those records of theirs that wait then, or not, by what sbatch told."""
    records: dict[str, list[PendingJob]] = {}
    for record in records_after(slurm, lines, (job.job_id for job in jobs)).values():
        if (record.state == "PENDING") is waiting and record.uid == os.geteuid():
            records.setdefault(record.job_id, []).append(record)
    return records


class Intent(NamedTuple):
    """A job whose change was written down, with its pending records as they are by now.

    ``is_fresh`` says that slurmctld was told of it just now: a record that is not as meant was refused, or altered.
    """

    job: Waiting
    change: Change
    records: Sequence[PendingJob]
    is_fresh: bool = False

    @property
    def changed(self) -> list[PendingJob]:
        """Return the records that are as meant, in part, or what became of that on its way."""
        to, back = self.change.to, self.change.back
        altered = back if self.is_fresh else {}
        return [record for record in self.records if record.has_any(to, back) or not record.has(altered)]

    @property
    def bound(self) -> list[PendingJob]:
        """Return the records that ask for the piece."""
        return [record for record in self.records if record.has(gpu_part(self.change.to))]

    def back(self, record: PendingJob) -> Assignments:
        """Return the update that undoes the change of a record, but for the parts that others have changed since."""
        change = self.change
        others = {_part(name) for name, value in change.to.items() if change.is_told and not record.has({name: value})}
        return {name: value for name, value in change.back.items() if _part(name) not in others}


def wait_for_gpus(records: Iterable[PendingJob]) -> bool:
    """Return whether only GPUs keep these waiting."""
    return all(record.reason in _FOR_GPUS for record in records)


def gpu_part(update: Assignments) -> Assignments:
    """Return what an update says of GPUs alone."""
    return {name: value for name, value in update.items() if "res" in name}


def _part(field: str) -> str:
    """Return which part of a request a field is of, Gres, TresPerNode and their like being of one."""
    return next((word for word in ("res", "Memory", "CPUs") if word in field), field)


def why_back(intent: Intent, *, undo: bool) -> str:
    """Return why a job is to be put back; empty where it is as meant and waits as before, or as asked."""
    change = intent.change
    if undo and intent.bound:
        return "undo"
    for record in intent.changed:
        if not change.is_told and not record.has(change.to):
            return "half"
        if record.reason not in change.reasons and re.search(_OF_WHAT_IT_ASKS, record.reason):
            return record.reason
    return "refused" if intent.is_fresh and not intent.bound else ""


def has_grown(change: Change, placement: Placement, footprint: Footprint) -> bool:
    """Return whether a piece is too small by what is known today."""
    if footprint.keep_whole:
        return True
    needs_mib = footprint.gpu_mem_peak_mib.q99 if footprint.gpu_mem_peak_mib else 0.0
    return needs_mib > (change.gpu_mem_q99_mib or 0.0) and str(placement.gres) != change.gres


def said_of(job: Waiting, change: Change) -> str:
    """Return what the job's own output says of its change if it begins with it, which its block looks at."""
    request = f"asked {job.request.asked} at {_clock(job.submitted_s)}"
    became = f"became {change.gres} at {_clock(change.at_s)}, by {counted(change.runs, 'run')} of the same job"
    bills = f"; Slurm bills {change.bills}, not {change.billed}" if change.bills and change.billed else ""
    return f"csub: {request}; {became}{bills}; never again: --colloc=late=off"


def _clock(at_s: float) -> str:
    return datetime.fromtimestamp(at_s).astimezone().isoformat(" ", "minutes")

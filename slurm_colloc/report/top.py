# SPDX-License-Identifier: Apache-2.0
"""The cluster now: who holds GPUs, and what they do with them where that is known."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from slurm_colloc.chart_model import LiveUse
from slurm_colloc.report.json_values import json_text
from slurm_colloc.report.layout import NO_TERMINAL, Terminal, cut, folded, list_lines, narrowed, table_lines
from slurm_colloc.report.text import local, stamp
from slurm_colloc.slurm.jobs import QueuedJob
from slurm_colloc.units import clock_time, counted, printable, significant

SCHEMA = 1
_NAME_COLUMNS = 20
# Which columns beside the name are left out first where there is no room for all: those of the highest rank.
_USER_RANKS = (3, 0, 1, 2, 4)
_JOB_RANKS = (0, 7, 6, 5, 4, 1, 2, 3)


class TopJob(NamedTuple):
    """A running job, the whole-GPU equivalents it holds, and its use; None where that is not known."""

    held: QueuedJob
    gpus: float | None
    live: LiveUse | None


class Top(NamedTuple):
    """The cluster at ``at_s``; ``installed_gpus`` is None where no site file says, ``source`` says who saw the use.

    ``rejected`` is how many lines of squeue could not be read.
    """

    cluster: str
    at_s: float
    installed_gpus: float | None
    jobs: Sequence[TopJob]
    source: str
    rejected: int


class _User(NamedTuple):
    name: str
    jobs: int
    gpus: float | None
    unsized: int
    live: Sequence[LiveUse]


def as_text(top: Top, terminal: Terminal = NO_TERMINAL) -> str:
    """Return the picture for a terminal, or for what is none."""
    lines = [*(piece for line in _heading(top) for piece in folded(line, terminal.columns)), *_tables(top, terminal)]
    return "".join(f"{line}\n" for line in lines)


def _chosen(rows: list[list[str]], ranks: Sequence[int], terminal: Terminal) -> list[Sequence[str]]:
    """Return rows with the columns that fit, beside names of no more than _NAME_COLUMNS; no figure is cut."""
    if terminal.columns is not None:
        rows = [[cut(cell, _NAME_COLUMNS) for cell in row] for row in rows]
    return narrowed(rows, ranks, terminal, _NAME_COLUMNS)


def _heading(top: Top) -> list[str]:
    users = _users(top.jobs)
    gpus, unsized = _gpus(top.jobs)
    installed = f" of {top.installed_gpus:g} installed (site.toml)" if top.installed_gpus is not None else ""
    at = stamp(local(top.at_s))
    seen = sum(job.live is not None for job in top.jobs)
    holders = f"{counted(len(top.jobs), 'job')} with GPUs of {counted(len(users), 'user')}"
    lines = [
        # To whom Slurm hides others' jobs, squeue shows some.
        f"{printable(top.cluster) or 'cluster not named'}, {at}: squeue shows {holders}, "
        f"{_size(gpus, unsized)} GPUs{installed} in whole-GPU equivalents",
        f"use known of {seen} of {counted(len(top.jobs), 'job')}: {printable(top.source)}",
    ]
    if top.rejected:
        lines.append(f"{counted(top.rejected, 'line')} of squeue could not be read")
    if not top.jobs:
        lines.append("no job holds a GPU")
    return lines


def _tables(top: Top, terminal: Terminal) -> list[str]:
    """Return the lines of what each user holds, and each job."""
    if not top.jobs:
        return []
    rows = [["USER", "JOBS", "GPUS", "SM %", "UTIL %", "MEM MiB"]]
    for user in _users(top.jobs):
        rows.append([printable(user.name), str(user.jobs), _size(user.gpus, user.unsized), *_cells(user.live)])
    every = [job.live for job in top.jobs if job.live]
    rows.append(["all", str(len(top.jobs)), _size(*_gpus(top.jobs)), *_cells(every)])
    jobs = [["JOB", "USER", "PARTITION", "NODES", "GRES", "TIME", "SM %", "UTIL %", "MEM MiB"]]
    for job in sorted(top.jobs, key=_least_used):
        one = job.held
        words = (one.job_id, one.user, one.partition, one.node_list, ",".join(map(str, one.gres or ())))
        jobs.append(
            [
                *map(printable, words),
                "-" if one.ran_s is None else clock_time(one.ran_s),
                *_cells([job.live] if job.live else []),
            ]
        )
    of_users, of_jobs = _chosen(rows, _USER_RANKS, terminal), _chosen(jobs, _JOB_RANKS, terminal)
    return ["", *table_lines(of_users), "", *list_lines(of_jobs)]


def _users(jobs: Sequence[TopJob]) -> list[_User]:
    of: dict[str, list[TopJob]] = defaultdict(list)
    for job in jobs:
        of[job.held.user].append(job)
    found = [_User(name, len(own), *_gpus(own), [job.live for job in own if job.live]) for name, own in of.items()]
    return sorted(found, key=lambda user: (-(user.gpus or 0.0), user.name))


def _gpus(jobs: Sequence[TopJob]) -> tuple[float | None, int]:
    """Return what jobs hold, None where that is known of none of them, and of how many it is not known."""
    known = [job.gpus for job in jobs if job.gpus is not None]
    return sum(known) if known or not jobs else None, len(jobs) - len(known)


def _size(gpus: float | None, unsized: int) -> str:
    return "?" if gpus is None else f"{significant(gpus, 4)}{'+?' if unsized else ''}"


def _least_used(job: TopJob) -> tuple[bool, float, float, str]:
    """Return what sorts the jobs that use least of most first; those of which nothing is known come last."""
    known = (job.live.sm_active_pct, job.live.gpu_util_pct) if job.live else ()
    active = next((value for value in known if value is not None), None)
    return active is None, active or 0.0, -(job.gpus or 0.0), job.held.job_id


def _cells(lives: Sequence[LiveUse]) -> list[str]:
    """Return means over units and the sum of the memory; "-" where that is not known."""
    known = [live.gpu_mem_mib for live in lives if live.gpu_mem_mib is not None]
    means = (_mean([(getattr(live, name), live.units) for live in lives]) for name in ("sm_active_pct", "gpu_util_pct"))
    memory = str(sum(known)) if known and len(known) == len(lives) else "-"
    return [*("-" if mean is None else f"{mean:.0f}" for mean in means), memory]


def _mean(values: Sequence[tuple[float | None, int]]) -> float | None:
    known = [(value, units) for value, units in values if value is not None and units]
    return sum(value * units for value, units in known) / sum(units for _, units in known) if known else None


def as_json(top: Top) -> str:
    """Return the same as JSON, null for what is not known."""
    jobs = [
        {
            "job_id": job.held.raw_id,
            "name": job.held.job_id,
            "user": job.held.user,
            "gres": [str(gres) for gres in job.held.gres or ()],
            "ran_s": job.held.ran_s,
            "partition": job.held.partition,
            "node_list": job.held.node_list,
            "gpus": job.gpus,
            "live": job.live,
        }
        for job in top.jobs
    ]
    shown = {
        "cluster": top.cluster,
        "at_s": top.at_s,
        "installed_gpus": top.installed_gpus,
        "source": top.source,
        "rejected": top.rejected,
        "users": [
            {"name": user.name, "jobs": user.jobs, "gpus": user.gpus, "jobs_without_size": user.unsized}
            for user in _users(top.jobs)
        ],
        "jobs": jobs,
    }
    return json_text(SCHEMA, shown)


FORMATS: dict[str, Callable[..., str]] = {"text": as_text, "json": as_json}

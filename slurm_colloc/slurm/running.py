# SPDX-License-Identifier: Apache-2.0
"""The running jobs of one user as squeue and sstat print them -> NamedTuples; asked for and read in one place."""

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from slurm_colloc.errors import InputError
from slurm_colloc.model import Gres
from slurm_colloc.slurm.gres import parse_gres, parse_tres_gres, printed_mib, tres_mib, tres_value
from slurm_colloc.units import time_span_s, whole

_FIELDS = (
    *("JobID", "JobArrayID", "HetJobID", "NumNodes", "NumCPUs", "tres-alloc", "tres-per-node", "TimeLeft", "TimeUsed"),
    *("Partition", "Account", "QOS", "NodeList"),
)
# 22.05 to 26.05 take a suffix in place of a width; none of these values can hold it.
_FORMAT = ",".join(f"{field}:|" for field in _FIELDS)
_HOLDER_FIELDS = ("JobID", "JobArrayID", "UserName", "tres-alloc", "tres-per-node", "TimeUsed", "Partition", "NodeList")
_PREFIX = re.compile(r"\bgres[:/]")


class Running(NamedTuple):
    """A running job; ``job_id`` is its own, ``name`` of a task of an array "<array>_<task>", else the same.

    ``left_s`` is infinite without a limit.
    """

    job_id: str
    name: str
    hetjob: bool
    nodes: int
    cpus: int
    mem_mib: int | None
    gres: tuple[Gres, ...]
    left_s: float
    ran_s: float
    partition: str
    account: str
    qos: str
    node: str

    @property
    def array_task(self) -> bool:
        """Return whether it is a task of an array."""
        return self.name != self.job_id


class Held(NamedTuple):
    """A running job of anybody's and what it holds; ``name`` as of ``Running``."""

    job_id: str
    name: str
    user: str
    gres: tuple[Gres, ...]
    ran_s: float
    partition: str
    node_list: str


def holders_question() -> tuple[str, ...]:
    """Return the command that lists all running jobs that the user who asks may see."""
    return ("squeue", "-h", "-a", "-t", "R", "-O", ",".join(f"{field}:|" for field in _HOLDER_FIELDS))


def parse_holders(text: str) -> tuple[tuple[Held, ...], int]:
    """Return the jobs that hold gres in squeue's answer, and how many lines were not of the expected form."""
    found, rejected = [], 0
    for line in text.splitlines():
        values = line.split("|")
        try:
            job_id, name, user, tres, asked, ran, partition, nodes, rest = values
            if rest:
                raise ValueError(rest)
            # Where Slurm's accounting knows of no GPUs it still knows what was asked for.
            gres = parse_tres_gres(tres) or parse_gres(_PREFIX.sub("", asked))
            held = Held(job_id, name, user, gres, time_span_s(ran), partition, nodes)
        except (InputError, ValueError):
            rejected += 1
            continue
        if any(one.name in ("gpu", "mps", "shard") for one in gres):
            found.append(held)
    return tuple(found), rejected


def jobs_question(uid: int) -> tuple[str, ...]:
    """Return the command that lists a user's running jobs."""
    return ("squeue", "-h", "-a", "-t", "R", "-u", str(uid), "-O", _FORMAT)


def left_question(uid: int) -> tuple[str, ...]:
    """Return the command that lists a user's running jobs, and what time each has left."""
    return ("squeue", "-h", "-a", "-t", "R", "-u", str(uid), "-o", "%i|%L")


def parse_left(text: str) -> dict[str, float]:
    """Return the seconds that jobs have left, by id; one that is not of the expected form is left out."""
    found = {}
    for name, bar, left in (line.partition("|") for line in text.splitlines()):
        with suppress(InputError):
            if bar:
                found[name] = time_span_s(left)
    return found


def steps_question(uid: int) -> tuple[str, ...]:
    """Return the command that lists a user's running steps."""
    return ("squeue", "-h", "-a", "-s", "-u", str(uid), "-o", "%i|%j")


def memory_question(job_id: str) -> tuple[str, ...]:
    """Return the command that tells what the steps of a job have used of their node's memory so far."""
    return ("sstat", "-a", "-n", "-P", "-j", job_id, "-o", "JobID,NTasks,MaxRSS")


def parse_running(text: str) -> tuple[Running, ...]:
    """Return the jobs in squeue's answer; one that is not of the expected form is left out, for nobody can join it."""
    found = []
    for line in text.splitlines():
        values = line.split("|")
        if len(values) == len(_FIELDS) + 1:
            try:
                found.append(_running(dict(zip(_FIELDS, values, strict=False))))
            except (InputError, ValueError):
                continue
    return tuple(found)


def _running(values: Mapping[str, str]) -> Running:
    tres = values["tres-alloc"]
    mem_mib = printed_mib(tres_value(tres, "mem"))
    return Running(
        job_id=values["JobID"],
        name=values["JobArrayID"],
        hetjob=values["HetJobID"] not in ("N/A", "0", ""),
        nodes=int(values["NumNodes"]),
        cpus=int(values["NumCPUs"]),
        mem_mib=None if mem_mib is None else math.floor(mem_mib),
        # Where Slurm's accounting knows of no GPUs it still knows what was asked for.
        gres=parse_tres_gres(tres) or parse_gres(_PREFIX.sub("", values["tres-per-node"])),
        left_s=time_span_s(values["TimeLeft"]),
        ran_s=time_span_s(values["TimeUsed"]),
        partition=values["Partition"],
        account=values["Account"],
        qos=values["QOS"],
        node=values["NodeList"],
    )


def parse_steps(text: str) -> tuple[tuple[str, str], ...]:
    """Return the steps in squeue's answer as (id, name)."""
    return tuple((step, name) for step, bar, name in (line.partition("|") for line in text.splitlines()) if bar)


def parse_used_mib(text: str) -> int | None:
    """Return the host memory of all steps in sstat's answer, each task counted at its step's largest; None if unknown.

    The numbers are largest ones since each step began, so their sum is no less than what was ever used at a time.
    """
    rows: Sequence[list[str]] = [line.split("|") for line in text.splitlines() if line]
    total = 0
    for row in rows:
        used_mib, tasks = (tres_mib(row[2]), whole(row[1])) if len(row) == 3 else (None, None)
        if not used_mib or tasks is None:
            return None
        total += used_mib * tasks
    return total or None

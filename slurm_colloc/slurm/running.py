# SPDX-License-Identifier: Apache-2.0
"""The jobs that wait and run as squeue prints them; asked for and read in one place."""

import math
import re
from contextlib import suppress
from typing import NamedTuple

from slurm_colloc.errors import InputError
from slurm_colloc.model import Gres
from slurm_colloc.slurm.gres import parse_gres, parse_tres_gres
from slurm_colloc.units import time_span_s, whole

_HOLDER_FIELDS = ("JobID", "JobArrayID", "UserName", "tres-alloc", "tres-per-node", "TimeUsed", "Partition", "NodeList")
_PREFIX = re.compile(r"\bgres[:/]")


class Held(NamedTuple):
    """A running job of anybody's and what it holds; ``name`` of a task of an array is "<array>_<task>"."""

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


class Limited(NamedTuple):
    """A running job of anybody's with a time limit; ``asked_id`` is that of its array, by which csub knows it."""

    job_id: str
    asked_id: str
    user: str
    gres: tuple[Gres, ...]
    ran_min: float
    limit_min: float
    partition: str


def limited_question() -> tuple[str, ...]:
    """Return the command that lists the time limits of all running jobs."""
    return ("squeue", "-h", "-a", "-r", "-t", "R", "-o", "%i|%F|%A|%u|%b|%M|%l|%P")


def parse_limited(text: str) -> tuple[Limited, ...]:
    """Return the jobs in the answer to ``limited_question``; one without a limit, or of another form, is left out."""
    found = []
    for line in text.splitlines():
        with suppress(InputError, ValueError):
            job_id, array, raw_id, user, gres, ran, limit, partition = line.split("|")
            asked_id = array if "_" in job_id else raw_id
            held = parse_gres(_PREFIX.sub("", gres)) if gres != "N/A" else ()
            limited = Limited(job_id, asked_id, user, held, time_span_s(ran) / 60, time_span_s(limit) / 60, partition)
            found += [limited] if limited.limit_min < math.inf else []
    return tuple(found)


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


class Task(NamedTuple):
    """One job, or one task of an array, that has not been forgotten; ``task`` is None for a job of its own."""

    task: int | None
    state: str
    reason: str
    ran: str

    @property
    def waits(self) -> bool:
        """Return whether it waits for its dependency, and for nothing that its user did since."""
        return self.state == "PENDING" and self.reason == "Dependency"

    @property
    def began(self) -> bool:
        """Return whether it has ever run."""
        return self.state not in ("PENDING", "CANCELLED") or self.ran.strip("0:") != ""


def tasks_question(job_id: str) -> tuple[str, ...]:
    """Return the command that lists all tasks of a job."""
    return ("squeue", "-h", "-a", "-r", "-t", "all", "-j", job_id, "-o", "%K|%T|%M|%r")


def parse_tasks(text: str) -> tuple[Task, ...]:
    """Return the tasks in the answer to ``tasks_question``.

    Raises:
        InputError: a row of another form.
    """
    found = []
    for line in filter(str.strip, text.splitlines()):
        words = line.split("|", 3)
        if len(words) < 4:
            raise InputError(f"squeue printed '{line}', which has not 4 columns")
        task, state, ran, reason = words
        found.append(Task(whole(task), state, reason.strip(), ran))
    return tuple(found)

# SPDX-License-Identifier: Apache-2.0
"""What Slurm says of jobs: of those that wait and run (squeue), of one (sacct, scontrol), and its GPUs."""

import re
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from slurm_colloc.core.errors import InputError
from slurm_colloc.core.model import Gres
from slurm_colloc.core.units import time_limit_min, time_span_s, whole
from slurm_colloc.slurm.gres import parse_gres, parse_tres_gres, split_items, tres_mib, tres_value
from slurm_colloc.slurm.hostlist import expand
from slurm_colloc.slurm.parse import FINAL_STATES, parse_records, parse_state
from slurm_colloc.slurm.sinfo import indices

_NO_WORDS = ("(null)", "None", "N/A", "Unknown")
_PREFIX = re.compile(r"\bgres[:/]")

# Jobs that wait or run, as squeue has them

# For SLURM_TIME_FORMAT=%s. A field without a width is printed whole. What might hold a "|" comes last.
_QUEUE_FIELDS = ("JobArrayID", "ArrayJobID", "UserName", "State", "StartTime", "Dependency")
QUEUE = ("squeue", "-h", "-a", "-O", ",".join(f"{field}:|" for field in _QUEUE_FIELDS))


class QueuedJob(NamedTuple):
    """A job of anybody's, or a task of an array, that waits or runs.

    ``job_id`` is as Slurm's commands show it, "4711_2"; ``array_id`` is that of the array, as sbatch said it.
    ``start_s`` is when it began, or is expected to; None where Slurm does not say.
    """

    job_id: str
    array_id: str
    user: str = ""
    state: str = ""
    start_s: int | None = None
    dependency: str = ""


def parse_queue(text: str) -> tuple[tuple[QueuedJob, ...], int]:
    """Return the jobs in the answer to QUEUE, and how many lines are of another form."""
    found, rejected = [], 0
    for line in filter(str.strip, text.splitlines()):
        cells = line.split("|", len(_QUEUE_FIELDS) - 1)
        if len(cells) < len(_QUEUE_FIELDS) or not cells[-1].endswith("|"):
            rejected += 1
            continue
        job_id, array_id, user, state, start, dependency = cells
        found.append(QueuedJob(job_id, array_id, user, state, whole(start), dependency.removesuffix("|").strip()))
    return tuple(found), rejected


# One job, as sacct has it, or where there is none scontrol

# A job, a task of an array, a component of a heterogeneous job; nothing else is put to sacct.
JOB_ID = re.compile(r"[0-9]{1,18}(?:[_+][0-9]{1,18})?", re.ASCII)
# What users write comes last.
_FIELDS = (
    *("JobID", "JobIDRaw", "User", "Account", "Partition", "QOS", "State", "ExitCode", "Submit", "Start", "End"),
    *("Timelimit", "AllocCPUS", "ReqTRES", "AllocTRES", "NodeList", "MaxRSS", "TotalCPU", "Reason"),
    "Suspended",
    *("WorkDir", "SubmitLine", "JobName"),
)


class Accounted(NamedTuple):
    """One run of a job as Slurm has it; times in UTC epoch seconds, empty or None where Slurm does not say.

    ``time_limit_min`` is infinite without a limit. ``host_mem_peak_mib`` is the largest of a task of its steps,
    ``cpu_time_s`` what they computed in all. ``reason`` is why it waits. ``billing`` is AllocTRES's, empty before.
    """

    job_id: str
    raw_id: str
    user: str
    account: str
    partition: str
    qos: str
    state: str
    exit_code: str
    submit_s: int | None
    start_s: int | None
    end_s: int | None
    time_limit_min: float | None
    cpus: int | None
    mem_mib: int | None
    asked: tuple[Gres, ...]
    given: tuple[Gres, ...]
    node_list: str
    host_mem_peak_mib: int | None
    cpu_time_s: float | None
    reason: str
    work_dir: str
    submit_line: str
    job_name: str
    billing: str = ""
    suspended_s: float | None = None

    @property
    def task(self) -> int | None:
        """Return its number in an array; None of a job of its own, and of several tasks that wait: "12_[3-5]"."""
        return whole(self.job_id.partition("_")[2])

    @property
    def status(self) -> int:
        """Return its exit status, negative for the signal that ended it."""
        status, _, number = self.exit_code.partition(":")
        return -(whole(number) or 0) or whole(status) or 0

    @property
    def is_final(self) -> bool:
        """Return whether the job has ended, and does not come back."""
        return self.state in FINAL_STATES


def accounted_question(job_id: str) -> tuple[tuple[str, ...], str]:
    """Return the command that asks sacct for all runs of a job with their steps, and its delimiter.

    The command is for SLURM_TIME_FORMAT=%s; nobody can guess the delimiter, which a name then cannot hold.

    Raises:
        InputError: ``job_id`` is none.
    """
    if not JOB_ID.fullmatch(job_id):
        raise InputError(f"'{job_id}' is no id of a job, such as 4711, 4711_2 or 4711+0")
    delimiter = f"\x1f{secrets.token_hex(8)}\x1f"
    words = ("sacct", "-D", "-n", "-p", "--noconvert", f"--delimiter={delimiter}", "-j", job_id)
    return (*words, "-o", ",".join(_FIELDS)), delimiter


def parse_accounted(text: str, delimiter: str) -> tuple[Accounted, ...]:
    """Return the runs in sacct's answer, in its order; what is no whole row at its end is left out."""
    found: list[Accounted] = []
    # By the columns, and not by their lines: a name may begin with a newline.
    cells, width = text.split(delimiter), len(_FIELDS)
    for at in range(0, len(cells) - width, width):
        values = dict(zip(_FIELDS, cells[at : at + width], strict=True))
        values["JobID"] = values["JobID"].removeprefix("\n")
        if "." not in values["JobID"]:
            found.append(_of_sacct(values))
        elif found and values["JobID"].startswith(f"{found[-1].job_id}."):
            peak_mib = tres_mib(values["MaxRSS"])
            known = [size for size in (found[-1].host_mem_peak_mib, peak_mib) if size is not None]
            found[-1] = found[-1]._replace(host_mem_peak_mib=max(known, default=None))
    return tuple(found)


def _of_sacct(values: Mapping[str, str]) -> Accounted:
    given = values["AllocTRES"]
    state = parse_state(values["State"])
    cpu_s = _seconds(values["TotalCPU"])
    return Accounted(
        job_id=values["JobID"],
        raw_id=values["JobIDRaw"],
        user=values["User"],
        account=values["Account"],
        partition=values["Partition"],
        qos=values["QOS"],
        state=state,
        exit_code=values["ExitCode"],
        submit_s=whole(values["Submit"]),
        start_s=whole(values["Start"]),
        end_s=whole(values["End"]),
        time_limit_min=_minutes(values["Timelimit"]),
        cpus=whole(values["AllocCPUS"]) or None,
        mem_mib=tres_mib(tres_value(given, "mem")),
        asked=_gres(values["ReqTRES"]),
        given=_gres(given),
        node_list="" if values["NodeList"] == "None assigned" else values["NodeList"],
        host_mem_peak_mib=None,
        # Slurm adds it up when a step ends.
        cpu_time_s=cpu_s if cpu_s and state != "RUNNING" else None,
        reason="" if values["Reason"] == "None" else values["Reason"],
        work_dir=values["WorkDir"],
        submit_line=values["SubmitLine"],
        job_name=values["JobName"],
        billing=tres_value(given, "billing"),
        suspended_s=_seconds(values["Suspended"]),
    )


def parse_controller(text: str) -> tuple[Accounted, ...]:
    """Return the jobs in the answer to ``scontrol show job -o`` under SLURM_TIME_FORMAT=%s."""
    return tuple(_of_controller(record) for record in parse_records(text, first=True) if "JobId" in record)


def with_controllers(rows: Sequence[Accounted], live: Sequence[Accounted]) -> tuple[Accounted, ...]:
    """Return accounting's runs, those without an end as slurmctld has them, and what it alone knows."""
    left = {job.raw_id: job for job in live}
    found = []
    for row in rows:
        job = left.get(row.raw_id)
        if row.end_s is None and job is not None:
            asked = row.asked or job.asked
            found.append(job._replace(submit_line=row.submit_line, asked=asked, suspended_s=row.suspended_s))
            del left[row.raw_id]
        else:
            found.append(row)
            if job is not None and job.start_s == row.start_s:
                del left[row.raw_id]
    return (*found, *left.values())


def _of_controller(record: Mapping[str, str]) -> Accounted:
    def known(key: str) -> str:
        value = record.get(key, "")
        return "" if value in _NO_WORDS else value

    raw_id, tasks = record["JobId"], known("ArrayTaskId")
    het = known("HetJobOffset")
    job_id = f"{record.get('ArrayJobId', raw_id)}_{tasks}" if tasks else raw_id
    # 22.05 calls it TRES, of a job that waits too.
    given = known("AllocTRES") or (known("TRES") if known("NodeList") else "")
    state = parse_state(known("JobState"))
    running = state in ("RUNNING", "SUSPENDED", "COMPLETING")
    return Accounted(
        job_id=f"{known('HetJobId')}+{het}" if het else job_id,
        raw_id=raw_id,
        user=known("UserId").partition("(")[0],
        account=known("Account"),
        partition=known("Partition"),
        qos=known("QOS"),
        state=state,
        exit_code=known("ExitCode"),
        submit_s=whole(known("SubmitTime")),
        start_s=None if state == "PENDING" else whole(known("StartTime")),
        # Of a job that runs it is when its time limit is over.
        end_s=None if running or state == "PENDING" else whole(known("EndTime")),
        time_limit_min=_minutes(known("TimeLimit")),
        cpus=whole(known("NumCPUs")) if given else None,
        mem_mib=tres_mib(tres_value(given, "mem")),
        asked=_gres(known("ReqTRES")) or _gres(known("TRES")) or _gres("", known("TresPerNode") or known("TresPerJob")),
        given=_gres(given),
        node_list=known("NodeList"),
        host_mem_peak_mib=None,
        cpu_time_s=None,
        reason=known("Reason"),
        work_dir=known("WorkDir"),
        submit_line=known("SubmitLine"),
        job_name=known("JobName"),
    )


def _gres(tres: str, asked: str = "") -> tuple[Gres, ...]:
    """Return the gres of a job; where Slurm's accounting knows of no GPUs it still knows what was asked for."""
    with suppress(InputError):
        return parse_tres_gres("" if tres in _NO_WORDS else tres) or parse_gres(_PREFIX.sub("", asked))
    return ()


def _minutes(text: str) -> float | None:
    with suppress(InputError):
        return time_limit_min(text)
    return None


def _seconds(text: str) -> float | None:
    """Return ``[days-]hours:minutes:seconds``, sacct's TotalCPU with thousandths too; None of what is no time."""
    with suppress(InputError):
        return time_span_s(text.partition(".")[0])
    return None


# Which GPUs of a node a job has: open to everybody, where Slurm does not keep jobs private

_STARTED = re.compile(r" StartTime=(\S+) ")
_GIVEN = re.compile(r" Nodes=(\S+) CPU_IDs=\S* Mem=\d+ GRES=(\S*)(?= )")
# A name, a comment or a path may imitate what Slurm says of nodes. Of these each job has one: where there are more,
# nothing is said.
_ONCE = (" JobState=", " MinCPUsNode=", " WorkDir=")


class HeldHere(NamedTuple):
    """Indices of the GPUs that a job has on a node, and its part of one that it shares; None where it shares none."""

    gres_indices: tuple[int, ...]
    weight: float | None


def held_question(job_id: str) -> tuple[str, ...]:
    """Return the command that says where a job has which GPUs."""
    return ("scontrol", "show", "job", "-d", "-o", job_id)


def parse_held(text: str, job_id: str, node: str) -> HeldHere | None:
    """Return what a job has on a node, by ``scontrol show job -d -o``; None where that is not said, or said twice.

    A job that is elsewhere by Slurm's word is one of which nothing is said here.
    """
    # By the number of an array's last task, Slurm shows all of its tasks.
    here = [one for one in parse_all_held(text, {job_id}) if one.node == node]
    numbers = sorted({number for one in here for number in one.gres_indices})
    weights = [one.weight for one in here if one.weight is not None]
    return HeldHere(tuple(numbers), weights[-1] if weights else None) if here else None


class Held(NamedTuple):
    """What a job has of one gres on a node, and since when it runs, None where that is not said; see HeldHere."""

    job_id: str
    start_s: int | None
    node: str
    type: str
    gres_indices: tuple[int, ...]
    weight: float | None


# For SLURM_TIME_FORMAT=%s.
ALL_HELD = ("scontrol", "show", "job", "-d", "-o")


def parse_all_held(text: str, known: Collection[str]) -> tuple[Held, ...]:
    """Return what the ``known`` jobs have where, by ALL_HELD; nothing of those of which it says that twice."""
    lines: dict[str, list[str]] = {}
    for line in text.split("\n"):
        job_id = line.partition(" ")[0].removeprefix("JobId=")
        if job_id in known and line.startswith("JobId="):
            lines.setdefault(job_id, []).append(line)
    return tuple(one for job_id, own in lines.items() if len(own) == 1 for one in _held(job_id, own[0]))


def _held(job_id: str, line: str) -> Iterator[Held]:
    if any(line.count(key) != 1 for key in _ONCE):
        return
    began, end = line.index(_ONCE[0]), line.index(_ONCE[1]) + 1
    start = _STARTED.search(line, began, end)
    for nodes, gres in _GIVEN.findall(line, began, end):
        with suppress(InputError):
            here: list[tuple[str, tuple[int, ...], float | None]] = [("", (), None)]
            for item in split_items(gres):
                numbers = tuple(sorted(indices(item.partition("(")[2].rstrip(")"))))
                for one in parse_gres(item):
                    if one.name in ("gpu", "mps", "shard"):
                        here.append((one.type, numbers, float(one.quantity) if one.name != "gpu" else None))
            for node in expand(nodes):
                yield from (Held(job_id, whole(start[1]) if start else None, node, *of) for of in here)

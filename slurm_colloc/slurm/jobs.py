# SPDX-License-Identifier: Apache-2.0
"""Jobs as Slurm has them: those that wait and run (squeue), the runs of one (sacct, scontrol), and its GPUs."""

import re
import secrets
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from slurm_colloc.core.errors import InputError
from slurm_colloc.core.model import Gres
from slurm_colloc.core.units import time_limit_min, time_span_s, whole
from slurm_colloc.slurm.gres import DEVICES, parse_gres, parse_tres_gres, split_items, tres_mib, tres_value
from slurm_colloc.slurm.hostlist import expand
from slurm_colloc.slurm.parse import FINAL_STATES, parse_records, parse_state
from slurm_colloc.slurm.sinfo import indices

_NO_WORDS = ("(null)", "None", "N/A", "Unknown")
_PREFIX = re.compile(r"\bgres[:/]")

# Jobs that wait or run, as squeue has them

# For SLURM_TIME_FORMAT=%s. A field without a width is printed whole; the one that might hold a "|" comes last.
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
    lines = [line for line in text.splitlines() if line.strip()]
    rows = [line[:-1].split("|", len(_QUEUE_FIELDS) - 1) for line in lines if line.endswith("|")]
    jobs = tuple(
        QueuedJob(job_id, array_id, user, state, whole(start), dependency.strip())
        for job_id, array_id, user, state, start, dependency in (row for row in rows if len(row) == len(_QUEUE_FIELDS))
    )
    return jobs, len(lines) - len(jobs)


# One job, as sacct has it, or where there is none scontrol

# A job, a task of an array, a component of a heterogeneous job; nothing else is put to sacct.
JOB_ID = re.compile(r"[0-9]{1,18}(?:[_+][0-9]{1,18})?", re.ASCII)
# Users write the last three.
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

    The command is for SLURM_TIME_FORMAT=%s; the delimiter is drawn anew each time, so that no name holds it.

    Raises:
        InputError: ``job_id`` is none.
    """
    if not JOB_ID.fullmatch(job_id):
        raise InputError(f"'{job_id}' is no id of a job, such as 4711, 4711_2 or 4711+0")
    delimiter = f"\x1f{secrets.token_hex(8)}\x1f"
    words = ("sacct", "-D", "-n", "-p", "--noconvert", f"--delimiter={delimiter}", "-j", job_id)
    return (*words, "-o", ",".join(_FIELDS)), delimiter


def parse_accounted(text: str, delimiter: str) -> tuple[Accounted, ...]:
    """Return the runs in sacct's answer, in its order, without a row at its end that is not whole."""
    runs: list[Accounted] = []
    # A name may begin with a newline: rows are told by their columns, not by their lines.
    cells, width = text.split(delimiter), len(_FIELDS)
    for start in range(0, len(cells) - width, width):
        values = dict(zip(_FIELDS, cells[start : start + width], strict=True))
        job_id = values["JobID"].removeprefix("\n")
        if "." not in job_id:
            runs.append(_accounted(values | {"JobID": job_id}))
        elif runs and job_id.startswith(f"{runs[-1].job_id}."):
            sizes = (runs[-1].host_mem_peak_mib, tres_mib(values["MaxRSS"]))
            peak_mib = max((size for size in sizes if size is not None), default=None)
            runs[-1] = runs[-1]._replace(host_mem_peak_mib=peak_mib)
    return tuple(runs)


def _accounted(values: Mapping[str, str]) -> Accounted:
    """Return the run in a row of sacct's, or in a record of scontrol's with sacct's names."""
    granted, state, cpu_s = values["AllocTRES"], parse_state(values["State"]), _seconds(values["TotalCPU"])
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
        mem_mib=tres_mib(tres_value(granted, "mem")),
        asked=_gres(values["ReqTRES"]),
        given=_gres(granted),
        node_list="" if values["NodeList"] == "None assigned" else values["NodeList"],
        host_mem_peak_mib=None,
        # Slurm adds it up when a step ends.
        cpu_time_s=cpu_s if cpu_s and state != "RUNNING" else None,
        reason="" if values["Reason"] == "None" else values["Reason"],
        work_dir=values["WorkDir"],
        submit_line=values["SubmitLine"],
        job_name=values["JobName"],
        billing=tres_value(granted, "billing"),
        suspended_s=_seconds(values["Suspended"]),
    )


def parse_controller(text: str) -> tuple[Accounted, ...]:
    """Return the jobs in the answer to ``scontrol show job -o`` under SLURM_TIME_FORMAT=%s."""
    return tuple(_of_controller(record) for record in parse_records(text) if "JobId" in record)


def with_controllers(rows: Sequence[Accounted], live: Sequence[Accounted]) -> tuple[Accounted, ...]:
    """Return accounting's runs, those without an end as slurmctld has them, and what it alone knows."""
    unmatched, runs = {job.raw_id: job for job in live}, []
    for row in rows:
        job = unmatched.get(row.raw_id)
        is_live = job is not None and row.end_s is None
        if job is not None and (is_live or job.start_s == row.start_s):
            del unmatched[row.raw_id]
        if job is not None and is_live:
            row = job._replace(submit_line=row.submit_line, asked=row.asked or job.asked, suspended_s=row.suspended_s)
        runs.append(row)
    return (*runs, *unmatched.values())


def _of_controller(record: Mapping[str, str]) -> Accounted:
    values = defaultdict(str, ((key, "" if value in _NO_WORDS else value) for key, value in record.items()))
    state = parse_state(values["JobState"])
    has_begun = state != "PENDING"
    # While a job runs, EndTime is when its time limit is over.
    has_ended = has_begun and state not in ("RUNNING", "SUSPENDED", "COMPLETING")
    # 22.05 calls it TRES, of a job that waits too.
    granted = values["AllocTRES"] or (values["TRES"] if values["NodeList"] else "")
    job_id = raw_id = values["JobId"]
    if tasks := values["ArrayTaskId"]:
        job_id = f"{values['ArrayJobId'] or raw_id}_{tasks}"
    if offset := values["HetJobOffset"]:
        job_id = f"{values['HetJobId']}+{offset}"
    values |= {
        "JobID": job_id,
        "JobIDRaw": raw_id,
        "User": values["UserId"].partition("(")[0],
        "State": state,
        "Submit": values["SubmitTime"],
        "Start": values["StartTime"] if has_begun else "",
        "End": values["EndTime"] if has_ended else "",
        "Timelimit": values["TimeLimit"],
        "AllocCPUS": values["NumCPUs"] if granted else "",
        "AllocTRES": granted,
        # A comment may hold sacct's names.
        "TotalCPU": "",
        "Suspended": "",
    }
    run = _accounted(values)
    # The request names GPUs also where Slurm's accounting knows of none.
    request = _PREFIX.sub("", values["TresPerNode"] or values["TresPerJob"])
    return run._replace(asked=run.asked or _gres(values["TRES"]) or _gres(request, parse_gres), billing="")


def _gres(text: str, parse: Callable[[str], tuple[Gres, ...]] = parse_tres_gres) -> tuple[Gres, ...]:
    with suppress(InputError):
        return parse(text)
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
# A name, a comment or a path may imitate Slurm's words on nodes. Each job has one of these: with more, it is not read.
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
    # Slurm shows all tasks of an array by the number of its last one.
    parts = [held for held in parse_all_held(text, {job_id}) if held.node == node]
    numbers = sorted({number for held in parts for number in held.gres_indices})
    weights = [held.weight for held in parts if held.weight is not None]
    return HeldHere(tuple(numbers), weights[-1] if weights else None) if parts else None


class Held(NamedTuple):
    """A job's part of one gres on a node, and since when it runs, None where that is not said; see HeldHere."""

    job_id: str
    start_s: int | None
    node: str
    type: str
    gres_indices: tuple[int, ...]
    weight: float | None


# For SLURM_TIME_FORMAT=%s.
ALL_HELD = ("scontrol", "show", "job", "-d", "-o")


def parse_all_held(text: str, job_ids: Collection[str]) -> tuple[Held, ...]:
    """Return what these jobs have where, by ALL_HELD; nothing of those of which it says that twice."""
    lines: dict[str, list[str]] = {}
    for line in text.split("\n"):
        job_id = line.partition(" ")[0].removeprefix("JobId=")
        if job_id in job_ids and line.startswith("JobId="):
            lines.setdefault(job_id, []).append(line)
    return tuple(held for job_id, [line, *more] in lines.items() if not more for held in _held(job_id, line))


def _held(job_id: str, line: str) -> Iterator[Held]:
    if any(line.count(key) != 1 for key in _ONCE):
        return
    began, end = line.index(_ONCE[0]), line.index(_ONCE[1]) + 1
    start = _STARTED.search(line, began, end)
    start_s = whole(start[1]) if start else None
    for nodes, text in _GIVEN.findall(line, began, end):
        with suppress(InputError):
            parts: list[tuple[str, tuple[int, ...], float | None]] = [("", (), None)]
            for item in split_items(text):
                numbers = tuple(sorted(indices(item.partition("(")[2].rstrip(")"))))
                for gres in parse_gres(item):
                    if gres.name in DEVICES:
                        parts.append((gres.type, numbers, float(gres.quantity) if gres.name != "gpu" else None))
            yield from (Held(job_id, start_s, node, *part) for node in expand(nodes) for part in parts)

# SPDX-License-Identifier: Apache-2.0
"""A waiting job's request as slurmctld has it, and how its own user changes it.

One scontrol reads a line for each job: 500 jobs take it less than a second. Neither its status nor its words say
what came of a change (it may be refused in part, or altered by a site's job_submit plugin), so each record is read
again behind the changes.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from slurm_colloc.core.errors import InputError
from slurm_colloc.core.model import Gres
from slurm_colloc.core.units import asked_mib, spans, time_limit_min, whole
from slurm_colloc.slurm.array import parse_array
from slurm_colloc.slurm.gres import parse_gres, tres_value
from slurm_colloc.slurm.parse import parse_records

CONTROL = ("scontrol", "-o")
# The fields that ask for GPUs; ``Gres`` is how an update calls the first.
_GPU_FIELDS = ("TresPerNode", "TresPerJob", "TresPerTask", "TresPerSocket")
_MEMORY = ("MinMemoryNode", "MinMemoryCPU")
_PREFIX = re.compile(r"\bgres[:/]")

# An update of one job: the field by scontrol's word, and its value as text.
Assignments = Mapping[str, str]


class PendingJob(NamedTuple):
    """A job, or the tasks of an array that still wait as one record.

    ``job_id`` is the id that sbatch told, ``target`` what scontrol changes it by: "4711", "4711_5", "4711_[3-6]".
    ``fields`` hold its request in an update's words, so that they undo a change.
    """

    job_id: str
    target: str
    uid: int | None
    state: str
    reason: str
    fields: Assignments
    record: Mapping[str, str]

    @property
    def time_limit_min(self) -> float | None:
        """Return the time limit, infinite without one; None where it is not told."""
        with suppress(InputError):
            return time_limit_min(self.record.get("TimeLimit", ""))
        return None

    @property
    def has_node_alone(self) -> bool:
        """Return whether no other job may run on its node; before 26.05 OverSubscribe says so."""
        exclusive = self.record.get("Exclusive")
        return self.record.get("OverSubscribe") == "NO" if exclusive is None else exclusive in ("NODE", "TOPO")

    @property
    def billing(self) -> str:
        """Return what Slurm would charge for it, by TRESBillingWeights; empty where that is not told."""
        return tres_value(self.record.get("ReqTRES") or self.record.get("TRES", ""), "billing")

    @property
    def raw_id(self) -> str:
        """Return the number that this record alone has."""
        return self.record["JobId"]

    @property
    def per_gpu(self) -> frozenset[str]:
        """Return the fields that count its cores or memory by GPU, also by DefCpuPerGPU once slurmctld has looked."""
        return frozenset(name for name in ("CpusPerTres", "MemPerTres") if _known(self.record.get(name, "")))

    def asks(self, field: str, gres: Sequence[Gres]) -> bool:
        """Return whether it asks for these GPUs in this field, and for nothing in any other."""
        requests = {name: self.fields[name] for name in _GPU_FIELDS if name in self.fields}
        return requests.keys() == {field} and _same_gres(requests[field], gres)

    def has(self, assignments: Assignments) -> bool:
        """Return whether its request is as an update wanted it."""
        return all(_is_as(self.fields, name, value) for name, value in assignments.items())

    def has_any(self, assignments: Assignments, besides: Assignments) -> bool:
        """Return whether an update has left anything in its request that another one would have otherwise."""
        return any(
            _is_as(self.fields, name, value) for name, value in assignments.items() if besides.get(name) != value
        )


def update(targets: Sequence[str], assignments: Assignments) -> list[str]:
    """Return the lines that have scontrol change jobs alike; each is a request of its own to slurmctld.

    Raises:
        InputError: a value that scontrol would read as another word.
    """
    words = [f"{name}={value}" for name, value in assignments.items()]
    if any(re.search(r"[\s'\"\\]", word) for word in (*words, *targets)):
        raise InputError(f"{words} of {targets} hold a blank or a quote")
    return [f"update JobId={target} {' '.join(words)}" for target in targets]


def parse_pending(text: str) -> dict[str, PendingJob]:
    """Return the jobs in scontrol's answer by their target, a job that is shown twice as it was last."""
    jobs = (
        _pending(record)
        for line in re.findall(r"(?m)^(?:scontrol: )?(JobId=\d+ .*)$", text)
        for record in parse_records(line)
    )
    return {job.target: job for job in jobs}


def _pending(record: Mapping[str, str]) -> PendingJob:
    job_id = record.get("ArrayJobId", record["JobId"])
    tasks = record.get("ArrayTaskId", "").partition("%")[0]
    if ":" in tasks:
        # A step, as of 1-9:2, scontrol shows and does not take.
        with suppress(InputError):
            tasks = spans(parse_array(tasks))
    target = f"{job_id}_{tasks if tasks.isdecimal() else f'[{tasks}]'}" if tasks else job_id
    uid = re.search(r"\((\d+)\)$", record.get("UserId", ""))
    fields = {
        name: _known(record.get(name, ""))
        for name in (*_GPU_FIELDS, "TimeLimit", "NumCPUs", "MinCPUsNode", "CPUs/Task", *_MEMORY)
    }
    fields["CPUsPerTask"] = fields.pop("CPUs/Task")
    # The cores of a task, which it may hold beside GPUs, have a field of their own.
    fields["TresPerTask"] = ",".join(item for item in fields["TresPerTask"].split(",") if not item.startswith("cpu"))
    return PendingJob(
        job_id=job_id,
        target=target,
        uid=int(uid[1]) if uid else None,
        state=record.get("JobState", ""),
        reason=record.get("Reason", ""),
        fields={name: value for name, value in fields.items() if value},
        record=record,
    )


def _known(value: str) -> str:
    return "" if value in ("(null)", "N/A") else _PREFIX.sub("", value)


def _same_gres(text: str, gres: Sequence[Gres]) -> bool:
    with suppress(InputError):
        return parse_gres(text.replace("=", ":")) == tuple(gres)
    return False


def _is_as(fields: Assignments, name: str, assigned: str) -> bool:
    """Return whether a field is as it was assigned; Slurm shows some values otherwise than they were written."""
    has = fields.get("TresPerNode" if name == "Gres" else name, "")
    assigned = _PREFIX.sub("", assigned)
    if not assigned:
        return not has
    with suppress(InputError):
        if name == "Gres" or name in _GPU_FIELDS:
            return _same_gres(has, parse_gres(assigned.replace("=", ":")))
        if name == "TimeLimit":
            return time_limit_min(has) == time_limit_min(assigned)
        read = asked_mib if name in _MEMORY else whole
        return read(has) == read(assigned)
    return False

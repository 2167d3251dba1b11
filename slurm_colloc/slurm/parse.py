# SPDX-License-Identifier: Apache-2.0
"""Answers of Slurm's commands -> model; pure functions over recorded text."""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from slurm_colloc.core.config import RESTRICTIONS
from slurm_colloc.core.errors import InputError
from slurm_colloc.core.model import Gres
from slurm_colloc.core.units import time_limit_min, whole
from slurm_colloc.slurm.gres import parse_gres

# States after which a job does not come back; see sacct(1), "JOB STATE CODES".
FINAL_STATES = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"}
    | {"OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"}
)
# A job's name or folder may hold what else ends a line.
_LINE = r"\n(?=[A-Z][A-Za-z]*=)"
_KEY = r"(?:^|\s)([A-Za-z][A-Za-z0-9_:/]*)="
_SUBMITTED = re.compile(rb"^(?:Submitted batch job )?(\d+)(?:;(\S+))?(?: on cluster (\S+))?\s*$", re.MULTILINE)


class Submitted(NamedTuple):
    """The job that sbatch has made, and its cluster where that was named."""

    job_id: str
    cluster: str


class Node(NamedTuple):
    """A node as ``scontrol show node -o`` describes it; ``states`` are the words of its State: IDLE, DRAIN.

    ``shares`` is how many of each kind of share its devices have; empty where Slurm does not say. ``cpus`` and
    ``mem_mib`` are what jobs may have of it. ``gres`` lacks what it did not report; ``configured`` has of what
    slurm.conf promises of it that which AccountingStorageTRES tracks. ``slurmd_start_s`` is known where times are
    asked for in seconds. ``features`` are those that jobs may ask for now.
    """

    name: str
    gres: tuple[Gres, ...]
    partitions: tuple[str, ...]
    states: tuple[str, ...] = ()
    shares: tuple[tuple[Gres, tuple[int, ...]], ...] = ()
    cpus: int | None = None
    mem_mib: int | None = None
    configured: tuple[Gres, ...] = ()
    slurmd_start_s: int | None = None
    features: tuple[str, ...] = ()

    def quantity(self, name: str) -> int:
        """Return how many of a gres the node has, of all types."""
        return sum(gres.quantity for gres in self.gres if gres.name == name)

    @property
    def gpu_types(self) -> frozenset[str]:
        """Return the types of its GPUs and slices, reported or only configured."""
        return frozenset(gres.type for gres in (*self.gres, *self.configured) if gres.name == "gpu" and gres.type)


class Partition(NamedTuple):
    """A partition as ``scontrol show partition -o`` describes it; a field is empty where the partition is open to all.

    ``preempt_mode`` is the cluster's where the partition has none of its own; ``billing_weights`` is the text of
    TRESBillingWeights; ``restrictions`` are those of RESTRICTIONS that it has, as ``Key=value``. ``one_user`` is true
    where a node serves one user at a time (ExclusiveUser). ``record`` is all
    that scontrol says of it, by its words.
    """

    name: str
    default: bool
    qos: str
    cpus_per_gpu: int | None
    mem_per_gpu_mib: int | None
    default_mem: str
    default_time_min: float | None
    max_time_min: float | None
    restrictions: tuple[str, ...]
    preempt_mode: tuple[str, ...]
    oversubscribe: str
    billing_weights: str = ""
    one_user: bool = False
    record: Mapping[str, str] = MappingProxyType({})


def parse_records(text: str) -> Iterator[dict[str, str]]:
    """Yield the ``Key=value`` pairs of each line of a ``scontrol -o`` output; values may hold blanks and newlines.

    The first of two pairs with one key counts: the words of people (Reason, Comment, Extra) come last. A line without
    any says that there is nothing: ``No partitions in the system``.
    """
    for line in re.split(_LINE, text):
        marks = list(re.finditer(_KEY, line))
        if not marks:
            continue
        ends = [mark.start() for mark in marks[1:]] + [len(line)]
        pairs = [(mark[1], line[mark.end() : end].strip()) for mark, end in zip(marks, ends, strict=True)]
        yield dict(reversed(pairs))


def parse_nodes(text: str) -> tuple[Node, ...]:
    """Return the nodes in the output of ``scontrol show node -o``.

    Raises:
        InputError: a node without a name, or a Gres outside its grammar.
    """
    return tuple(_node(defaultdict(str, record)) for record in parse_records(text))


def _node(record: Mapping[str, str]) -> Node:
    if not record["NodeName"]:
        raise InputError(f"'scontrol show node -o' printed a line without NodeName: '{next(iter(record.items()), '')}'")
    mem_mib = whole(record["RealMemory"])
    return Node(
        name=record["NodeName"],
        gres=parse_gres(record["Gres"]),
        partitions=_words(record["Partitions"]),
        # "IDLE+DRAIN", "DOWN*+DRAIN": the mark says that the node does not answer, which 24.11 says in a word.
        states=tuple(word.rstrip("*~#!%$@^-") for word in record["State"].split("+") if word),
        cpus=whole(record["CPUEfctv"]),
        # Some of it may be set aside for the system.
        mem_mib=None if mem_mib is None else mem_mib - (whole(record["MemSpecLimit"]) or 0),
        configured=_configured(record["CfgTRES"]),
        slurmd_start_s=whole(record["SlurmdStartTime"]),
        features=_words(record["ActiveFeatures"].replace("(null)", "")),
    )


def _words(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def _configured(text: str) -> tuple[Gres, ...]:
    """Return the gres of a CfgTRES as they stand there: a total and its types, not reconciled."""
    entries = []
    for item in text.split(","):
        key, _, count = item.partition("=")
        quantity = whole(count)
        if key.startswith("gres/") and quantity is not None:
            name, _, kind = key.removeprefix("gres/").partition(":")
            entries.append(Gres(name, kind, quantity))
    return tuple(entries)


def parse_partitions(text: str) -> tuple[Partition, ...]:
    """Return the partitions in the output of ``scontrol show partition -o``.

    Raises:
        InputError: a time limit or a default outside its grammar.
    """
    return tuple(_partition(record) for record in parse_records(text))


def _partition(record: Mapping[str, str]) -> Partition:
    values = defaultdict(str, record)
    cpus, mem_mib = parse_job_defaults(values["JobDefaults"])
    defaults = [f"{key}={values[key]}" for key in ("DefMemPerCPU", "DefMemPerNode") if values[key].isdigit()]
    return Partition(
        name=values["PartitionName"],
        default=values["Default"] == "YES",
        qos=values["QoS"].replace("N/A", ""),
        cpus_per_gpu=cpus,
        mem_per_gpu_mib=mem_mib,
        default_mem=defaults[0] if defaults else "",
        default_time_min=_limit(values["DefaultTime"]),
        max_time_min=_limit(values["MaxTime"]),
        restrictions=tuple(f"{key}={values[key]}" for key in RESTRICTIONS if _restricts(key, values[key])),
        preempt_mode=tuple(values["PreemptMode"].split(",")),
        oversubscribe=values["OverSubscribe"],
        billing_weights=values["TRESBillingWeights"].replace("(null)", ""),
        # 26.05 has folded ExclusiveUser into a word that it shares with others.
        one_user=values["ExclusiveUser"] == "YES" or values["Exclusive"] == "USER",
        record=record,
    )


def parse_job_defaults(text: str) -> tuple[int | None, int | None]:
    """Return DefCpuPerGPU and DefMemPerGPU (MiB) of a ``JobDefaults=`` value, None where it does not say.

    Raises:
        InputError: a value that is not a number.
    """
    values = dict(item.partition("=")[::2] for item in text.split(",") if "=" in item)
    cpus, mem_mib = (whole(values.get(name, "")) for name in ("DefCpuPerGPU", "DefMemPerGPU"))
    if (cpus is None and "DefCpuPerGPU" in values) or (mem_mib is None and "DefMemPerGPU" in values):
        raise InputError(f"JobDefaults '{text}' has a default that is not a number")
    return cpus, mem_mib


def _restricts(key: str, value: str) -> bool:
    if key == "OverSubscribe":
        return value == "EXCLUSIVE"
    is_least = key == "MinNodes" and value in ("0", "1")
    return value not in ("", "ALL", "N/A", "(null)", "NO", "UNLIMITED") and not is_least


def _limit(text: str) -> float | None:
    """Return minutes, None for no limit."""
    if text in ("", "NONE", "N/A", "(null)"):
        return None
    minutes = time_limit_min(text)
    return None if math.isinf(minutes) else minutes


def parse_config(text: str) -> dict[str, str]:
    """Return the ``Key = value`` lines of ``scontrol show config``."""
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def parse_states(text: str) -> Mapping[str, str]:
    """Return job id -> state from lines of ``JobIDRaw|State``; ``CANCELLED by 1001`` is CANCELLED."""
    states = {}
    for line in text.splitlines():
        job_id, _, state = line.partition("|")
        if job_id and state:
            states[job_id] = parse_state(state)
    return states


def parse_state(text: str) -> str:
    """Return the state's own word, not ``by UID`` and not the ``+`` of a cut column."""
    return text.split(" ", 1)[0].rstrip("+")


def parse_release(text: str) -> str:
    """Return ``22.05`` from ``slurm-wlm 22.05.8``.

    Raises:
        InputError: no release in it.
    """
    match = re.search(r"(?<!\d)(\d{1,4}\.\d{1,4})(?:\.\d|-\w)", text)
    if match is None:
        raise InputError(f"'{text.strip()}' holds no Slurm release of the form 22.05.8")
    return match[1]


def parse_submitted(answer: bytes | bytearray) -> Submitted | None:
    """Return the job in sbatch's answer, None where it names none; other lines are those of a site's wrapper."""
    match = _SUBMITTED.search(answer)
    return match and Submitted(match[1].decode(), (match[2] or match[3] or b"").decode(errors="replace"))

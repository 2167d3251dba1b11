# SPDX-License-Identifier: Apache-2.0
"""How a cluster is set up, for those who judge it: the questions to Slurm's commands, and parsers of their answers.

All is asked with TZ=UTC and SLURM_TIME_FORMAT=%s, so that times are seconds since the epoch.
"""

import re
from typing import NamedTuple

from slurm_colloc.core.errors import InputError
from slurm_colloc.slurm.parse import parse_config

ENVIRONMENT = {"TZ": "UTC", "SLURM_TIME_FORMAT": "%s"}
CONFIG = ("scontrol", "show", "config")
QUEUE = ("sdiag",)
# The first and the last key that every release prints, and those by whose absence something would be found wrong.
_ALWAYS = (
    "AccountingStorageType",
    "ClusterName",
    "JobAcctGatherType",
    "ProctrackType",
    "SelectType",
    "TaskPlugin",
    "WaitTime",
)
_CGROUP = "Cgroup Support Configuration"
# As strtod(3) reads numbers.
_WEIGHT = re.compile(r"([^=\s]+)=([-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?)[KMGTPkmgtp]?")
_AT = re.compile(r"sdiag output at .{0,80}?\(([0-9]{1,18})\)")


class GresLine(NamedTuple):
    """A line of gres.conf; ``nodes`` is a host list, empty for the node that the file lies on."""

    nodes: str
    name: str
    type: str
    flags: frozenset[str] = frozenset()


class Queue(NamedTuple):
    """The controller by sdiag: its clock, and how far the last backfill cycle came down the queue.

    ``depth_jobs`` and ``queue_jobs`` are None before the first cycle.
    """

    at_s: float
    pending_jobs: int
    depth_jobs: int | None
    queue_jobs: int | None


def parse_config_parts(text: str) -> tuple[dict[str, str], dict[str, str] | None]:
    """Return slurm.conf and cgroup.conf as ``scontrol show config`` has them; None for a part that it has not.

    Raises:
        InputError: the answer is not whole.
    """
    main, heading, rest = text.partition(_CGROUP)
    cgroup = rest.partition("\n\n")[0]
    settings = parse_config(main)
    lacking = [key for key in _ALWAYS if key not in settings]
    if lacking:
        raise InputError(f"'{' '.join(CONFIG)}' printed no {lacking[0]}: its answer is not whole, so nothing is judged")
    return settings, parse_config(cgroup) if heading else None


def parse_weights(text: str) -> dict[str, float]:
    """Return TRES name -> weight of a TRESBillingWeights, cpu, memory and the like as gres, but without the unit.

    Raises:
        InputError: an item that is no ``name=weight``.
    """
    weights = {}
    for item in filter(None, ("" if text in ("(null)", "N/A") else text).split(",")):
        match = _WEIGHT.fullmatch(item.strip())
        if match is None:
            raise InputError(f"TRESBillingWeights '{text}' has '{item}', which is not of the form name=weight")
        weights[match[1].lower()] = float(match[2])
    return weights


def parse_gres_conf(text: str) -> tuple[GresLine, ...]:
    """Return the lines of a gres.conf that name a gres; see gres.conf(5).

    Raises:
        InputError: it includes another file, so that it does not say all.
    """
    lines = []
    for line in text.replace("\\\n", " ").splitlines():
        words = line.partition("#")[0].split()
        if words and words[0].lower() == "include":
            raise InputError(f"it includes '{' '.join(words[1:])}', which is not followed")
        values = {key.lower(): value for key, _, value in (word.partition("=") for word in words)}
        if "name" in values:
            nodes, name, kind, flags = (values.get(key, "") for key in ("nodename", "name", "type", "flags"))
            lines.append(GresLine(nodes, name.lower(), kind, frozenset(filter(None, flags.lower().split(",")))))
    return tuple(lines)


def parse_queue(text: str) -> Queue:
    """Return what sdiag printed.

    Raises:
        InputError: it does not say when.
    """
    clock = _AT.search(text)
    if clock is None:
        raise InputError("sdiag printed no line 'sdiag output at ... (SECONDS)'")
    backfill = text.partition("Backfilling stats")[2].partition("Latency")[0]
    last = backfill if _number(backfill, "Total cycles") else ""
    return Queue(
        at_s=float(clock[1]),
        pending_jobs=_number(text, "Jobs pending") or 0,
        depth_jobs=_number(last, "Last depth cycle"),
        queue_jobs=_number(last, "Last queue length"),
    )


def _number(text: str, name: str) -> int | None:
    match = re.search(rf"^[ \t]*{re.escape(name)}:[ \t]*([0-9]{{1,18}})[ \t]*$", text, re.MULTILINE)
    return int(match[1]) if match else None

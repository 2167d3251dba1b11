# SPDX-License-Identifier: Apache-2.0
"""Which GPUs of a node slurmctld gave to a job: open to everybody, where Slurm does not keep jobs private."""

import re
from contextlib import suppress
from typing import NamedTuple

from slurm_colloc.errors import InputError
from slurm_colloc.slurm.gres import parse_gres, split_items
from slurm_colloc.slurm.hostlist import expand
from slurm_colloc.slurm.sinfo import indices

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
    """Return what a job has on a node, by ``scontrol show job -d -o``; None where that is not said, or said twice."""
    lines = text.split("\n")
    if not lines[0].startswith(f"JobId={job_id} ") or any(lines[1:]):
        return None
    if any(text.count(key) != 1 for key in _ONCE):
        return None
    found, weight = set(), None
    for nodes, gres in _GIVEN.findall(text, text.index(_ONCE[0]), text.index(_ONCE[1]) + 1):
        with suppress(InputError):
            if node not in expand(nodes):
                continue
            for item in split_items(gres):
                for one in parse_gres(item):
                    if one.name in ("gpu", "mps", "shard"):
                        found |= indices(item.partition("(")[2].rstrip(")"))
                        weight = float(one.quantity) if one.name != "gpu" else weight
    return HeldHere(tuple(sorted(found)), weight)

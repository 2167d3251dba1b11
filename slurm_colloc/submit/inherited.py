# SPDX-License-Identifier: Apache-2.0
"""Variables that a job on a share leaves in the environment of what it submits, but are no other job's.

csub's block sets variables for one job and names them in COLLOC_SET: the job's id, then NAME=VALUE for each. The next
job inherits them. A value that is not csub's any more is the user's and stays; a list loses csub's part.
"""

from collections.abc import Mapping

from slurm_colloc.core.process import given_environment

MARK = "COLLOC_SET"
# Slurm sets it for each job with a GPU: no job has it of another's.
_SLURMS = frozenset({"CUDA_VISIBLE_DEVICES"})
# Slurm sets it for a job on shards, and does not take it from others.
_SHARDS = "SLURM_SHARDS_ON_NODE"


def mark(job_id: str, variables: Mapping[str, str], before: Mapping[str, str]) -> str:
    """Return the value of COLLOC_SET that says which of a job's variables csub set, where it had others ``before``."""
    ours = {name: value for name, value in variables.items() if name not in _SLURMS and before.get(name) != value}
    parts = (f"{name}={value.removeprefix(f'{before.get(name)},')}" for name, value in ours.items())
    return " ".join((job_id, *parts))


def environment_to_submit() -> dict[str, str]:
    """Return the environment that csub was given, without what belongs to the job in which it runs."""
    environ = given_environment()
    environ.pop(_SHARDS, None)
    _, *words = environ.pop(MARK, "").split(" ")
    for name, _, value in (word.partition("=") for word in words):
        left = _left(environ.pop(name), value) if name in environ else ""
        environ |= {name: left} if left else {}
    return environ


def _left(whole: str, ours: str) -> str:
    """Return the rest of a list without csub's part; a value that is none of csub's stays whole."""
    before, found, behind = f",{whole},".partition(f",{ours},")
    return f"{before},{behind}".strip(",") if found else whole

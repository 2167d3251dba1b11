# SPDX-License-Identifier: Apache-2.0
"""Slurm's lists of names, ``g[1-3],m1``, both ways. The only door to ClusterShell, which takes 20 ms to import."""

import re
from collections.abc import Iterable
from math import prod

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

from slurm_colloc.core.errors import InputError

# It says of some texts only that a number is none, or that its own count is wrong (found by fuzzing).
_REFUSALS = (NodeSetException, ValueError, AssertionError)
# ClusterShell would ask a file of groups, or a program that it names, about "@"; Slurm reads no sign in it.
_NO_GROUPS = {"resolver": RESOLVER_NOGROUP}
# More than any cluster has; a longer list would be made before it could be refused.
_MOST_NAMES = 2**20
_ITEM = re.compile(r"(?:[^][,]|\[[^][]*+\])++")
_RANGES = re.compile(r"\[([^][]*+)\]")
_RANGE = re.compile(r"([0-9]{1,15})(?:-([0-9]{1,15}))?(?:/[0-9]{1,15})?")


def count(text: str) -> int:
    """Return how many names a list has at most, without making any of them.

    Raises:
        InputError: more than any cluster has, or numbers that are none to Slurm.
    """
    names = 0
    for item in _ITEM.findall(text):
        names += prod(sum(map(_size, ranges.split(","))) for ranges in _RANGES.findall(item))
        if names > _MOST_NAMES:
            raise InputError(f"'{text[:80]}' names more than the {_MOST_NAMES} nodes that a cluster may have")
    return names


def _size(text: str) -> int:
    match = _RANGE.fullmatch(text)
    if match is None:
        # ClusterShell takes blanks, signs, underscores and the digits of other scripts, too, and counts on.
        raise InputError(f"'{text[:80]}' is no range of numbers")
    return max(1, int(match[2]) - int(match[1]) + 1) if match[2] else 1


def expand(text: str) -> tuple[str, ...]:
    """Return the names in a list, each once.

    Raises:
        InputError: it is none, or longer than that of any cluster.
    """
    count(text)
    try:
        return tuple(NodeSet(text, **_NO_GROUPS))
    except _REFUSALS as error:
        raise InputError(str(error)) from error


def fold(names: Iterable[str]) -> str:
    """Return names as one list; as they are, if one of them cannot be a name."""
    items = list(names)
    try:
        sum(map(count, items))
        return str(NodeSet.fromlist(items, **_NO_GROUPS))
    except (*_REFUSALS, InputError):
        return ",".join(items)

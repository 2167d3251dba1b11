# SPDX-License-Identifier: Apache-2.0
"""The record of a site that the checks judge, in which everything that could not be read says why."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeVar

from slurm_colloc.core.errors import CollocError
from slurm_colloc.gpu.mig import parse_profile
from slurm_colloc.gpu.nvidia_smi import SmiDevice
from slurm_colloc.site.cluster import SHARES
from slurm_colloc.slurm.limits import Cap
from slurm_colloc.slurm.parse import Node, Partition
from slurm_colloc.slurm.setup import GresLine, Queue

Value = TypeVar("Value")
# The newer checks were tried on these: each fault was made in a real cluster, and its effect was seen.
TRIED = "Slurm 22.05.8, 24.11.5 and 26.05.5"


class NotReadError(CollocError):
    """A check needs what could not be read; its text says why."""


class Unread(NamedTuple):
    """The reason why a fact is not known, in its place."""

    why: str


class Script(NamedTuple):
    """A program that slurm.conf names, by the setting that names it.

    ``mode`` is None where there is none; ``folder_mode`` is that of the folder it lies in.
    """

    setting: str
    path: str
    text: str | Unread
    mode: int | None = 0o755
    owner: int = 0
    folder_mode: int = 0o755


class Seen(NamedTuple):
    """A fault that a check saw in a subject."""

    subject: str
    evidence: str


class Blank(NamedTuple):
    """A subject that could not be checked, and why."""

    subject: str
    why: str


class Site(NamedTuple):
    """A live cluster as one person on one machine could read it.

    ``clock_ahead_s`` is this machine's clock minus slurmctld's, and how far off that may be itself.
    """

    release: str
    settings: Mapping[str, str]
    cgroup: Mapping[str, str] | Unread
    nodes: tuple[Node, ...]
    partitions: tuple[Partition, ...]
    gres_conf: tuple[GresLine, ...] | Unread
    scripts: tuple[Script, ...]
    limits: tuple[Cap, ...] | Unread
    queue: Queue | Unread
    clock_ahead_s: tuple[float, float] | Unread
    this_node: str
    devices: tuple[SmiDevice, ...] | Unread
    plugstack: tuple[Script, ...] = ()

    def words(self, setting: str) -> frozenset[str]:
        """Return the comma-separated words of a setting, in lower case."""
        return frozenset(self.settings.get(setting, "").lower().split(",")) - {"", "(null)"}

    def within(self, partition: str = "") -> list[Node]:
        """Return the nodes of a partition, or all."""
        return [node for node in self.nodes if not partition or partition in node.partitions]

    def types(self, partition: str = "") -> set[str]:
        """Return the GPU types of a partition's nodes, or of all, slices among them."""
        return {kind for node in self.within(partition) for kind in node.gpu_types}

    def shared(self, partition: str = "") -> list[str]:
        """Return which of mps and shard the nodes have, all of them or a partition's."""
        return [name for name in SHARES if any(node.quantity(name) for node in self.within(partition))]

    def pieces(self, partition: str = "") -> list[str]:
        """Return which of mps, shard and MIG slices the nodes have, all of them or a partition's."""
        return self.shared(partition) + (["MIG slices"] if any(map(parse_profile, self.types(partition))) else [])


# It may raise NotReadError.
Finder = Callable[[Site], Iterable[Seen | Blank]]


def other_than(key: str, *right: str) -> Finder:
    """Return a check for a setting of slurm.conf that is none of these."""

    def find(site: Site) -> Iterator[Seen]:
        value = site.settings.get(key, "")
        if value not in right:
            yield Seen("slurm.conf", f"{key} is {value or 'not set'}")

    return find


def known(value: Value | Unread) -> Value:
    """Return a fact.

    Raises:
        NotReadError: it could not be read.
    """
    if isinstance(value, Unread):
        raise NotReadError(value.why)
    return value

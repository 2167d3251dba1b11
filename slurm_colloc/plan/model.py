# SPDX-License-Identifier: Apache-2.0
"""The site and the jobs of a replay, and its answer. Times are seconds on one clock."""

from collections.abc import Mapping
from typing import NamedTuple


class Shape(NamedTuple):
    """The request of a job on each of its nodes: ``units`` of a kind of gres, cores and memory.

    ``kind`` is the type of a whole GPU, of a slice, or "mps" and "shard", whose units are of one GPU.
    """

    kind: str
    units: int
    cpus: int
    mem_mib: int
    nodes: int = 1

    @property
    def units_in_all(self) -> int:
        """Return the units on all nodes."""
        return self.units * self.nodes


class Job(NamedTuple):
    """One job as it is to be replayed; ``run_s`` is how long it runs where it is put.

    At most ``at_once`` tasks of its ``array`` run at a time; 0 is as many as have room.
    """

    number: int
    submit_s: float
    run_s: float
    limit_s: float
    user: str
    account: str
    partition: str
    qos: str
    shape: Shape
    array: str = ""
    at_once: int = 0


class NodeKind(NamedTuple):
    """The offer of one node: its number of each kind of gres, and of shares that of each of its ``shared`` GPUs.

    Shares are of whole GPUs of the kind ``shared_kind``: a GPU of which a share is taken is no whole one any more.
    """

    name: str
    partitions: tuple[str, ...]
    gres: tuple[tuple[str, int], ...]
    cpus: int
    mem_mib: int
    shared_kind: str = ""
    shares: tuple[tuple[str, int], ...] = ()


class Scheduler(NamedTuple):
    """SchedulerParameters of slurm.conf, at Slurm's defaults."""

    bf_interval_s: float = 30.0
    bf_resolution_s: float = 60.0
    bf_window_s: float = 86400.0
    bf_max_job_test: int = 500
    bf_window_linear_s: float = 0.0
    batch_sched_delay_s: float = 3.0
    # The start of a job that has to wait was foretold otherwise before 24.11.
    before_24_11: bool = False
    backfill: bool = True


class Priority(NamedTuple):
    """The multifactor priority of slurm.conf."""

    age: float = 0.0
    fair_share: float = 0.0
    size: float = 0.0
    max_age_s: float = 7 * 86400.0
    half_life_s: float = 7 * 86400.0
    calc_period_s: float = 300.0
    favor_small: bool = False


class Site(NamedTuple):
    """The nodes, and how Slurm gives them out: for ``one_user`` partitions to a user at a time (ExclusiveUser)."""

    nodes: tuple[NodeKind, ...]
    scheduler: Scheduler = Scheduler()
    priority: Priority = Priority()
    one_user: frozenset[str] = frozenset()


class Started(NamedTuple):
    """When a replayed job started and ended, and on which node (its first).

    A task that waited for others of its array was submitted when they let it.
    """

    job: Job
    start_s: float
    end_s: float
    node: int

    @property
    def wait_s(self) -> float:
        """Return the time from submission to start."""
        return self.start_s - self.job.submit_s


class Replayed(NamedTuple):
    """All jobs that started, in order of their start, and those that no node can ever hold.

    ``limits`` is what the first of those that waited lacked on the nodes, by part of the time in which some did.
    """

    started: tuple[Started, ...]
    never: tuple[Job, ...]
    limits: Mapping[str, float] = {}

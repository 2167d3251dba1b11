# SPDX-License-Identifier: Apache-2.0
"""Types of chart data: use over time, over the week, metric against metric, one user's details.

GPU-hours are in whole-GPU equivalents; each figure stands beside its denominator, and None means not known.
"""

from typing import NamedTuple

from slurm_colloc.core.usage_model import GroupUsage


class TimeUsage(NamedTuple):
    """GPU-hours that runs had and used in [since, until); the sums over a window's pieces are those of the window.

    ``allocated_gpu_hours`` is of runs whose size is known; ``*_measured_gpu_hours`` is the part of it that samples of
    the metric cover. ``installed_gpu_hours`` is None where no site file says, and 0 where the piece is to come.
    """

    since_s: float
    until_s: float
    installed_gpu_hours: float | None
    allocated_gpu_hours: float
    util_measured_gpu_hours: float
    util_used_gpu_hours: float | None
    sm_measured_gpu_hours: float
    sm_used_gpu_hours: float | None


class WeekHour(NamedTuple):
    """GPUs that runs had and used in one hour of the week, in the report's zone; ``weekday`` 0 is Monday.

    ``hours`` is how many such hours the window has: the denominator of the GPUs. Figures of use are None where all that
    is left of the samples is a row for each day.
    """

    weekday: int
    hour: int
    hours: float
    allocated_gpus: float
    sm_measured_gpus: float
    sm_used_gpus: float | None
    util_measured_gpus: float
    util_used_gpus: float | None


class UtilAgainstSm(NamedTuple):
    """The runs of whole GPUs whose GPU_UTIL and SM activity, each over its own covered time, lie in one cell.

    A cell reaches from its ``*_from_pct`` on for ``cell_pct``; 100 % is in the last.
    """

    util_from_pct: float
    sm_from_pct: float
    cell_pct: float
    runs: int
    allocated_gpu_hours: float


class IdleRun(NamedTuple):
    """A run of which much was idle: measured less used GPU-hours, by SM activity, else by GPU_UTIL."""

    job_id: str
    job_name: str
    gres: str
    allocated_gpu_hours: float
    idle_gpu_hours: float


class GroupDetail(NamedTuple):
    """One user (or account, ...) more closely: over time, by kind of GPU, and the runs that left most idle.

    ``over_time`` has the pieces in which there was anything. ``kinds`` are named by gres type.
    """

    name: str
    over_time: tuple[TimeUsage, ...]
    kinds: tuple[GroupUsage, ...]
    idlest: tuple[IdleRun, ...]


class Charts(NamedTuple):
    """All that a page draws beside its table; ``zone`` names the zone of ``week``."""

    over_time: tuple[TimeUsage, ...]
    week: tuple[WeekHour, ...]
    zone: str
    util_against_sm: tuple[UtilAgainstSm, ...]
    details: tuple[GroupDetail, ...]


class Fit(NamedTuple):
    """The pieces that whole-GPU runs would have fitted, as csub would have given them, had it known what was measured.

    ``known_gpu_hours`` is the allocated time of the ``judged_runs``, which are compared with pieces (COMPARED in
    facts/judgement.py). It is the denominator of ``fits_gpu_hours``, the allocated time of the ``fitting_runs`` among
    them, which would have fitted a smaller piece; ``freed_gpu_hours`` is what would have been left for others.
    ``unit`` is the smallest piece that holds each of these, in Slurm's words, empty where GPUs differ in it.
    ``not_judged_runs`` are the other whole-GPU runs, and ``spare_runs`` those among them that never used some of their
    GPUs, or any, which come to ``spare_gpu_hours``.
    """

    name: str
    known_gpu_hours: float
    fits_gpu_hours: float
    freed_gpu_hours: float
    unit: str
    judged_runs: int
    fitting_runs: int
    not_judged_runs: int
    spare_runs: int = 0
    spare_gpu_hours: float = 0.0

    @property
    def could_free_gpu_hours(self) -> float:
        """Return what other jobs could have had, by smaller pieces and on GPUs that nobody used."""
        return self.freed_gpu_hours + self.spare_gpu_hours


class Todo(NamedTuple):
    """A step that a user, or the administrators, could take about ``gpu_hours``, of so many runs.

    ``line`` goes into a job's script in place of what asks for GPUs, empty where none does; ``command`` shows one of
    the runs, or is what to type.
    """

    who: str
    what: str
    gpu_hours: float
    runs: int
    line: str
    command: str


class JobPiece(NamedTuple):
    """One run's use in one piece of its time, over its devices; all None where nothing was sampled.

    Percentages are means of its GPUs or slices, memory is the most that it held at a time on the devices of a node.
    """

    gpu_util_pct: float | None
    sm_active_pct: float | None
    gpu_mem_mib: int | None


class JobTimeline(NamedTuple):
    """A run's time from ``since_s`` to ``until_s`` in pieces of one length.

    ``devices`` are the GPUs and slices that samples saw it hold, ``devices_unused`` those of them on which nothing of
    it ever ran while sampled. ``neighbours`` is the most other jobs that one of them had at a time. ``active_pct`` are
    the devices' mean SM activities, of one without these its GPU_UTIL; the busiest first, None last.
    """

    since_s: float
    until_s: float
    pieces: tuple[JobPiece, ...]
    devices: int
    devices_unused: int
    neighbours: int
    active_pct: tuple[float | None, ...] = ()


class SeveralGpus(NamedTuple):
    """Runs of several whole GPUs: ``known_runs`` were seen on each of their GPUs, ``used_gpus`` of whose ``gpus`` ran.

    ``all_used_runs`` used all of theirs. A run's balance is the mean activity of its GPUs over that of the busiest;
    ``balance_median`` is of those known and used. ``size`` is how many GPUs each of them had, None of all sizes.
    """

    runs: int
    gpu_hours: float
    known_runs: int
    gpus: int
    used_gpus: int
    all_used_runs: int
    balance_median: float | None
    size: int | None = None

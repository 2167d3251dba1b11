# SPDX-License-Identifier: Apache-2.0
"""Types of what came of sharing GPUs: how they were shared, how well needs were foretold, what it did to jobs.

As in usage_model.py, units are the last word of a name, and None means not known and is never 0.
"""

from typing import NamedTuple


class Collocation(NamedTuple):
    """How long GPUs and slices (units) had so many ``jobs`` on them, as far as they were sampled.

    ``unit_hours`` counts each unit as one, ``gpu_hours`` a slice as its part of a GPU, by slices. A job is on a unit
    when Slurm gave it the unit, whether it runs anything there or not. A reading's time beyond the run's end is time
    without a job, and beside other jobs each one's part of the unit.
    """

    jobs: int
    units: int
    unit_hours: float
    gpu_hours: float

    @property
    def saved_gpu_hours(self) -> float:
        """Return the GPU-hours more that a whole GPU for each of the jobs, for the same time, would have taken."""
        return self.jobs * self.unit_hours - self.gpu_hours if self.jobs else 0.0


class Prediction(NamedTuple):
    """How the footprints of one rung compare with what the jobs placed by them were measured to use.

    ``mem_known`` of ``jobs`` runs completed with a measured peak, ``mem_within`` of those with at most the q99
    predicted; ``mem_*_ratio`` are of peak over q99. ``sm_*`` are of a run's mean SM activity over the q95 predicted.
    """

    rung: str
    jobs: int
    mem_known: int
    mem_within: int
    mem_median_ratio: float | None
    mem_max_ratio: float | None
    sm_known: int
    sm_within: int
    sm_median_ratio: float | None
    sm_max_ratio: float | None


class ShadowPiece(NamedTuple):
    """The fate of the runs that shadow mode would have given one kind of piece.

    ``fitted`` of ``runs`` completed with a measured peak that the piece holds; ``out_of_memory`` had one above it, and
    ``over_share`` one above a share that nobody enforces; the others cannot be judged. The fitted had
    ``allocated_gpu_hours``, and would have held ``piece_gpu_hours``; those too large for it up to ``lost_gpu_hours``
    before they failed. ``waits_known`` are the fitted of which it is known how long they might have waited;
    ``sooner`` of them waited longer than that, and
    ``earlier_median_s`` is the median over users of each one's median difference, negative for later.
    """

    piece: str
    runs: int
    fitted: int
    out_of_memory: int
    over_share: int
    allocated_gpu_hours: float
    piece_gpu_hours: float
    lost_gpu_hours: float
    waits_known: int
    sooner: int
    earlier_median_s: float | None

    @property
    def judged(self) -> int:
        """Return how many runs it is known of whether the piece holds them."""
        return self.fitted + self.out_of_memory + self.over_share

    @property
    def freed_gpu_hours(self) -> float:
        """Return the GPU-hours by which the fitted would have held less; negative where slower costs more."""
        return self.allocated_gpu_hours - self.piece_gpu_hours


class ShadowLate(NamedTuple):
    """Runs of jobs that would have got a piece while they waited.

    ``judged`` are those of which it is known whether the piece holds them, and ``harmed`` would have run out of GPU
    memory. ``waits_known`` are those of which it is known when they would have begun, ``sooner`` those that would have
    begun an hour sooner or more.
    """

    runs: int
    judged: int
    harmed: int
    waits_known: int
    sooner: int


class ShadowLeft(NamedTuple):
    """Runs that would have been left as asked, or of which nobody knows what they would have had, and why.

    ``allocated_gpu_hours`` is of the runs whose size is known, None where it is of none.
    """

    why: str
    runs: int
    allocated_gpu_hours: float | None


class HarmRate(NamedTuple):
    """Runs with one kind of harm among the ``known``, their part, and what the true one is with 95 %; None of none.

    ``arm`` is LATE of those alone that got their piece while they waited.
    """

    kind: str
    runs: int
    known: int
    part: float | None
    low: float | None
    high: float | None
    arm: str = ""


class Fairness(NamedTuple):
    """Jobs of one account that had one GPU, several GPUs or a piece, before pieces began or ``after``.

    Waits are of the ``waits_known`` first runs of jobs, from when each could have started: the median, and what nine
    of ten waited at most. ``gpu_hours`` are of runs that began in that time, None where no size is known.
    """

    account: str
    job_class: str
    after: bool
    runs: int
    users: int
    waits_known: int
    wait_median_h: float | None
    wait_p90_h: float | None
    gpu_hours: float | None
    gpu_hours_per_day: float | None


class ArmFigure(NamedTuple):
    """One figure of the jobs of one arm: its value, where the true one is with 95 %, of how many jobs, of one rule.

    Arm LATE is of no rule. Of ``draws`` draws; jobs of one draw are not independent. None is not known.
    """

    rule: str
    arm: str
    measure: str
    value: float | None
    low: float | None
    high: float | None
    jobs: int
    draws: int

# SPDX-License-Identifier: Apache-2.0
"""Tries on a site's own Slurm which waiting jobs the newest forms change: held jobs of a minute, seen to start.

A release that forms.toml does not name may take an update and never start the job, so nobody's jobs are changed there
until this has shown what holds. It runs as an ordinary user, and cancels what it submitted.
"""

from collections.abc import Mapping, Sequence
from time import monotonic, sleep
from typing import NamedTuple, Protocol

from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.errors import InputError
from slurm_colloc.core.model import Gres
from slurm_colloc.placement.pieces import shares_per_gpu
from slurm_colloc.rebind.forms import newest_form, updates
from slurm_colloc.rebind.intent import Control, records_after
from slurm_colloc.slurm.gres import parse_tres_gres
from slurm_colloc.slurm.parse import FINAL_STATES
from slurm_colloc.slurm.pending import Assignments, PendingJob, update

_OPTIONS = ("gres", "gpus", "gpus-per-node", "gpus-per-task")
# A step of the job's own, with what templates/late.sbatch.j2 takes from it first.
_UNSET = "unset SLURM_GPUS SLURM_GPUS_PER_NODE SLURM_GPUS_PER_TASK SLURM_TRES_PER_TASK SLURM_TRES_BIND"
_STEP = f"{_UNSET}; timeout 20 srun -n1 true"


class Slurm(Control, Protocol):
    """The questions and orders of a probe, as the user who runs it."""

    def submit(self, arguments: Sequence[str]) -> str:
        """Have sbatch submit a job, and return its id."""

    def cancel(self, job_ids: Sequence[str]) -> None:
        """Cancel jobs, whatever their state."""


class Trial(NamedTuple):
    """A job that asks for one whole GPU by ``option``, of a type or of none, and the piece that it is changed to.

    ``is_back`` says that it is changed again, to what was asked.
    """

    option: str
    gpu: Gres
    piece: Gres
    is_back: bool = False

    @property
    def asks(self) -> str:
        """Return the option in sbatch's words."""
        gpu = str(self.gpu)
        return f"--{self.option}={gpu if self.option == 'gres' else gpu.removeprefix('gpu:')}"


class Outcome(NamedTuple):
    """The result of a trial; ``why`` it does not hold is empty where it does."""

    trial: Trial
    job_id: str
    why: str


def trials_of(config: SiteConfig, partition: str) -> list[Trial]:
    """Return what is to be tried: each way of asking for a GPU, by type and without one, for each kind of piece.

    Raises:
        InputError: the site has no pieces in this partition.
    """
    pools = [pool for pool in config.pool if partition in pool.partitions]
    types = sorted({pool.gpu_type for pool in pools if pool.gpu_type and pool.gpus_per_node})
    slices = [Gres("gpu", part.type, 1) for pool in pools for part in pool.slice if part.quantity]
    mps, shards = (max((shares_per_gpu(pool, name) for pool in pools), default=0) for name in ("mps", "shard"))
    pieces = slices[:1]
    if mps:
        pieces.append(Gres("mps", "", max(1, mps // 10)))
    if shards:
        pieces.append(Gres("shard", "", 1))
    if not pieces:
        raise InputError(f"site.toml has no pool with slices or shares in partition '{partition}'")
    gpus = [Gres("gpu", kind, 1) for kind in ("", *types[:1])]
    return [
        Trial(option, gpu, piece, is_back)
        for option in _OPTIONS
        for gpu in gpus
        for piece in pieces
        for is_back in (False, True)
    ]


def probe(trials: Sequence[Trial], partition: str, slurm: Slurm, patience_s: float) -> list[Outcome]:
    """Submit, change and release one job for each trial, and return what came of them.

    Args:
        trials: by ``trials_of``.
        partition: that of the jobs.
        slurm: as an ordinary user.
        patience_s: how long jobs may take to begin and end once they are released.

    Raises:
        ProcessError: Slurm does not answer, or refuses a job as it was asked.
    """
    jobs: dict[str, Trial] = {}
    try:
        for trial in trials:
            tasks = ["-n1"] if trial.option == "gpus-per-task" else []
            words = ["-H", "-t2", "-p", partition, "-o", "/dev/null", "-J", "late-probe", *tasks, trial.asks]
            jobs[slurm.submit([*words, f"--wrap={_STEP}"])] = trial
        changes = {job: updates(newest_form(trial.option), trial.piece, str(trial.gpu)) for job, trial in jobs.items()}
        faults = _change({job: to for job, (to, _) in changes.items()}, slurm)
        faults |= _change(
            {job: back for job, (_, back) in changes.items() if jobs[job].is_back and not faults[job]}, slurm
        )
        changed = {job: trial for job, trial in jobs.items() if not faults[job]}
        slurm.control([f"release {job}" for job in changed])
        faults |= _await(changed, slurm, patience_s)
        return [Outcome(trial, job, faults[job]) for job, trial in jobs.items()]
    finally:
        slurm.cancel([*jobs])


def holding(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the options of which every trial held."""
    failed = {outcome.trial.option for outcome in outcomes if outcome.why}
    holding_options = {outcome.trial.option for outcome in outcomes} - failed
    return [option for option in _OPTIONS if option in holding_options]


def _change(updates: Mapping[str, Assignments], slurm: Slurm) -> dict[str, str]:
    """Change jobs, and return by job why it does not show the change; empty where it does."""
    lines = [line for job, to in updates.items() for line in update([job], to)]
    records = records_after(slurm, lines, updates)
    return {
        job: "" if job in records and records[job].has(to) else "the update was not taken"
        for job, to in updates.items()
    }


def _await(jobs: Mapping[str, Trial], slurm: Slurm, patience_s: float) -> dict[str, str]:
    """Wait for released jobs to end, and return by job why it does not show that its change holds."""
    until_s = monotonic() + patience_s
    while jobs:
        records = records_after(slurm, (), jobs)
        ended = [job for job in jobs if job not in records or _is_over(records[job])]
        if len(ended) == len(jobs) or monotonic() > until_s:
            return {job: _why(records.get(job), trial) for job, trial in jobs.items()}
        sleep(1.0)
    return {}


def _is_over(job: PendingJob) -> bool:
    """Return whether a job has ended, or waits for what the partition does not have."""
    return job.state in FINAL_STATES or job.reason == "BadConstraints"


def _why(job: PendingJob | None, trial: Trial) -> str:
    if job is None:
        return "slurmctld does not know it any more"
    if job.state not in FINAL_STATES:
        return f"it did not end: {job.state}, {job.reason}"
    text = job.record.get("AllocTRES") or job.record.get("TRES", "")
    allocated = parse_tres_gres(text)
    right = trial.gpu if trial.is_back else trial.piece
    alike = [gres for gres in allocated if gres.name == right.name and right.type in ("", gres.type)]
    if len(allocated) != 1 or alike != [*allocated] or allocated[0].quantity != right.quantity:
        return f"it began with {', '.join(map(str, allocated)) or 'no gres that Slurm tracks'}"
    return "" if job.state == "COMPLETED" else f"its step did not run: {job.state}"

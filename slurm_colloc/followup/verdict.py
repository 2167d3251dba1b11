# SPDX-License-Identifier: Apache-2.0
"""Decides what follows a job that failed on a piece of a GPU: pure functions of its end, output and measurements."""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.errors import InputError
from slurm_colloc.core.model import GPU_OOM, Evidence, Gres, SharingMode
from slurm_colloc.core.units import counted
from slurm_colloc.followup.record import Record
from slurm_colloc.gpu.failure import Outcome, tried_mib
from slurm_colloc.placement.out_of_memory import MOST_RETRIES, held_mib, is_offender, is_share, more_mib
from slurm_colloc.slurm.gres import parse_gres
from slurm_colloc.slurm.jobs import Accounted

# Dropped from the user's own options of csub: said anew.
_REPLACED = ("--gpu-footprint", "--colloc")


class Found(NamedTuple):
    """How one job ended, the end of what it printed, and what its sampler measured (None: nothing)."""

    ended: Accounted
    outcome: Outcome
    said: bytes
    measured: Evidence | None

    @property
    def gres(self) -> Gres | None:
        """Return what it had of a GPU."""
        return next((one for one in reversed(self.ended.given) if one.type or one.name != "gpu"), None)

    @property
    def piece(self) -> str:
        """Return the same in words."""
        had = self.gres or next(iter(self.ended.given), None)
        return str(had) if had else "what it had"

    @property
    def cause(self) -> str:
        """Return what it died of in words."""
        if self.outcome is Outcome.GPU_OOM:
            return "ran out of GPU memory"
        return "failed by a GPU fault, its own or of a job beside it,"

    @property
    def peak_mib(self) -> int | None:
        """Return the most GPU memory that was measured of it."""
        return self.measured.gpu_mem_peak_mib if self.measured else None


class Verdict(NamedTuple):
    """What is due: ``failed`` may run again, ``offenders`` of them ran out of GPU memory by their own doing.

    ``hint_mib`` is what to ask for, None for a job that is run again as its user asked for it. ``gives_up`` says why
    nothing is submitted, empty where something is. ``said`` is what happened, ``cause`` of what and on what.
    """

    failed: tuple[Found, ...]
    offenders: tuple[Found, ...]
    hint_mib: int | None
    gives_up: str
    said: str
    cause: str


def judge(record: Record, found: Iterable[Found], config: SiteConfig) -> Verdict | None:
    """Return what is due, None where no job that failed ran out of GPU memory, or had a fault that may be another's.

    Under MPS a fault of one client ends those beside it, with the same words: who made it cannot be told. So each runs
    again as asked, on the whole GPU, where a fault is its own.
    """
    failed = tuple(
        one
        for one in (one._replace(ended=one.ended._replace(given=_gres_of(record, one.ended))) for one in found)
        if one.outcome is Outcome.GPU_OOM or _may_be_anothers(one)
    )
    if not failed:
        return None
    held = [held_mib(one.gres, record.budget_mib, config.pool) for one in failed]
    offenders, wanted = [], []
    for one, had in zip(failed, held, strict=True):
        ran_out = one.outcome is Outcome.GPU_OOM
        if ran_out and had is not None and one.gres and is_offender(one.gres, had, one.peak_mib, tried_mib(one.said)):
            offenders.append(one)
            wanted.append(more_mib(had, one.peak_mib or 0, sizes_are_free=is_share(one.gres)))
    hint = None if any(map(_may_be_anothers, failed)) else max(wanted, default=None)
    cause = (
        f"{' or '.join(sorted({one.cause for one in failed}))} on {' and '.join(sorted({one.piece for one in failed}))}"
    )
    jobs = failed[0].ended.job_id if len(failed) == 1 else f"{record.job_id}, {counted(len(failed), 'task')} of it,"
    gives_up = _gives_up(record, failed, held, hint)
    return Verdict(failed, tuple(offenders), hint, gives_up, f"job {jobs} {cause}", cause)


def _may_be_anothers(one: Found) -> bool:
    return one.outcome is Outcome.GPU_FAULT and one.gres is not None and one.gres.name == SharingMode.MPS


def _gives_up(record: Record, failed: Sequence[Found], held: Sequence[int | None], hint_mib: int | None) -> str:
    if not all(one.ended.given for one in failed):
        return "what it had of a GPU is not known, so it is not run again; ask for a GPU with more memory, or use less"
    if None in held:
        return "there is nothing larger to run it on by itself; ask for a GPU with more memory, or use less"
    if record.attempt >= MOST_RETRIES:
        more = f", for example by --gpu-footprint={_hint(record, hint_mib)}" if hint_mib else ""
        memory = f"; ask for more memory{more}" if any(one.outcome is Outcome.GPU_OOM for one in failed) else ""
        return f"it was run again {record.attempt} times, so this was the last{memory}"
    return ""


def _gres_of(record: Record, ended: Accounted) -> tuple[Gres, ...]:
    """Return what the job had; where Slurm's accounting knows no GPUs, or not their types, what was asked for."""
    if all(one == Gres("gpu", "", one.quantity) for one in ended.given):
        with suppress(InputError):
            return parse_gres(record.given) or ended.given
    return ended.given


def _hint(record: Record, mib: int) -> str:
    return f"mem={mib}M" + (f",sm={record.sm_active_pct:g}" if record.sm_active_pct is not None else "")


def as_evidence(record: Record, found: Found, config: SiteConfig, now_s: float) -> Evidence:
    """Return what is learned of an offender: it needs more than it had."""
    held = held_mib(found.gres, record.budget_mib, config.pool) or 0
    measured = found.measured or Evidence(
        job_id=found.ended.raw_id,
        signature=record.signature,
        state=GPU_OOM,
        mode=record.mode,
        gpu_model="",
        gpu_mem_peak_mib=None,
        sm_active_mean_pct=None,
        sm_active_q95_pct=None,
        sm_is_bound=False,
        sample_count=0,
        sampled_s=0.0,
        ended_s=now_s,
        elapsed_s=None,
    )
    return measured._replace(state=GPU_OOM, gpu_mem_peak_mib=max(measured.gpu_mem_peak_mib or 0, held + 1))


def retry_arguments(record: Record, verdict: Verdict, *, append: bool = False) -> tuple[str, ...]:
    """Return csub's options, own ones first, for a job that is submitted again.

    What comes last wins in sbatch: the tasks that ran out of an array, and an output file that is added to.
    """
    own = [word for word in record.own if word.partition("=")[0] not in _REPLACED]
    own.append(f"--gpu-footprint={_hint(record, verdict.hint_mib)}" if verdict.hint_mib else "--colloc=off")
    last = ["--open-mode=append"] if append and not record.append else []
    tasks = sorted(one.ended.task for one in verdict.failed if one.ended.task is not None)
    if tasks:
        _, percent, most = record.array.partition("%")
        last.append(f"--array={','.join(map(str, tasks))}{percent}{most}")
    return (*own, *record.options, *last)

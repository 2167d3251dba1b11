# SPDX-License-Identifier: Apache-2.0
"""What is due after a job that ran out of GPU memory: pure functions of its end, its words and what was measured.

On a slice the memory is the job's own. On a share (MPS, shard) it may have been a neighbour's: a job that had, with
what it tried to get, no more than it was counted for is a victim. It is run again as its user asked for it, and nothing
is learned of it.
"""

import math
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import NamedTuple

from slurm_colloc.config import SiteConfig
from slurm_colloc.errors import InputError
from slurm_colloc.followup.record import Record
from slurm_colloc.model import GPU_OOM, Evidence, Gres, SharingMode
from slurm_colloc.runtime.queue import Outcome
from slurm_colloc.slurm.accounted import Accounted
from slurm_colloc.slurm.gres import parse_gres
from slurm_colloc.units import counted, size_mib

MOST_RETRIES = 2
# What PyTorch and JAX could not get.
_TRIED = re.compile(rb"[Tt]r(?:ied|ying) to allocate (\d+(?:\.\d+)?) ?(bytes|[KMG]i?B)\b")
# Dropped from the user's own options of csub: said anew, or about one call.
_REPLACED = ("--gpu-footprint", "--colloc", "--explain", "--dry-run", "--format")


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


class Verdict(NamedTuple):
    """What is due: ``ran_out`` ran out of GPU memory, ``offenders`` of them by their own doing.

    ``hint_mib`` is what to ask for, None for a job that is run again as its user asked for it. ``gives_up`` says why
    nothing is submitted, empty where something is. ``said`` is what happened, ``pieces`` on what.
    """

    ran_out: tuple[Found, ...]
    offenders: tuple[Found, ...]
    hint_mib: int | None
    gives_up: str
    said: str
    pieces: str


def judge(record: Record, found: Iterable[Found], config: SiteConfig) -> Verdict | None:
    """Return what is due, None where no job ran out of GPU memory."""
    ran_out = tuple(
        one._replace(ended=one.ended._replace(given=_gres_of(record, one.ended)))
        for one in found
        if one.ended.state == "FAILED" and one.outcome is Outcome.GPU_OOM
    )
    if not ran_out:
        return None
    had = {one.ended.job_id: had_mib(record, one, config) for one in ran_out}
    offenders = tuple(one for one in ran_out if _is_offender(one, had[one.ended.job_id]))
    pieces = " and ".join(sorted({one.piece for one in ran_out}))
    wanted = [_wanted(one, had[one.ended.job_id] or 0) for one in offenders]
    hint = max(wanted) if wanted else None
    gives_up = ""
    if not all(one.ended.given for one in ran_out):
        gives_up = (
            "what it had of a GPU is not known, so it is not run again; ask for a GPU with more memory, or use less"
        )
    elif None in had.values():
        gives_up = "there is nothing larger to run it on by itself; ask for a GPU with more memory, or use less"
    elif record.attempt >= MOST_RETRIES:
        more = f", for example by --gpu-footprint={_hint(record, hint)}" if hint else ""
        gives_up = f"it was run again {record.attempt} times, so this was the last; ask for more memory{more}"
    jobs = ran_out[0].ended.job_id if len(ran_out) == 1 else f"{record.job_id}, {counted(len(ran_out), 'task')} of it,"
    said = f"job {jobs} ran out of GPU memory on {pieces}"
    return Verdict(ran_out, offenders, hint, gives_up, said, pieces)


def _gres_of(record: Record, ended: Accounted) -> tuple[Gres, ...]:
    """Return what the job had; where Slurm's accounting knows no GPUs, or not their types, what was asked for."""
    if all(one == Gres("gpu", "", one.quantity) for one in ended.given):
        with suppress(InputError):
            return parse_gres(record.given) or ended.given
    return ended.given


def had_mib(record: Record, found: Found, config: SiteConfig) -> int | None:
    """Return the GPU memory that the job could count on; None on a whole GPU, or what is none that is known."""
    gres = found.gres
    if gres is None:
        return None
    if gres.name in (SharingMode.MPS, SharingMode.SHARD):
        return record.budget_mib
    slices = (part for pool in config.pool for part in pool.slice)
    return next((part.mem_mib for part in slices if part.type == gres.type), None)


def tried_mib(said: bytes) -> int | None:
    """Return how much the last allocation that failed was to be, None where nobody said."""
    found = _TRIED.findall(said)
    if not found:
        return None
    amount, unit = found[-1]
    return math.ceil(size_mib(float(amount), "" if unit == b"bytes" else unit[:1].decode()))


def _is_offender(found: Found, had: int | None) -> bool:
    if had is None or found.gres is None or found.gres.name == "gpu":
        return had is not None
    peak = found.measured.gpu_mem_peak_mib if found.measured else None
    return peak is not None and peak + (tried_mib(found.said) or 0) > had


def _wanted(found: Found, had: int) -> int:
    """Return the memory to ask for: more than a slice holds; of a share, whose size is free, twice as much."""
    peak = (found.measured.gpu_mem_peak_mib if found.measured else None) or 0
    of_share = found.gres is not None and found.gres.name != "gpu"
    return max(had * 2 if of_share else had + 1, peak + 1)


def _hint(record: Record, mib: int) -> str:
    return f"mem={mib}M" + (f",sm={record.sm_active_pct:g}" if record.sm_active_pct is not None else "")


def as_evidence(record: Record, found: Found, config: SiteConfig, now_s: float) -> Evidence:
    """Return what is learned of an offender: it needs more than it had."""
    had = had_mib(record, found, config) or 0
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
    return measured._replace(state=GPU_OOM, gpu_mem_peak_mib=max(measured.gpu_mem_peak_mib or 0, had + 1))


def retry_arguments(record: Record, verdict: Verdict | None, *, append: bool = False) -> tuple[str, ...]:
    """Return csub's options, own ones first, for a job that is submitted again; None: as it was to be submitted.

    What comes last wins in sbatch: the tasks that ran out of an array, and an output file that is added to.
    """
    if verdict is None:
        return (*record.own, *record.options)
    own = [word for word in record.own if word.partition("=")[0] not in _REPLACED]
    own.append(f"--gpu-footprint={_hint(record, verdict.hint_mib)}" if verdict.hint_mib else "--colloc=off")
    last = ["--open-mode=append"] if append and not record.append else []
    tasks = sorted(one.ended.task for one in verdict.ran_out if one.ended.task is not None)
    if tasks:
        last.append(f"--array={array_value(tasks, record.array)}")
    return (*own, *record.options, *last)


def array_value(tasks: Sequence[int], array: str) -> str:
    """Return the value of --array for these tasks, with the "%n" of the array they were in."""
    _, percent, most = array.partition("%")
    return ",".join(map(str, tasks)) + percent + most

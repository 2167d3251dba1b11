# SPDX-License-Identifier: Apache-2.0
"""The piece of a GPU that a past run would have fitted, from what was measured of the run.

Reports, pages, audits and advice judge by it the runs that facts/sql/run_fits.sql selects: completed ones of one whole
GPU, measured alone on it for enough of their time, by their memory peak and their mean SM activity while kernels ran.

Accounting does not keep the script, cores, host memory, the time limit and the user's limits: all are taken to allow a
piece. Nothing is known of which pieces will be free.
"""

from collections.abc import Iterator
from math import inf
from typing import NamedTuple

from slurm_colloc.core.config import Partition, Pool, SiteConfig
from slurm_colloc.core.errors import InputError
from slurm_colloc.core.model import (
    Evidence,
    Footprint,
    Gres,
    JobRequest,
    Placement,
    Quantiles,
    SharingMode,
)
from slurm_colloc.gpu.mig import names_slice, parse_profile
from slurm_colloc.placement.candidate import Access, candidate_of
from slurm_colloc.placement.choose import place, reasons_to_leave
from slurm_colloc.placement.pieces import Fit, most_units, offers, pieces_in, shares_per_gpu, targets_of
from slurm_colloc.slurm.gres import parse_gres

# Digits of an SM activity in percent: a millionth of a GPU is noise of sums.
SM_DIGITS = 4
_LEAST_SM_PCT = 10.0**-SM_DIGITS


def past_request(allocation: str, partition: str, account: str, qos: str) -> JobRequest:
    """Return the request of a past job, as far as its allocation (in Slurm's words) tells it."""
    return JobRequest(
        interpreter="/bin/sh",
        partitions=(partition,),
        account=account,
        qos=qos,
        gres=_gpus(allocation),
        gpu_style="gres",
        cpus_given=True,
        mem_given=True,
        time_limit_min=inf,
    )


def _gpus(allocation: str) -> tuple[Gres, ...]:
    try:
        return tuple(gres for gres in parse_gres(allocation) if gres.name == "gpu")
    except InputError:  # an odd source has written it: any GPU
        return (Gres("gpu", "", 1),)


def had_piece(run: Evidence, allocation: str) -> bool:
    """Return whether a run had a slice or a share of a GPU, as far as its allocation (in Slurm's words) tells."""
    gpus = _gpus(allocation)
    is_cut = any(parse_profile(gres.type) or names_slice(gres.type) for gres in gpus)
    # A device that is no slice has no mode; csub's own word for having left a job as asked is one.
    return run.mode not in ("", SharingMode.EXCLUSIVE) or is_cut or not gpus


def _measured(gpu_model: str, peak_mib: float, active_pct: float) -> Footprint:
    """Return the footprint of a run as it was, without a margin."""
    # Sums of percentages may come to a little above a bound that the run just filled.
    peak, active = (Quantiles(value, value, value) for value in (peak_mib, round(active_pct, SM_DIGITS)))
    return Footprint(peak, active, None, gpu_model, "measured", 1, ())


def would_have_fitted(run: Evidence, request: JobRequest, config: SiteConfig) -> Placement:
    """Return the piece that holds what was measured of a run, with the site's headroom and within its slowdown.

    As in all reports its busy time does not count: the facts of past runs say nothing of it.
    """
    footprint = _measured(run.gpu_model, float(run.gpu_mem_peak_mib or 0), run.sm_active_mean_pct or 0.0)
    return place(request, footprint, config)


class Step(NamedTuple):
    """A piece, the largest memory peak and SM activity (in percent of a whole GPU) it holds, and whose it may be.

    ``partition`` is where it is asked for, empty where that is the job's own.
    """

    gres: Gres
    most_peak_mib: int
    most_sm_pct: float
    pools: tuple[Pool, ...]
    partition: str = ""


def ladder(request: JobRequest, gpu_model: str, config: SiteConfig) -> tuple[Step, ...]:
    """Return the pieces that a past run could have had, in the order in which csub gives them.

    The first that holds peak and SM activity is the one that ``would_have_fitted`` names.
    """
    footprint = _measured(gpu_model, 0.0, 0.0)
    job = candidate_of(request, footprint, config, Access())
    if reasons_to_leave(request, footprint, config) or job is None:
        return ()
    targets = list(targets_of(job, []))

    def pieces(sm_active_pct: float) -> Iterator[Fit]:
        return pieces_in(job._replace(memory_mib=0, sm_active_pct=sm_active_pct), targets, [])

    def steps() -> Iterator[Step]:
        for piece in pieces(0.0):
            fit: Fit | None = piece
            while fit is not None:
                pools = [target.pool for target in targets if target.moved == fit.target.moved]
                offering = tuple(pool for pool in pools if offers(pool, fit.gres))
                most_peak_mib = fit.most.memory_mib - config.sharing.headroom_mib
                yield Step(fit.gres, most_peak_mib, fit.most.sm_active_pct, offering, fit.target.named)
                # The next larger number of shares is given for the least that so many do not hold.
                above = pieces(fit.most.sm_active_pct + _LEAST_SM_PCT) if fit.gres.name != "gpu" else ()
                fit = next((larger for larger in above if _kind(larger) == _kind(piece)), None)

    return tuple(steps())


def _kind(fit: Fit) -> tuple[Partition, bool, str]:
    """Return what all shares of one kind in one place have in common."""
    return fit.target.partition, fit.target.moved, fit.gres.name


def holds(step: Step, peak_mib: int, sm_active_pct: float) -> bool:
    """Return whether a step holds a peak and an SM activity, as facts/sql/run_fits.sql asks of many."""
    return peak_mib <= step.most_peak_mib and round(sm_active_pct, SM_DIGITS) <= step.most_sm_pct


def has_pieces(config: SiteConfig) -> bool:
    """Return whether this site has pieces of GPUs to give."""
    consented = {"mps": config.sharing.mps_daemon != "none", "shard": "shard" in config.sharing.order}
    shares = [name for name, may in consented.items() if may]
    return any(
        (pool.slice and pool.sm_count) or any(most_units(shares_per_gpu(pool, name)) for name in shares)
        for pool in config.pool
    )


def known_names(config: SiteConfig) -> frozenset[str]:
    """Return the accounts and QOS, in small letters, that some partition is open or closed to: others are all alike."""
    keys = ("AllowAccounts", "DenyAccounts", "AllowQos", "DenyQos")
    return frozenset(
        name.lower() for partition in config.partition for key in keys for name in partition.restriction(key)
    )

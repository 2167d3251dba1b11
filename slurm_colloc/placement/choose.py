# SPDX-License-Identifier: Apache-2.0
"""Which piece of a GPU a job gets: a pure function of request, footprint and site.

A piece must hold the q99 of memory plus the site's headroom, and its SMs must not slow the job beyond the site's
bound. The slowdown on a slice is at least SM activity x SMs of the whole GPU / SMs of the slice
(docs/explanation/estimate.md). What is not known is a reason to submit as asked.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

from slurm_colloc.config import MigSlice, Pool, SiteConfig
from slurm_colloc.model import Footprint, Gres, JobRequest, Placement, Rejected, SharingMode
from slurm_colloc.units import demand_units

# Frameworks that take most of a card at start would starve their neighbours; set only where the user set nothing.
_TAMING = (("XLA_PYTHON_CLIENT_PREALLOCATE", "false"), ("TF_FORCE_GPU_ALLOW_GROWTH", "true"))


class _Need(NamedTuple):
    memory_mib: int
    sm_active_pct: float


class _Fit(NamedTuple):
    gres: Gres
    environment: tuple[tuple[str, str], ...]
    reason: str


def place(request: JobRequest, footprint: Footprint, config: SiteConfig) -> Placement:
    """Return the placement of one job, with every option that was weighed and why it was not taken."""
    reasons = _reasons_to_leave(request, footprint, config)
    if reasons or footprint.gpu_mem_peak_mib is None or footprint.sm_active_pct is None:
        return Placement(SharingMode.EXCLUSIVE, None, (), None, reasons, ())
    headroom = config.sharing.headroom_mib
    need = _Need(math.ceil(footprint.gpu_mem_peak_mib.q99) + headroom, footprint.sm_active_pct.q95)
    rejected: list[Rejected] = []
    pools = list(_pools(request, footprint, config, rejected))
    for mode in config.sharing.order:
        for fit in _MODES[mode](request, need, pools, config):
            if isinstance(fit, _Fit):
                return Placement(SharingMode(mode), fit.gres, fit.environment, headroom, (fit.reason,), tuple(rejected))
            rejected.append(fit)
    why = f"no piece of a GPU holds {need.memory_mib} MiB and {need.sm_active_pct:.0f} % of the SMs"
    if not pools:
        why = "; ".join(sorted({item.reason for item in rejected})) or "site.toml describes no GPUs"
    return Placement(SharingMode.EXCLUSIVE, None, (), headroom, (why,), tuple(rejected))


def _reasons_to_leave(request: JobRequest, footprint: Footprint, config: SiteConfig) -> tuple[str, ...]:
    if request.untouchable:
        return request.untouchable
    protected = [gres.type for gres in request.gres if gres.type in config.sharing.protected_types]
    if protected:
        return (f"the site protects jobs on '{protected[0]}'",)
    if footprint.gpu_mem_peak_mib is None:
        return (footprint.provenance,)
    if footprint.sm_active_pct is None:
        return (f"how busy the job keeps a GPU is not known ({footprint.provenance}); say sm=PERCENT",)
    return ()


def _pools(request: JobRequest, footprint: Footprint, config: SiteConfig, rejected: list[Rejected]) -> Iterator[Pool]:
    """Yield the pools that the job may run in and that its footprint speaks of."""
    partition = request.partition or config.default_partition
    asked = next((gres.type for gres in request.gres if gres.name == "gpu"), "")
    models = {pool.gpu_model for pool in config.pool if asked and pool.gpu_type == asked}
    for pool in config.pool:
        if partition not in pool.partitions:
            rejected.append(Rejected(f"pool {pool.name}", f"not in partition '{partition}'"))
        elif pool.gpu_type and pool.gpu_type in config.sharing.protected_types:
            rejected.append(Rejected(f"pool {pool.name}", f"the site protects jobs on '{pool.gpu_type}'"))
        elif asked and pool.gpu_type != asked and pool.gpu_model not in models - {""}:
            rejected.append(Rejected(f"pool {pool.name}", f"GPU type '{asked}' was asked for"))
        elif footprint.gpu_model and footprint.gpu_model != pool.gpu_model:
            rejected.append(Rejected(f"pool {pool.name}", f"the footprint was measured on {footprint.gpu_model}"))
        elif pool.sm_count is None:
            rejected.append(Rejected(f"pool {pool.name}", "site.toml does not give its sm_count"))
        else:
            yield pool


def _mig(request: JobRequest, need: _Need, pools: list[Pool], config: SiteConfig) -> Iterator[_Fit | Rejected]:
    slices = [(part, pool) for pool in pools for part in pool.slice if part.quantity]
    for part, pool in sorted(slices, key=lambda pair: (pair[0].mem_mib, pair[0].sm_count)):
        slowdown = _slowdown(need, part, pool)
        if part.mem_mib < need.memory_mib:
            yield Rejected(f"gpu:{part.type}", f"{part.mem_mib} MiB do not hold {need.memory_mib} MiB")
        elif slowdown > config.sharing.max_slowdown:
            yield Rejected(
                f"gpu:{part.type}",
                f"{part.sm_count} of {pool.sm_count} SMs slow it at least {slowdown:.2f}x; "
                f"the site's bound is {config.sharing.max_slowdown:g}x",
            )
        else:
            reason = (
                f"slice {part.profile} holds {need.memory_mib} of its {part.mem_mib} MiB; "
                f"slowdown at least {slowdown:.2f}x"
            )
            yield _Fit(Gres("gpu", part.type, 1), (), reason)


def _slowdown(need: _Need, part: MigSlice, pool: Pool) -> float:
    return max(1.0, need.sm_active_pct / 100 * (pool.sm_count or 0) / part.sm_count)


def _mps(request: JobRequest, need: _Need, pools: list[Pool], config: SiteConfig) -> Iterator[_Fit | Rejected]:
    for pool in pools:
        if not pool.mps_per_gpu:
            continue
        option = f"mps on {pool.name}"
        if config.sharing.mps_daemon != "site" or not config.sharing.mps_single_user:
            yield Rejected(option, "the site runs no shared MPS daemon for one user per GPU")
            continue
        fit = _share(request, need, pool, config, "mps", pool.mps_per_gpu)
        if isinstance(fit, _Fit):
            limit = (("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", f"0={need.memory_mib}M"),)
            fit = fit._replace(environment=(*limit, *_TAMING))
        yield fit


def _shard(request: JobRequest, need: _Need, pools: list[Pool], config: SiteConfig) -> Iterator[_Fit | Rejected]:
    for pool in pools:
        if not pool.shards_per_gpu:
            continue
        if not config.sharing.shard_consent:
            yield Rejected(f"shard on {pool.name}", "the site does not accept jobs without isolation")
            continue
        yield _share(request, need, pool, config, "shard", pool.shards_per_gpu)


def _share(
    request: JobRequest, need: _Need, pool: Pool, config: SiteConfig, name: str, per_gpu: int
) -> _Fit | Rejected:
    """Fit a job into ``per_gpu`` equal shares of one GPU, by memory and by SMs, whichever asks for more."""
    option = f"{name} on {pool.name}"
    if (request.partition or config.default_partition) in config.sharing.gpu_default_partitions:
        return Rejected(option, "the partition gives cores or memory per GPU, which a share would lose")
    if request.per_gpu_options:
        return Rejected(option, "the job sizes its cores or memory per GPU, which a share would lose")
    if not request.sh_like:
        return Rejected(option, f"its environment cannot be set in a script for '{request.interpreter}'")
    if pool.gpu_mem_mib is None:
        return Rejected(option, "site.toml does not give its gpu_mem_mib")
    if need.memory_mib > pool.gpu_mem_mib:
        return Rejected(option, f"{pool.gpu_mem_mib} MiB do not hold {need.memory_mib} MiB")
    units = max(
        demand_units(need.memory_mib / pool.gpu_mem_mib, per_gpu), demand_units(need.sm_active_pct / 100, per_gpu)
    )
    if units * 2 > per_gpu:
        return Rejected(option, f"{units} of {per_gpu} shares leave no room for a second job like it")
    reason = f"{units} of {per_gpu} shares hold {need.memory_mib} MiB and {need.sm_active_pct:.0f} % of the SMs"
    return _Fit(Gres(name, "", units), _TAMING, reason)


_MODES = {"mig": _mig, "mps": _mps, "shard": _shard}

# SPDX-License-Identifier: Apache-2.0
"""Answers of Slurm, kept from one submission to the next: the user's limits, and the free GPUs.

A file for each kind of answer lies in the user's own folder.
"""

import grp
import json
import os
import pwd
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TypeVar

from slurm_colloc.core.clock import now
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.errors import CollocError, StoreError
from slurm_colloc.core.files import private_folder, read_own, write_atomic
from slurm_colloc.core.model import Footprint, Gres, JobRequest, Reason, because
from slurm_colloc.core.value_types import read_as
from slurm_colloc.estimate.digest import digest
from slurm_colloc.placement.candidate import Access, partition_names
from slurm_colloc.placement.free_now import FreeNow
from slurm_colloc.slurm.free_gpus import Free, kind_of
from slurm_colloc.slurm.limits import Limits, default_qos
from slurm_colloc.submit.rollout import Whose

_LIMIT_BYTES = 16 * 1024 * 1024
_LIMITS, _FREE = "limits", "free"
# Limits change by hand, what is free with each job.
_LIMITS_KEPT_S, _FREE_KEPT_S = 3600.0, 20.0
_Kept = TypeVar("_Kept", Limits, Free)


def access_of(request: JobRequest, footprint: Footprint, config: SiteConfig, ask: Callable[[], Limits]) -> Access:
    """Return what the accounting allows; nothing is asked for a job that is left alone anyway."""
    if request.untouchable or footprint.gpu_mem_peak_mib is None or footprint.sm_active_pct is None:
        return Access()
    groups: tuple[str, ...] = ()
    if any(partition.restriction("AllowGroups") for partition in config.partition):
        groups = tuple(_group_name(gid) for gid in {os.getegid(), *os.getgroups()})
    if not config.limits.enforced:
        return Access(groups=groups)
    limits = limits_of_user(config, ask)
    return Access(unknown=limits, groups=groups) if isinstance(limits, Reason) else Access(limits, groups=groups)


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def whose_job(request: JobRequest, config: SiteConfig, ask: Callable[[], Limits]) -> Whose:
    """Return whose job this is, as far as the site's rules look at it; Slurm is asked for no more than that."""
    rules = config.rollout
    groups = frozenset(map(_group_name, {os.getegid(), *os.getgroups()}) if any(rule.groups for rule in rules) else ())
    partitions = partition_names(request, config)
    account, qos = request.account or None, request.qos or None
    if (not account and any(rule.accounts for rule in rules)) or (not qos and any(rule.qos for rule in rules)):
        limits = limits_of_user(config, ask)
        if isinstance(limits, Limits):
            account = account or limits.default_account or None
            qos = qos or default_qos(limits, account or "", partitions[0])
    return Whose(_user_name(), groups, account, partitions, qos)


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def limits_of_user(config: SiteConfig, ask: Callable[[], Limits]) -> Limits | Reason:
    """Return the user's limits, or why they are not known; ``ask`` is called when those kept are too old."""
    limits = _read_kept(config, _LIMITS, Limits)
    if limits is None or not 0 <= now() - limits.at_s <= _LIMITS_KEPT_S:
        try:
            limits = ask()
        except CollocError as error:
            return because("limits-unknown", error=str(error))
        _keep(config, _LIMITS, limits)
    return limits


def free_now(config: SiteConfig, ask: Callable[[], Free], *, wanted: bool) -> FreeNow | None:
    """Return where a choice may look up what is free; None where that counts for nothing at the site.

    Args:
        config: the site.
        ask: asks Slurm what is free now.
        wanted: somebody wants to see what is free, whether or not it can change the choice.
    """
    return FreeNow(partial(_free, config, ask), wanted) if config.sharing.ask_free else None


def _free(config: SiteConfig, ask: Callable[[], Free]) -> Free | Reason:
    """Return what is free now, or why that is not known; both are kept, lest each submission wait for a time-out."""
    free = _read_kept(config, _FREE, Free)
    if free is None or not 0 <= now() - free.at_s <= _FREE_KEPT_S:
        try:
            free = ask()
        except CollocError as error:
            free = Free(now(), {}, str(error))
        keep_free(config, free)
    return because("free-unknown", error=free.failed) if free.failed else free


def take_off(config: SiteConfig, partitions: Sequence[str], gres: Gres, tasks: int) -> None:
    """Take a submitted job's GPUs or slices off those kept as free: else the next submission is given them again.

    The most shares that one GPU has left are kept; another GPU may have as many, so that they stay.
    """
    if gres.name != "gpu":
        return
    free = _read_kept(config, _FREE, Free)
    if free:
        used = {(partition, kind) for partition in partitions for kind in (kind_of(gres), "gpu")}
        left = {key: max(0, count - gres.quantity * tasks) for key, count in free.units.items() if key in used}
        keep_free(config, free._replace(units={**free.units, **left}))


def keep_free(config: SiteConfig, free: Free) -> None:
    """Keep what is free."""
    _keep(config, _FREE, free._replace(units=[*free.units.items()]))  # type: ignore[arg-type]


def _read_kept(config: SiteConfig, kind: str, form: type[_Kept]) -> _Kept | None:
    """Return what was kept of a kind; None where nothing was, or it cannot be read."""
    with suppress(StoreError, ValueError, TypeError, RecursionError):
        answer: _Kept = read_as(form, json.loads(read_own(_path(config, kind), _LIMIT_BYTES)))
        return answer
    return None


def _keep(config: SiteConfig, kind: str, answer: object) -> None:
    """Keep an answer; one that is not kept is asked for again at the next submission."""
    with suppress(StoreError):
        private_folder(config.decisions_folder)
        write_atomic(_path(config, kind), json.dumps(answer).encode())


def _path(config: SiteConfig, kind: str) -> str:
    # No ".json": the ingest takes those in this folder for decisions. One home may serve several clusters.
    return os.path.join(config.decisions_folder, f"{kind}-{digest(config.cluster.encode())}")

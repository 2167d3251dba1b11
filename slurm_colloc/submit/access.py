# SPDX-License-Identifier: Apache-2.0
"""What the user may ask for, kept from one submission to the next so that Slurm is not asked at each."""

import grp
import os
import pwd
from collections.abc import Callable
from contextlib import suppress

from slurm_colloc.clock import now
from slurm_colloc.config import SiteConfig
from slurm_colloc.errors import CollocError, InputError, StoreError
from slurm_colloc.model import Footprint, JobRequest, Reason, because
from slurm_colloc.placement.pieces import Access
from slurm_colloc.slurm.limits import Limits, default_qos, from_json, to_json
from slurm_colloc.submit.kept import keep, read_kept
from slurm_colloc.submit.rollout import Whose

_KIND = "limits"


def access_of(request: JobRequest, footprint: Footprint, config: SiteConfig, ask: Callable[[], Limits]) -> Access:
    """Return what the accounting allows; nothing is asked for a job that is left alone anyway."""
    if request.untouchable or footprint.gpu_mem_peak_mib is None or footprint.sm_active_pct is None:
        return Access()
    groups: tuple[str, ...] = ()
    if any(partition.allow_groups for partition in config.partition):
        groups = tuple(_group_name(gid) for gid in {os.getegid(), *os.getgroups()})
    if not config.limits.enforced:
        return Access(groups=groups)
    found = limits_of_user(config, ask)
    return Access(unknown=found, groups=groups) if isinstance(found, Reason) else Access(found, groups=groups)


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def whose_job(request: JobRequest, config: SiteConfig, ask: Callable[[], Limits]) -> Whose:
    """Return whose job this is, as far as the site's rules look at it; Slurm is asked for no more than that."""
    rules = config.rollout
    groups = frozenset(map(_group_name, {os.getegid(), *os.getgroups()}) if any(rule.groups for rule in rules) else ())
    partitions = request.partitions or (config.default_partition,)
    found: Limits | Reason | None = None
    if (any(rule.accounts for rule in rules) and not request.account) or (
        any(rule.qos for rule in rules) and not request.qos
    ):
        found = limits_of_user(config, ask)
    account: str | None = request.account
    qos: str | None = request.qos
    if isinstance(found, Limits):
        account = account or found.default_account or None
        qos = qos or default_qos(found, account or "", partitions[0])
    else:
        account, qos = account or None, qos or None
    return Whose(_user_name(), groups, account, partitions, qos)


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def limits_of_user(config: SiteConfig, ask: Callable[[], Limits]) -> Limits | Reason:
    """Return the user's limits, or why they are not known; ``ask`` is called when those kept are too old."""
    with suppress(StoreError, InputError):  # none kept, or unreadable
        kept = from_json(read_kept(config, _KIND))
        if 0 <= now() - kept.at_s <= config.limits.max_age_s:
            return kept
    try:
        asked = ask()
    except CollocError as error:
        return because("limits-unknown", error=str(error))
    keep(config, _KIND, to_json(asked))
    return asked

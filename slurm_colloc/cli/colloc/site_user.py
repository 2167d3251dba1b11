# SPDX-License-Identifier: Apache-2.0
"""colloc site check --user: which policy holds for somebody's jobs, by account and partition."""

import grp
import os
import pwd
from collections.abc import Iterator

from slurm_colloc.config import SiteConfig
from slurm_colloc.errors import CollocError, InputError
from slurm_colloc.estimate.site_stop import why_stopped
from slurm_colloc.slurm.client import CliClient
from slurm_colloc.slurm.limits import Limits, default_qos
from slurm_colloc.submit.rollout import Whose, choose
from slurm_colloc.wording import words


def policies_of(user: str, config: SiteConfig) -> Iterator[str]:
    """Yield the policy for jobs of a user in each partition with GPUs and each account, where they name no QOS.

    Raises:
        InputError: there is no such user.
        CollocError: the accounting does not answer, and a rule asks what it knows.
    """
    try:
        entry = pwd.getpwnam(user)
    except KeyError as error:
        raise InputError(f"there is no user '{user}' on this host") from error
    groups = {_group(gid) for gid in os.getgrouplist(user, entry.pw_gid)}
    limits = _limits(user, config)
    accounts = sorted({one.account for one in limits.own}) if limits else [None]
    for partition in [one.name for one in config.partition] or [config.default_partition]:
        for account in accounts:
            qos = default_qos(limits, account or "", partition) if limits else None
            found = choose(
                config, Whose(user, groups, account, (partition,), qos), None, why_stopped(config.paths.state)
            )
            where = f"partition '{partition}'" + (f", account '{account}'" if account else "")
            yield f"{where}: policy '{found.policy}': {words(found.why)}"


def _limits(user: str, config: SiteConfig) -> Limits | None:
    if not any(rule.accounts or rule.qos for rule in config.rollout):
        return None
    try:
        return CliClient().limits(config.cluster, user)
    except InputError as error:
        raise CollocError(f"accounts and QOS of '{user}': {error}") from error


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)

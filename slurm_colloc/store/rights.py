# SPDX-License-Identifier: Apache-2.0
"""The users whose runs the caller may see. Slurm is asked if the caller is not the owner of the store."""

import os
from collections.abc import Callable, Sequence
from math import inf

from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.errors import CollocError, StoreError
from slurm_colloc.slurm.client import CliClient
from slurm_colloc.slurm.job_visibility import Rights, Visible, own_name, visible_to
from slurm_colloc.store.queries import stored_name, visible_runs
from slurm_colloc.store.store import Store

_NEWEST = 20
_OF_OTHERS = """
SELECT job_id_raw FROM readings
WHERE NOT {own} AND "user" != '' AND start_s IS NOT NULL AND (cluster = $cluster OR $cluster = '')
GROUP BY job_id_raw ORDER BY max(start_s) DESC, job_id_raw LIMIT $newest
"""
_OF_USER = 'SELECT 1 FROM readings WHERE "user" = $user LIMIT 1'


def visible_here(folder: str, config: SiteConfig | None, tell: Callable[[str], None]) -> Visible:
    """Return whose runs of the store in ``folder`` whoever runs this may see.

    ``tell`` is told where that is not known, so that only their own are shown.
    """
    uid = os.geteuid()
    try:
        keeps = os.stat(folder).st_uid == uid
    except OSError:  # the reader of the store says what is wrong with it
        keeps = True
    name = own_name()
    rights = None if uid == 0 or keeps else _rights(name, uid, folder, config, tell)
    return visible_to(name, uid, keeps_store=keeps, rights=rights)


def _rights(name: str, uid: int, folder: str, config: SiteConfig | None, tell: Callable[[str], None]) -> Rights | None:
    client = CliClient()
    try:
        rights = client.rights(name)
        if rights.hidden or rights.sees_all(uid) or not rights.in_database:
            return rights
        foreign = jobs_of_others(Store(folder, config), config.cluster if config else "", name, rights.accounts)
        # slurmdbd 26.05 says "none" of its own PrivateData whatever it is, and goes by it.
        return rights if not foreign or client.shown(foreign) else rights._replace(private=frozenset({"jobs"}))
    except StoreError:  # the reader of the store says what is wrong with it
        return rights
    except CollocError as error:
        tell(f"whose runs you may see is not known, so only your own are shown: {error}")
        return None


def jobs_of_others(store: Store, cluster: str, user: str, accounts: Sequence[str]) -> list[str]:
    """Return the raw ids of the newest jobs in a store that are neither this user's nor of these accounts.

    Args:
        store: all of it.
        cluster: the jobs' cluster; empty for all clusters.
        user: this user's jobs are left out.
        accounts: jobs of these accounts are left out, too.

    Raises:
        StoreError: it cannot be read.
    """
    own_runs = visible_runs(Visible(False, user, tuple(accounts)))
    parameters = {"cluster": cluster, "newest": _NEWEST}
    return [raw_id for (raw_id,) in store.rows(_OF_OTHERS.format(own=own_runs), parameters, inf, inf)]


def knows_user(store: Store, user: str) -> bool:
    """Return whether the store has a run of this user, whenever and with a GPU or without.

    Raises:
        StoreError: it cannot be read.
    """
    return bool(store.rows(_OF_USER, {"user": stored_name(user)}, inf, inf))

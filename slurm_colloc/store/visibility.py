# SPDX-License-Identifier: Apache-2.0
"""SQL conditions on the rows that the caller may see, used before anything is added up."""

from collections.abc import Sequence
from math import inf
from typing import TYPE_CHECKING

from slurm_colloc.slurm.job_visibility import Visible
from slurm_colloc.store.queries import sql

if TYPE_CHECKING:
    from slurm_colloc.store.store import Store

_NEWEST = 20
_OF_OTHERS = """
SELECT job_id_raw FROM readings
WHERE NOT {own} AND "user" != '' AND start_s IS NOT NULL AND (cluster = $cluster OR $cluster = '')
GROUP BY job_id_raw ORDER BY max(start_s) DESC, job_id_raw LIMIT $newest
"""
_OF_USER = 'SELECT 1 FROM readings WHERE "user" = $user LIMIT 1'


def visible_runs(visible: Visible) -> str:
    """Return the condition on a run; a view takes no parameters."""
    if visible.everybody:
        return "true"
    # Of a run whose user accounting could not tell the name is empty.
    of_user = f'"user" = {_quoted(visible.user)}' if visible.user else "false"
    accounts = ", ".join(map(_quoted, filter(None, visible.accounts)))
    return f"({of_user} OR account IN ({accounts}))" if accounts else of_user


def visible_samples(visible: Visible, query: str) -> str:
    """Return ``query``, of samples, with the rows of visible runs only: what nobody's processes did is not theirs."""
    if visible.everybody:
        return query
    return f"SELECT s.* FROM ({query}) s SEMI JOIN readings r ON s.cluster = r.cluster AND s.job_id = r.job_id_raw"


def jobs_of_others(store: "Store", cluster: str, user: str, accounts: Sequence[str]) -> list[str]:
    """Return the raw ids of the newest jobs in a store that are neither this user's nor of these accounts.

    Args:
        store: all of it.
        cluster: whose jobs; empty for all clusters.
        user: whose jobs are left out.
        accounts: whose jobs are left out, too.

    Raises:
        StoreError: it cannot be read.
    """
    own = visible_runs(Visible(False, user, tuple(accounts)))
    asked = {"cluster": cluster, "newest": _NEWEST}
    return [raw_id for (raw_id,) in store.rows(_OF_OTHERS.format(own=own), asked, inf, inf)]


def knows_user(store: "Store", user: str) -> bool:
    """Return whether the store has a run of this user, whenever and with a GPU or without.

    Raises:
        StoreError: it cannot be read.
    """
    return bool(store.rows(_OF_USER, {"user": _kept(user)}, inf, inf))


def _quoted(name: str) -> str:
    return f"'{sql(_kept(name))}'"


def _kept(name: str) -> str:
    # The store has no bytes outside UTF-8, so a name with one names nobody in it.
    return name.encode(errors="replace").decode()

# SPDX-License-Identifier: Apache-2.0
"""What of a store may be shown, as SQL: before anything is added up, so that totals are of what is visible, too."""

from slurm_colloc.accounting.parquet import sql
from slurm_colloc.slurm.visible import Visible


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


def _quoted(name: str) -> str:
    # The store has no bytes outside UTF-8, so a name with one names nobody in it.
    return f"'{sql(name.encode(errors='replace').decode())}'"

# SPDX-License-Identifier: Apache-2.0
"""Waits and hours by account and by what jobs had, before pieces of GPUs began and after.

They show who waited and who gained. The jobs before were not drawn: other changes meanwhile, such as of demand, are in
it. feedback/rollout has the draws.
"""

from duckdb import DuckDBPyConnection

from slurm_colloc.core.model import SharingMode
from slurm_colloc.core.sharing_model import Fairness
from slurm_colloc.store.queries import query, records

_BEGAN = """
SELECT min(at_s) FROM decisions WHERE cluster = $cluster AND shadow IS NOT true AND mode NOT IN ('', $exclusive)
"""


def pieces_began_s(database: DuckDBPyConnection, cluster: str) -> float | None:
    """Return when csub first gave a job a piece of a GPU; None where it never did, by a database of ``connect``."""
    ((at_s,),) = database.execute(_BEGAN, {"cluster": cluster, "exclusive": SharingMode.EXCLUSIVE}).fetchall()
    return None if at_s is None else float(at_s)


def fairness(
    database: DuckDBPyConnection, cluster: str, since_s: float, began_s: float, until_s: float
) -> tuple[Fairness, ...]:
    """Return what runs of [since, began) and of [began, until) waited and held, the accounts that held most first."""
    parameters = {"cluster": cluster, "since": since_s, "began": began_s, "until": until_s}
    return tuple(records(Fairness, database, query("feedback/sql/fairness"), parameters))

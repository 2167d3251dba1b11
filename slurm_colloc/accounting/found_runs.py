# SPDX-License-Identifier: Apache-2.0
"""Which runs are behind what a question found, so that runs of several windows can be counted once."""

from duckdb import DuckDBPyConnection

from slurm_colloc.accounting.audited import ask
from slurm_colloc.audited import Question

_FOUND = """
WITH judged AS (SELECT * FROM {source} WHERE ({scope}) AND coalesce(({judged}), false))
SELECT cluster, {subject} AS subject, list(DISTINCT hash(cluster, run))
FROM judged WHERE coalesce(({found}), false) GROUP BY ALL
"""


def found_runs(database: DuckDBPyConnection, question: Question) -> dict[tuple[str, str], frozenset[int]]:
    """Return for each (cluster, subject) of ``answer`` a number for each run found; equal ones are of one run."""
    return {(cluster, subject): frozenset(runs) for cluster, subject, runs in ask(database, _FOUND, question)}

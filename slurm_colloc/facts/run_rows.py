# SPDX-License-Identifier: Apache-2.0
"""Rows of runs, of their GPUs and of csub's decisions, for --runs and the library."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, get_type_hints

from duckdb import DuckDBPyConnection

from slurm_colloc.core.usage_model import JobUsage
from slurm_colloc.facts.aggregate import usages_of
from slurm_colloc.facts.collocation import USE_OF_SEVERAL, several_gpus
from slurm_colloc.facts.day_facts import FIX
from slurm_colloc.store.decisions import of_decided
from slurm_colloc.store.queries import named, query
from slurm_colloc.store.store import Store

# Column -> its type, and the rows; None is not known.
Rows = tuple[dict[str, Any], Sequence[Sequence[Any]]]

_OF_SEVERAL = {"gpus": int | None, "used_gpus": int | None, "balance": float | None}
_TIMES = {"start_s": "start", "end_s": "end"}
# Columns of other kinds are whole numbers.
_KINDS = {"VARCHAR": str, "BOOLEAN": bool, "DOUBLE": float, "TIMESTAMP": datetime}


def _moment(at_s: float) -> datetime:
    return datetime.fromtimestamp(at_s, UTC)


def run_rows(database: DuckDBPyConnection) -> Rows:
    """Return one row for each run of ``usage``, columns as in JobUsage, methods joined by ';', times as moments in UTC.

    A run of several whole GPUs has besides how many it had and used, and how evenly, as in ``several_gpus``.
    ``database`` is one of ``store.connect`` after ``aggregate``.
    """
    several_gpus(database)
    several = {
        (cluster, raw, start_s): rest for cluster, raw, start_s, *rest in database.execute(USE_OF_SEVERAL).fetchall()
    }
    kinds = {_TIMES.get(name, name): kind for name, kind in get_type_hints(JobUsage).items()}
    kinds |= dict.fromkeys(_TIMES.values(), datetime) | {"methods": str} | _OF_SEVERAL
    rows = []
    for run in usages_of(database):
        readable = {"start_s": _moment(run.start_s), "end_s": _moment(run.end_s), "methods": ";".join(run.methods)}
        figures = several.get((run.cluster, run.job_id_raw, run.start_s), (None, None, None))
        rows.append((*(run._asdict() | readable).values(), *figures))
    return kinds, rows


def share_rows(database: DuckDBPyConnection) -> Rows:
    """Return one row for each run of ``usage`` and GPU or slice that was sampled of it."""
    return _selected(database, query("facts/sql/run_shares", fix=FIX))


def decision_rows(database: DuckDBPyConnection) -> Rows:
    """Return one row for each run of ``usage`` that csub decided about: predicted beside measured."""
    return _selected(database, query("facts/sql/run_decisions", decided_runs=of_decided("usage")))


def _selected(database: DuckDBPyConnection, text: str) -> Rows:
    cursor = database.execute(text)
    return {name: _KINDS.get(str(kind), int) for name, kind, *_ in cursor.description or ()}, cursor.fetchall()


def past_runs(store: Store, cluster: str, since_s: float, until_s: float) -> list[dict[str, Any]]:
    """Return the runs with GPUs that were submitted or on in [since, until), by submission: fields of plan's Allocated.

    ``tres`` is all of AllocTRES; a run that is not over has no end, one without a known time limit no limit.

    Raises:
        StoreError: the store cannot be read.
    """
    parameters = {"cluster": cluster, "since": since_s, "until": until_s}
    with store.connect() as database:
        return list(named(database, query("facts/sql/past_runs"), parameters))

# SPDX-License-Identifier: Apache-2.0
"""Rows of runs, of their GPUs and of csub's decisions, for --runs and the library."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, get_type_hints

from duckdb import DuckDBPyConnection

from slurm_colloc.core.usage_model import JobUsage
from slurm_colloc.facts.aggregate import usages_of
from slurm_colloc.facts.collocation import USE_OF_SEVERAL, several_gpus
from slurm_colloc.facts.facts import FIX
from slurm_colloc.store.decisions import of_decided
from slurm_colloc.store.queries import named, query
from slurm_colloc.store.store import Store

# Column -> its type, and the rows; None is not known.
Rows = tuple[dict[str, Any], Sequence[Sequence[Any]]]

_OF_SEVERAL = {"gpus": int | None, "used_gpus": int | None, "balance": float | None}
_TIMES = {"start_s": "start", "end_s": "end"}
# Columns read of the parts of an aggregation -> (type, SQL). Times and shares as in JobUsage.
_OF_RUN = {
    "cluster": (str, "cluster"),
    "job_id": (str, "job_id"),
    "user": (str, '"user"'),
    "account": (str, "account"),
    "start": (datetime, "make_timestamp((from_s * 1e6)::BIGINT)"),
}
_OF_SHARE = {
    **_OF_RUN,
    "node": (str, "node"),
    "uuid": (str, "uuid"),
    "gpu_model": (str, "max(gpu_model)"),
    "unit_gpus": (float, "max(unit_gpus)"),
    "sampled_s": (float, "sum(us) / 1e6"),
    "shared_s": (float, "sum(shared_us) / 1e6"),
    "idle_s": (float, "sum(idle_us) / 1e6"),
    "gpu_util_pct": (float, f"sum(util_fix) / {FIX} / nullif(sum(util_us), 0)"),
    "sm_active_pct": (float, f"sum(sm_fix) / {FIX} / nullif(sum(sm_us), 0)"),
    "gpu_mem_peak_mib": (int, "max(unit_parts.peak_mib)"),
    "energy_j": (float, "sum(energy_uj) / 1e6"),
    "jobs_at_once": (int, "max(sharers)"),
    "methods": (str, "array_to_string(list_sort(list_distinct(list(method))), ';')"),
}
_OF_DECISION = {
    **_OF_RUN,
    "state": (str, "state"),
    "signature": (str, "signature"),
    "mode": (str, "mode"),
    "rung": (str, "rung"),
    "shadow": (bool, "shadow"),
    "would": (str, "would"),
    "would_memory_mib": (int, "would_memory_mib"),
    "would_wait_s": (float, "would_wait_s"),
    "arm": (str, "arm"),
    "gpu_mem_q99_mib": (float, "gpu_mem_q99_mib"),
    "gpu_mem_peak_mib": (int, "peak_mib"),
    "sm_active_q95_pct": (float, "sm_active_q95_pct"),
    "sm_active_pct": (float, "100 * sm_hours / nullif(sm_seconds / 3600, 0)"),
    "out_of_memory": (bool, "out_of_memory"),
}


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
    by = 'run, cluster, job_id, "user", account, from_s, node, uuid'
    tail = f"FROM unit_parts JOIN runs USING (run) GROUP BY {by} ORDER BY from_s, job_id, cluster, node, uuid"
    return _selected(database, _OF_SHARE, tail)


def decision_rows(database: DuckDBPyConnection) -> Rows:
    """Return one row for each run of ``usage`` that csub decided about: predicted beside measured."""
    return _selected(database, _OF_DECISION, f"FROM ({of_decided('usage')}) ORDER BY from_s, job_id, cluster")


def _selected(database: DuckDBPyConnection, columns: dict[str, tuple[Any, str]], tail: str) -> Rows:
    select = ", ".join(f'{value} AS "{name}"' for name, (_, value) in columns.items())
    return {name: kind for name, (kind, _) in columns.items()}, database.execute(f"SELECT {select} {tail}").fetchall()


def past_runs(store: Store, cluster: str, since_s: float, until_s: float) -> list[dict[str, Any]]:
    """Return the runs with GPUs that were submitted or on in [since, until), by submission: fields of plan's Allocated.

    ``tres`` is all of AllocTRES; a run that is not over has no end, one without a known time limit no limit.

    Raises:
        StoreError: the store cannot be read.
    """
    parameters = {"cluster": cluster, "since": since_s, "until": until_s}
    with store.connect() as database:
        return list(named(database, query("past_runs"), parameters))

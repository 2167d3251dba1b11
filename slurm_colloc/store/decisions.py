# SPDX-License-Identifier: Apache-2.0
"""csub's decisions beside the runs that followed: predicted against measured footprints.

Decisions are kept in the store's ``decisions.parquet`` when they are taken in, so that reports need nobody's spool.
"""

from collections.abc import Iterable

from duckdb import DuckDBPyConnection

from slurm_colloc.core.model import COMPLETED, Decision
from slurm_colloc.core.sharing_model import Prediction
from slurm_colloc.store.queries import kinds_of, make_rows, query, records

COLUMNS = kinds_of(
    "cluster VARCHAR, user VARCHAR, job_id VARCHAR, at_s DOUBLE, signature VARCHAR, mode VARCHAR, rung VARCHAR, "
    "gpu_mem_q99_mib DOUBLE, sm_active_q95_pct DOUBLE, shadow BOOLEAN, would VARCHAR, would_not VARCHAR, "
    "would_partition VARCHAR, would_memory_mib BIGINT, would_wait_s DOUBLE, arm VARCHAR, rule VARCHAR, "
    "out_of_memory BOOLEAN"
)
_OF_JOBS = tuple(COLUMNS)[4:]


def with_decisions(runs: str = "usage") -> str:
    """Return SQL for ``runs`` beside what csub decided of their jobs, NULL where it decided nothing."""
    columns = ", ".join(f"d.{name}" for name in _OF_JOBS)
    if_of_run = ", ".join(f"if(is_of_run, {name}, NULL) AS {name}" for name in _OF_JOBS)
    return query("store/sql/decided_runs", runs=runs, columns=columns, if_of_run=if_of_run)


def of_decided(runs: str) -> str:
    """Return SQL for those of ``runs`` of whose jobs csub decided anything: most did not go through it."""
    return with_decisions(query("store/sql/runs_by_csub", runs=runs))


def asked_id(shown_id: str, raw_id: str) -> str:
    """Return the id that csub knows the job of a run by."""
    return shown_id.partition("_")[0] if "_" in shown_id else raw_id


def make_table(database: DuckDBPyConnection, decisions: Iterable[tuple[str, Decision]]) -> None:
    """Make the table ``decided`` of (user, decision); the user is whose file it was, not who it says."""
    rows = [[user if name == "user" else getattr(decision, name) for name in COLUMNS] for user, decision in decisions]
    make_rows(database, "decided", COLUMNS, rows)


def predictions(database: DuckDBPyConnection) -> list[Prediction]:
    """Return for each rung how what it said compares with what was measured; ``database`` has ``usage``."""
    text = query("store/sql/predictions", decided_runs=of_decided("usage"), completed=COMPLETED)
    return records(Prediction, database, text)

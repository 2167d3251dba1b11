# SPDX-License-Identifier: Apache-2.0
"""csub's decisions beside the runs that followed: predicted against measured footprints.

Decisions are kept in the store's ``decisions.parquet`` when they are taken in, so that reports need nobody's spool.
"""

from collections.abc import Iterable

from duckdb import DuckDBPyConnection

from slurm_colloc.accounting.parquet import make_rows, named
from slurm_colloc.model import COMPLETED, Decision
from slurm_colloc.usage_model import Prediction

COLUMNS = {
    "cluster": "VARCHAR",
    "user": "VARCHAR",
    "job_id": "VARCHAR",
    "at_s": "DOUBLE",
    "signature": "VARCHAR",
    "mode": "VARCHAR",
    "rung": "VARCHAR",
    "gpu_mem_q99_mib": "DOUBLE",
    "sm_active_q95_pct": "DOUBLE",
    "shadow": "BOOLEAN",
    "would": "VARCHAR",
    "would_not": "VARCHAR",
    "would_partition": "VARCHAR",
    "would_memory_mib": "BIGINT",
    "would_wait_s": "DOUBLE",
    "would_wait_runs": "BIGINT",
    "arm": "VARCHAR",
    "rule": "VARCHAR",
    "out_of_memory": "BOOLEAN",
}
_OF_JOBS = tuple(COLUMNS)[4:]
_MADE = f"decided_s >= if(start_s > first_s OR submit_s IS NULL, start_s - {366 * 86_400}, submit_s - 600)"
# csub saw the id of an array, not those of its tasks; of a heterogeneous job it decided on each component, by the id
# that is the raw one of that.
_ASKED_ID = "if(contains({0}.job_id, '_'), split_part({0}.job_id, '_', 1), {0}.job_id_raw)"
_OF_USAGE, _OF_READING = _ASKED_ID.format("u"), _ASKED_ID.format("r")
# Job ids come round again: a decision is of the time before the run, and the latest such; a minute for clocks that
# differ. It is made when the job is submitted, but a requeue sets that time anew: of a job's later runs nobody knows
# it.
_OF = f"""
SELECT * EXCLUDE (decided_s) REPLACE ({", ".join(f"if({_MADE}, {name}, NULL) AS {name}" for name in _OF_JOBS)})
FROM (
    SELECT u.*, f.first_s, d.at_s AS decided_s, {", ".join(f"d.{name}" for name in _OF_JOBS)}
    FROM {{runs}} u ASOF LEFT JOIN decisions d
      ON d.cluster = u.cluster AND d."user" = u."user" AND d.job_id = {_OF_USAGE}
     AND d.at_s <= u.start_s + 60
    LEFT JOIN (
        SELECT cluster, job_id_raw, min(start_s) AS first_s FROM readings r SEMI JOIN decisions d
          ON d.cluster = r.cluster AND d.job_id = {_OF_READING} GROUP BY ALL
    ) f
      ON f.cluster = u.cluster AND f.job_id_raw = u.job_id_raw
)
"""
OF_RUNS = _OF.format(runs="usage")


def of_decided(runs: str) -> str:
    """Return SQL for those of ``runs`` of whose jobs csub decided anything: most did not go through it."""
    decided = f"""(
        FROM {runs} u SEMI JOIN decisions d
          ON d.cluster = u.cluster AND d."user" = u."user" AND d.job_id = {_OF_USAGE})"""
    return _OF.format(runs=decided)


# Only of a run that completed is the peak a peak; of others it is what it had so far.
_PREDICTIONS = f"""
WITH decided AS (
    SELECT rung, if(state = '{COMPLETED}', peak_mib / nullif(gpu_mem_q99_mib, 0), NULL) AS mem,
           100 * sm_hours / nullif(sm_seconds / 3600, 0) / nullif(sm_active_q95_pct, 0) AS sm
    FROM ({of_decided("usage")}) WHERE rung IS NOT NULL
)
SELECT rung, count(*) AS jobs, count(mem) AS mem_known, count(*) FILTER (mem <= 1) AS mem_within,
       median(mem) AS mem_median_ratio, max(mem) AS mem_max_ratio, count(sm) AS sm_known,
       count(*) FILTER (sm <= 1) AS sm_within, median(sm) AS sm_median_ratio, max(sm) AS sm_max_ratio
FROM decided GROUP BY rung ORDER BY rung
"""


def asked_id(shown_id: str, raw_id: str) -> str:
    """Return the id that csub knows the job of a run by."""
    return shown_id.partition("_")[0] if "_" in shown_id else raw_id


def make_table(database: DuckDBPyConnection, decisions: Iterable[tuple[str, Decision]]) -> None:
    """Make the table ``decided`` of (user, decision); the user is whose file it was, not who it says."""
    rows = [[user if name == "user" else getattr(one, name) for name in COLUMNS] for user, one in decisions]
    make_rows(database, "decided", COLUMNS, rows)


def predictions(database: DuckDBPyConnection) -> list[Prediction]:
    """Return for each rung how what it said compares with what was measured; ``database`` has ``usage``."""
    return [Prediction(**row) for row in named(database, _PREDICTIONS)]

# SPDX-License-Identifier: Apache-2.0
"""Runs of several whole GPUs: how many of these each used, and how evenly; from the parts of a sweep."""

from duckdb import DuckDBPyConnection

from slurm_colloc.accounting.facts import FIX
from slurm_colloc.accounting.parquet import named
from slurm_colloc.audit_model import IDLE_PCT
from slurm_colloc.chart_model import SeveralGpus
from slurm_colloc.usage_model import MEASURED, WHOLE_DEVICE

# Each GPU by itself, by a measurement of its run alone; ``idle`` is one on which hardly a kernel ever ran.
_UNITS = f"""
CREATE TEMP TABLE IF NOT EXISTS units_of_several AS
SELECT run, node, uuid, greatest(sum(util_us), sum(sm_us)) AS known_us,
       -- By each metric that is known.
       (sum(util_fix) / {FIX} > {IDLE_PCT} * sum(util_us) OR sum(sm_fix) / {FIX} > {IDLE_PCT} * sum(sm_us)) IS NOT true
           AS idle,
       coalesce(sum(sm_fix) / nullif(sum(sm_us), 0), sum(util_fix) / nullif(sum(util_us), 0)) / {FIX} AS active_pct
FROM unit_parts SEMI JOIN (SELECT run FROM runs WHERE devices > 1 AND whole) USING (run) GROUP BY run, node, uuid
HAVING bool_and(method IN ('{MEASURED}', '{WHOLE_DEVICE}')) AND sum(shared_us) = 0
   AND count(*) = count(blackout_us) AND sum(blackout_us) = 0 AND sum(util_us) + sum(sm_us) > 0
"""
# Of a run of which a GPU was not seen nobody knows how many it used. Its balance is the mean over the busiest GPU's.
# Where there are no samples runs have no number.
_RUNS = """
CREATE TEMP TABLE IF NOT EXISTS runs_of_several AS
SELECT r.cluster, r.job_id_raw, r.from_s, r.devices AS gpus, r.hours * r.gpus AS gpu_hours,
       if(u.seen = r.devices, u.used, NULL) AS used_gpus, if(used_gpus > 0, u.balance, NULL) AS balance
FROM runs r LEFT JOIN (
    SELECT run, count(*) AS seen, count(*) FILTER (NOT idle) AS used,
           avg(active_pct) / nullif(max(active_pct), 0) AS balance
    FROM units_of_several GROUP BY run
) u ON u.run = r.run
WHERE r.devices > 1 AND r.whole
"""
_ALL = """
SELECT count(*) AS runs, coalesce(sum(gpu_hours::DECIMAL(38, 12)), 0)::DOUBLE AS gpu_hours,
       count(r.used_gpus) AS known_runs, coalesce(sum(r.gpus) FILTER (r.used_gpus IS NOT NULL), 0)::BIGINT AS gpus,
       coalesce(sum(r.used_gpus), 0)::BIGINT AS used_gpus, count(*) FILTER (r.used_gpus = r.gpus) AS all_used_runs,
       median(balance) AS balance_median
FROM runs_of_several r HAVING count(*) > 0
"""
# What each run used; it began, as in JobUsage, inside the window.
OF_RUNS = "SELECT cluster, job_id_raw, from_s AS start_s, gpus, used_gpus, balance FROM runs_of_several"


def make_units(database: DuckDBPyConnection) -> None:
    """Make the table ``units_of_several`` of a database that was swept, once."""
    database.execute(_UNITS)


def several_gpus(database: DuckDBPyConnection) -> SeveralGpus | None:
    """Make ``runs_of_several`` of a swept database, and return what they come to; None where there are none."""
    make_units(database)
    database.execute(_RUNS)
    return next((SeveralGpus(**row) for row in named(database, _ALL)), None)

# SPDX-License-Identifier: Apache-2.0
"""How many jobs a GPU had, and what ran on it outside jobs; how many GPUs a run used, and how many there are at all."""

from duckdb import DuckDBPyConnection

from slurm_colloc.core.audit_model import IDLE_PCT
from slurm_colloc.core.chart_model import SeveralGpus
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.errors import InputError
from slurm_colloc.core.sharing_model import Collocation
from slurm_colloc.core.usage_model import MEASURED, MIN_COVERAGE_PCT, WHOLE_DEVICE, StrayUse
from slurm_colloc.facts.day_facts import FIX
from slurm_colloc.slurm.hostlist import expand
from slurm_colloc.store.equivalents import unit_gpus
from slurm_colloc.store.queries import query, records

# A reading is for the time since the last: its part beyond a run's end is time without that run's job.
_BY_JOBS = """
WITH beyond AS (
    SELECT cluster, uuid, greatest(sharers, 1) AS jobs, unit_gpus, round((whole_us - us) / greatest(sharers, 1)) AS us
    FROM unit_parts JOIN (SELECT run, cluster FROM runs) USING (run)
    SEMI JOIN (SELECT cluster, uuid FROM device_parts WHERE us > 0) USING (cluster, uuid) WHERE whole_us > us
)
SELECT jobs, count(DISTINCT (cluster, uuid)) AS units, sum(us) / 3.6e9 AS unit_hours,
       (sum((us * unit_gpus / 3.6e9)::DECIMAL(38, 12)))::DOUBLE AS gpu_hours
FROM (SELECT cluster, uuid, jobs, unit_gpus, us FROM device_parts WHERE us > 0
      UNION ALL SELECT * REPLACE (-us AS us) FROM beyond UNION ALL SELECT * REPLACE (0 AS jobs) FROM beyond)
GROUP BY jobs HAVING sum(us) > 0 ORDER BY jobs
"""
_STRAYS = """
SELECT cluster, node, count(DISTINCT uuid) AS gpus, sum(stray_us) / 3.6e9 AS gpu_hours, max(stray_last_s) AS last_s
FROM device_parts WHERE stray_us > 0 GROUP BY cluster, node ORDER BY gpu_hours DESC, cluster, node
"""
# Hardly a kernel ever ran on a GPU, by each metric that is known.
HARDLY_USED = f"""
(sum(util_fix) / {FIX} > {IDLE_PCT} * sum(util_us) OR sum(sm_fix) / {FIX} > {IDLE_PCT} * sum(sm_us)) IS NOT true
"""
# The use of each run, which began, as in JobUsage, inside the window.
USE_OF_SEVERAL = "SELECT cluster, job_id_raw, from_s AS start_s, gpus, used_gpus, balance FROM runs_of_several"


def collocation(database: DuckDBPyConnection) -> list[Collocation]:
    """Return how long the sampled GPUs and slices had 0, 1, 2, ... jobs; ``database`` is aggregated."""
    return records(Collocation, database, _BY_JOBS)


def installed_gpus(config: SiteConfig | None) -> float | None:
    """Return the GPUs of all of the site's pools, slices by compute slices; None where there are none."""
    total = 0.0
    for pool in config.pool if config else ():
        try:
            nodes = len(expand(pool.nodes))
        except InputError:
            return None
        slices = sum(part.quantity * unit_gpus(part.profile, pool.gpu_model) for part in pool.slice)
        total += nodes * (pool.gpus_per_node + slices)
    return total or None


def stray_use(database: DuckDBPyConnection) -> list[StrayUse]:
    """Return the nodes on whose GPUs processes outside any job were seen, the most first; after an aggregation."""
    return records(StrayUse, database, _STRAYS)


def make_units(database: DuckDBPyConnection) -> None:
    """Make the table ``units_of_several`` of a database that was aggregated, once."""
    words = {"fix": FIX, "hardly_used": HARDLY_USED, "measured": MEASURED, "whole_device": WHOLE_DEVICE}
    select = query("facts/sql/units_of_several", **words)
    database.execute(f"CREATE TEMP TABLE IF NOT EXISTS units_of_several AS {select}")


def make_idle_units(database: DuckDBPyConnection) -> None:
    """Make the table ``idle_units`` of the runs that never used some of several whole GPUs, once."""
    make_units(database)
    select = query("facts/sql/idle_units", least_pct=MIN_COVERAGE_PCT)
    database.execute(f"CREATE TEMP TABLE IF NOT EXISTS idle_units AS {select}")


def several_gpus(database: DuckDBPyConnection) -> tuple[SeveralGpus, ...]:
    """Return how evenly runs used several whole GPUs, all of them first, then by size; ``database`` is aggregated.

    It makes the table ``runs_of_several`` of them.
    """
    make_units(database)
    database.execute(f"CREATE TEMP TABLE IF NOT EXISTS runs_of_several AS {query('facts/sql/runs_of_several')}")
    return tuple(records(SeveralGpus, database, query("facts/sql/several_gpus")))

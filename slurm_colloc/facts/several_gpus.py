# SPDX-License-Identifier: Apache-2.0
"""Runs of several whole GPUs: how many of these each used, and how evenly; from the parts of an aggregation."""

from duckdb import DuckDBPyConnection

from slurm_colloc.core.audit_model import IDLE_PCT
from slurm_colloc.core.chart_model import SeveralGpus
from slurm_colloc.core.usage_model import MEASURED, WHOLE_DEVICE
from slurm_colloc.facts.facts import FIX
from slurm_colloc.store.queries import named, query

# What each run used; it began, as in JobUsage, inside the window.
OF_RUNS = "SELECT cluster, job_id_raw, from_s AS start_s, gpus, used_gpus, balance FROM runs_of_several"


def make_units(database: DuckDBPyConnection) -> None:
    """Make the table ``units_of_several`` of a database that was aggregated, once."""
    words = {"fix": FIX, "idle_pct": IDLE_PCT, "measured": MEASURED, "whole_device": WHOLE_DEVICE}
    made = query("units_of_several", **words)
    database.execute(f"CREATE TEMP TABLE IF NOT EXISTS units_of_several AS {made}")


def several_gpus(database: DuckDBPyConnection) -> SeveralGpus | None:
    """Make ``runs_of_several`` of an aggregated database, and return what they come to; None where there are none."""
    make_units(database)
    database.execute(f"CREATE TEMP TABLE IF NOT EXISTS runs_of_several AS {query('runs_of_several')}")
    return next((SeveralGpus(**row) for row in named(database, query("several_gpus"))), None)

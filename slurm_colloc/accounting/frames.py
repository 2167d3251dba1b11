# SPDX-License-Identifier: Apache-2.0
"""What a sweep found, as pandas frames for notebooks and tables."""

from typing import get_type_hints

import pandas as pd
from duckdb import DuckDBPyConnection

from slurm_colloc.accounting.several_gpus import OF_RUNS, several_gpus
from slurm_colloc.accounting.sweep import usages_of
from slurm_colloc.measured import JobUsage


def runs_frame(database: DuckDBPyConnection) -> pd.DataFrame:
    """Return one row for each run of ``usage``, columns as in JobUsage, methods joined by ';'; not known is missing.

    Of a run of several whole GPUs there are besides how many it had and used, and how evenly, as in several_gpus.
    Times are moments in UTC. ``database`` is one of ``store.connect`` after ``sweep``.
    """
    frame = pd.DataFrame.from_records(usages_of(database), columns=list(JobUsage._fields))
    floats = [name for name, kind in get_type_hints(JobUsage).items() if kind in (float, float | None)]
    frame = frame.astype(dict.fromkeys(floats, float))  # pandas takes a column of nothing but None for one of objects
    several_gpus(database)
    several = database.execute(OF_RUNS).df()
    frame = frame.merge(several, how="left", on=["cluster", "job_id_raw", "start_s"])
    for name in ("start_s", "end_s"):
        frame[name.removesuffix("_s")] = pd.to_datetime(frame.pop(name), unit="s", utc=True)
    frame["methods"] = frame["methods"].map(";".join)
    whole = ["gpu_mem_peak_mib", "host_mem_peak_mib", "gpus", "used_gpus"]
    frame[whole] = frame[whole].astype("Int64")
    return frame

# SPDX-License-Identifier: Apache-2.0
"""The table of jobs of several GPUs."""

from collections.abc import Sequence
from datetime import datetime

from slurm_colloc.core.units import printable
from slurm_colloc.facts.several import SeveralBy
from slurm_colloc.report.columns import Column, Listing, Table
from slurm_colloc.report.text import window_in_words

SCHEMA = 1
COLUMNS = (
    Column("USER", "user"),
    Column("SCRIPT", "script", None, 1),
    Column("GPUS EACH", "gpus", 0, 0),
    Column("RUNS", "runs", 0, 5),
    Column("ALLOC GPU-h", "allocated_gpu_hours", 2, 2),
    Column("GPU-h/RUN", "gpu_hours_per_run", 2, 7),
    Column("USED", lambda row: f"{row.used_gpus} of {row.known_gpus}" if row.known_runs else "", None, 3,
           "USED: GPUs used of those asked for, in the runs that were sampled on each GPU."),
    Column("BALANCE", "balance_median", 2, 6, "BALANCE: mean activity of a run's GPUs over its busiest one's; median."),
    Column("SM %", "sm_pct", 1, 4, "SM %: of the sampled time. Throughput is not known: GPU-h/RUN and SM % are."),
    Column("GPU_UTIL %", "util_pct", 1, 9),
    Column("WAITING GPU-h", "waiting_gpu_hours", 2, 8,
           "WAITING: idle GPU-hours of runs whose cores or reading were the narrow place (COL012 judges the same)."),
    Column("LOST GPU-h", "lost_gpu_hours", 2, 1, "LOST: GPU-hours of GPUs that a run never used."),
    Column("LINE", "line", None, 3, "LINE: in the script, in place of what asks for GPUs, of the run that lost most."),
)  # fmt: skip


def listing_of(
    cluster: str, ends: tuple[datetime, datetime], by: str, rows: Sequence[SeveralBy], visible: str
) -> Listing:
    """Return the table; ``visible`` says whose runs these are where they are not everybody's."""
    where = f" on {printable(cluster)}" if cluster else ""
    columns = [column for column in COLUMNS if by != "user" or column.figure != "script"]
    return Listing(
        heading=f"Jobs of several GPUs{where}, {window_in_words(*ends)}, by {by}",
        tables=[Table(columns, rows, name_columns=16)],
        notes=[printable(visible)] if visible else [],
        schema=SCHEMA,
        record={"cluster": cluster, "since": ends[0], "until": ends[1], "by": by, "visible": visible, "rows": rows},
        kind=SeveralBy,
        nouns=rows,
    )

# SPDX-License-Identifier: Apache-2.0
"""A list of runs with what each had, used and could do: the judgement of colloc job, a line for each."""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from slurm_colloc.core.units import counted, in_words, printable
from slurm_colloc.facts.judgement import Judgement
from slurm_colloc.report.columns import Column, Listing, Table
from slurm_colloc.report.text import local, stamp
from slurm_colloc.report.usage import METRICS, percent, use_of

SCHEMA = 1


class JobRow(NamedTuple):
    """A run of a job with a GPU; hours are of what lies in the window, time and limit are of the whole run.

    ``elapsed_pct`` is of the limit. ``used_pct`` is of the measured GPU-hours by ``metric``, empty where nothing was
    measured. ``to_do`` is empty where there is nothing to do, or nobody knows; ``to_do_gres`` names the GPUs to ask for
    then.
    """

    cluster: str
    job_id: str
    job_name: str
    user: str
    account: str
    partition: str
    state: str
    start: datetime
    elapsed_s: float | None
    suspended_s: int | None
    limit_s: float | None
    elapsed_pct: float | None
    gres: str
    allocated_gpu_hours: float | None
    measured_gpu_hours: float | None
    used_gpu_hours: float | None
    used_pct: float | None
    metric: str
    coverage_pct: float | None
    gpu_mem_peak_mib: int | None
    host_mem_peak_mib: int | None
    to_do: str
    to_do_gres: str
    could_free_gpu_hours: float | None


def _elapsed(row: JobRow) -> str:
    suspended = f" (+ {in_words(row.suspended_s)} suspended)" if row.suspended_s else ""
    return "" if row.elapsed_s is None else in_words(row.elapsed_s) + suspended


_TO_DO = "TO DO: what would leave most GPU-hours to others ('colloc job JOB' has the line); '-': nothing, or not known."
COLUMNS = (
    Column("JOB", "job_id"),
    Column("NAME", "job_name", None, 6),
    Column("STATE", "state", None, 1),
    Column("ELAPSED", _elapsed, None, 5, "ELAPSED, OF LIMIT %: of the whole run; hours are those in the window."),
    Column("OF LIMIT %", "elapsed_pct", 0, 7),
    Column("GPUS", "gres", None, 4),
    Column("ALLOC GPU-h", "allocated_gpu_hours", 2, 2),
    Column(
        "USED %", "used_pct", 1, 0, "USED %: of the sampled GPU-hours, by the metric BY; '-' where none was sampled."
    ),
    Column("BY", lambda row: "SM" if row.metric == METRICS["sm"] else row.metric, None, 8),
    Column("SAMPLED %", "coverage_pct", 0, 10),
    Column("GPU MEM MiB", "gpu_mem_peak_mib", 0, 9, "GPU MEM: the peak of the sum over the run's GPUs."),
    Column("TO DO", "to_do", None, 3, _TO_DO),
)


def row_of(judgement: Judgement) -> JobRow:
    """Return the row of a run of which that is said."""
    run, use = judgement.found.usage, use_of(judgement.found.usage)
    limit_s = None if run.limit_min is None else 60.0 * run.limit_min
    remedy = next(iter(judgement.remedies), None)
    return JobRow(
        # Fields of the same name are the run's.
        **{name: value for name, value in run._asdict().items() if name in JobRow._fields},
        start=local(run.start_s),
        limit_s=limit_s,
        elapsed_pct=percent(run.elapsed_s, limit_s),
        measured_gpu_hours=use and use.measured_gpu_hours,
        used_gpu_hours=use and use.used_gpu_hours,
        used_pct=use and use.pct,
        metric=use.metric if use else "",
        to_do=remedy.what if remedy else "",
        to_do_gres=remedy.gres if remedy else "",
        could_free_gpu_hours=remedy.gpu_hours if remedy else None,
    )


def listing_of(
    user: str, ends: tuple[datetime, datetime], source: str, judgements: Sequence[Judgement], without_gpu: int
) -> Listing:
    """Return the list of a user's runs, the first first."""
    rows = [row_of(judgement) for judgement in judgements]
    heading = f"{counted(len(rows), 'run')} of {printable(user)} with a GPU, {stamp(ends[0])} to {stamp(ends[1])}"
    return Listing(
        heading=f"{heading}; {without_gpu} without a GPU not listed",
        tables=[Table(COLUMNS, rows, name_columns=15)],
        notes=[f"source: {printable(source)}"],
        schema=SCHEMA,
        record={"user": user, "since": ends[0], "until": ends[1], "source": source, "runs_without_gpu": without_gpu,
                "rows": rows},
        kind=JobRow,
        nouns=rows,
    )  # fmt: skip

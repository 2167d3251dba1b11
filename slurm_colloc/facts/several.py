# SPDX-License-Identifier: Apache-2.0
"""Jobs of several GPUs by user and by job name: GPUs asked for, used and lost, and the line to send."""

import shlex
from typing import Any, NamedTuple

from duckdb import DuckDBPyConnection

from slurm_colloc.core.audit_model import RUNS, Question
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.facts.audited import STRONG
from slurm_colloc.facts.collocation import several_gpus
from slurm_colloc.facts.fits import one_run
from slurm_colloc.facts.judgement import FEWER, NO_USE, judge, option_for
from slurm_colloc.facts.remedies import make_fits
from slurm_colloc.store.queries import named, query

BY = {"user": "NULL", "script": "job_name"}


class SeveralBy(NamedTuple):
    """Runs of one user (and one job name) that each had so many whole GPUs.

    ``used_gpus`` of ``known_gpus`` were used in the ``known_runs`` that were seen on each of their GPUs; a balance is
    the mean activity of a run's GPUs over the busiest one's. ``waiting_gpu_hours`` are the idle ones of runs that
    waited for data, by the rule COL012, ``lost_gpu_hours`` those of GPUs that were never used. The remedy and the line
    for the script are of the run that lost most, empty where none did. None is not known of any run.
    """

    user: str
    script: str | None
    gpus: int
    runs: int
    allocated_gpu_hours: float
    gpu_hours_per_run: float
    known_runs: int
    known_gpus: int
    used_gpus: int
    balance_median: float | None
    sm_pct: float | None
    util_pct: float | None
    waiting_gpu_hours: float | None
    lost_gpu_hours: float | None
    to_do: str = ""
    line: str = ""
    command: str = ""


def several_by(database: DuckDBPyConnection, config: SiteConfig | None, by: str, waits: Question) -> list[SeveralBy]:
    """Return the runs of several whole GPUs by one of BY, those first that lost most.

    Args:
        database: one that was aggregated.
        config: the site, None where there is no site file: then nothing is known to be lost.
        by: one of BY.
        waits: asks which runs waited for data.
    """
    several_gpus(database)
    make_fits(database, config)
    database.execute(
        f"CREATE TEMP VIEW {RUNS} AS SELECT *, {STRONG} AS strong FROM usage LEFT JOIN run_fits USING (run)"
    )
    text = query("facts/sql/several_by", script=BY[by], runs=waits.source, judged=waits.judged, found=waits.found)
    return [_row(database, row) for row in named(database, text, waits.parameters)]


def _row(database: DuckDBPyConnection, row: dict[str, Any]) -> SeveralBy:
    run = row.pop("run")
    several = SeveralBy(**row, gpu_hours_per_run=row["allocated_gpu_hours"] / row["runs"])
    if run is None:
        return several
    example = one_run(database, run)
    remedy = next((candidate for candidate in judge(example).remedies if candidate.code in (FEWER, NO_USE)), None)
    if remedy is None:
        return several
    line = f"#SBATCH {option_for(remedy.gres, 'gres')}" if remedy.gres else ""
    return several._replace(to_do=remedy.what, line=line, command=f"colloc job {shlex.quote(example.usage.job_id)}")

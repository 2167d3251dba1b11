# SPDX-License-Identifier: Apache-2.0
"""Things that users could do about GPU-hours that others could have had: the one of each user that leaves most."""

import shlex

from duckdb import DuckDBPyConnection

from slurm_colloc.core.chart_model import Todo
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.usage_model import MIN_COVERAGE_PCT
from slurm_colloc.facts.fits import make_run_fits, one_run
from slurm_colloc.facts.judgement import (
    FEWER,
    LEAST_GPU_HOURS,
    LEAST_TAIL_MIN,
    NEVER_USED,
    NO_USE,
    PIECE,
    TAIL,
    enough,
    judge,
    option_for,
)
from slurm_colloc.placement.fitted import has_pieces
from slurm_colloc.store.queries import kinds_of, make_rows, query

# Pieces are not known without a site file: all runs are as those of which a judgement has no fit.
_NO_FITS = kinds_of(
    "run BIGINT, fit_why VARCHAR, fit_unit VARCHAR, fit_gpus DOUBLE, fit_most_mib BIGINT, fit_freed DOUBLE, "
    "asked_gpus BIGINT, unused_gpus BIGINT, spare DOUBLE, unit_nodes BIGINT, fit_place VARCHAR"
)


def make_fits(database: DuckDBPyConnection, config: SiteConfig | None) -> None:
    """Make the table ``run_fits``, empty without a site."""
    if config is None:
        make_rows(database, "run_fits", _NO_FITS, [])
    else:
        make_run_fits(database, config)


def remedies(database: DuckDBPyConnection, config: SiteConfig | None, most: int) -> tuple[int, list[Todo]]:
    """Return how many users could do something, and what, those first who would leave most.

    Args:
        database: one that ``fits_of`` was asked of.
        config: the same.
        most: of so many users it is told what.
    """
    # The fits are made if there are pieces.
    if config is None or not has_pieces(config):
        make_fits(database, config)
    text = query(
        "facts/sql/remedies",
        most=most,
        least_gpu_hours=LEAST_GPU_HOURS,
        least_pct=MIN_COVERAGE_PCT,
        never_used=NEVER_USED,
        least_tail_s=60 * LEAST_TAIL_MIN,
        no_use=NO_USE,
        fewer=FEWER,
        piece=PIECE,
        tail=TAIL,
    )
    rows, found = database.execute(text).fetchall(), []
    for user, code, gpu_hours, runs, differ, example, _ in rows:
        run = one_run(database, example)
        (remedy,) = (remedy for remedy in judge(run).remedies if remedy.code == code)
        fitted = run.fitted
        piece = f"{100 * fitted.gpus:.0f} % of a GPU ({remedy.gres})" if fitted and fitted.gpus else remedy.gres
        place = f"--partition={fitted.partition} " if code == PIECE and fitted and fitted.partition else ""
        line = f"#SBATCH {place}{option_for(remedy.gres, 'gres')}" if remedy.gres else ""
        words = f"ask for less: {enough(piece, differ)}" if code == PIECE and runs > 1 else remedy.what
        found.append(Todo(user, words, gpu_hours, runs, line, f"colloc job {shlex.quote(run.usage.job_id)}"))
    return rows[0][-1] if rows else 0, found

# SPDX-License-Identifier: Apache-2.0
"""Sums of runs in each month of a window, as if each month was asked for alone."""

from itertools import pairwise

from duckdb import DuckDBPyConnection

from slurm_colloc.core.chart_model import Fit
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.usage_model import GroupUsage
from slurm_colloc.facts.aggregate import aggregate
from slurm_colloc.facts.fits import fits_of
from slurm_colloc.facts.over_time import months_of
from slurm_colloc.facts.usage import whole_usage
from slurm_colloc.store.store import Store
from slurm_colloc.store.window import Step, Window, ignore


def used_hours_by_month(
    database: DuckDBPyConnection,
    store: Store,
    window: Window,
    config: SiteConfig | None,
    convention: str,
    step: Step = ignore,
) -> tuple[list[GroupUsage], list[Fit]]:
    """Return what the runs of each month come to, the first month first, and what they would have fitted.

    Args:
        database: one of ``store.connect``; it is left as it was.
        store: of it.
        window: the window, which cuts its first and last month.
        config: as in ``fits_of``; None where there is no site file, and so nothing fits.
        convention: as in ``fits_of``.
        step: is told of months.
    """
    groups, fits = [], []
    months = months_of(window.since_s, window.until_s)
    for done, ((since_s, name), (until_s, _)) in enumerate(pairwise(months)):
        step(done, len(months))
        # Tables that are made of a month are gone with it.
        database.execute("BEGIN")
        aggregate(database, store, Window(since_s, until_s, window.now_s))
        groups.append(whole_usage(database)._replace(name=name))
        *_, total = fits_of(database, "user", config, convention) or (None,) if config else (None,)
        fits += [total._replace(name=name)] if total else []
        database.execute("ROLLBACK")
    return groups, fits

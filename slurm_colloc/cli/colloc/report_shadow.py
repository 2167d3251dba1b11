# SPDX-License-Identifier: Apache-2.0
"""colloc report --shadow: what would have been placed where, and what would have come of it."""

from duckdb import DuckDBPyConnection

from slurm_colloc.accounting.counts import count_runs
from slurm_colloc.accounting.equivalents import CONVENTIONS
from slurm_colloc.accounting.shadow import COVERED_PCT, shadow_use
from slurm_colloc.accounting.store import Store
from slurm_colloc.accounting.window import Window
from slurm_colloc.cli.colloc.output import say
from slurm_colloc.config import SiteConfig
from slurm_colloc.report.shadow import ShadowReport
from slurm_colloc.report.text import local


def shadow_report(
    database: DuckDBPyConnection, store: Store, config: SiteConfig, window: Window, by: str
) -> ShadowReport:
    """Return what shadow mode would have come to.

    Args:
        database: of the store, swept.
        store: that it is of.
        config: the site.
        window: that was swept.
        by: one of CONVENTIONS.
    """
    runs, without_gpu, clusters, _ = count_runs(database)
    found = shadow_use(database, config, window, by)
    if not found.decided:
        say(
            'none of these runs was decided on in shadow mode: is policy = "shadow" in site.toml, do jobs go '
            "through csub, and has 'colloc ingest' taken their decisions in? For jobs of before: 'colloc site plan'"
        )
    return ShadowReport(
        cluster=", ".join(clusters) or config.cluster,
        since=local(window.since_s),
        until=local(window.until_s),
        equivalents=CONVENTIONS[by],
        covered_pct=COVERED_PCT,
        runs=runs - without_gpu,
        decided=found.decided,
        pieces=found.pieces,
        total=found.total,
        left=found.left,
        not_judged=found.not_judged,
        visible=store.visible.whose,
    )

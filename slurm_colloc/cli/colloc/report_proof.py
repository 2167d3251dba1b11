# SPDX-License-Identifier: Apache-2.0
"""colloc report --harm and --rollout: what pieces of GPUs did to jobs, from accounting and decisions alone."""

from datetime import datetime

from slurm_colloc.accounting.harm import harm_rates, judged_runs
from slurm_colloc.accounting.rollout import arm_figures
from slurm_colloc.cli.colloc.output import say
from slurm_colloc.cli.colloc.visible_store import seen_store
from slurm_colloc.config import SiteConfig
from slurm_colloc.model import COMPLETED
from slurm_colloc.report.proof import Proof


def proof_of(store: str, config: SiteConfig, span: tuple[datetime, datetime], by: str, *, harm: bool) -> Proof:
    """Return what is known of runs that started in ``span``: harm by kind, or else the two arms of each rule."""
    source, (since_s, until_s) = seen_store(store, config, by), (end.timestamp() for end in span)
    # Runs from before show what a job takes on a whole GPU; no sample is looked at.
    with source.connect(until_s, until_s) as database:
        known = judged_runs(database, config)
    runs = [one for one in known if since_s <= one.start_s < until_s and (one.on_piece if harm else one.arm)]
    if not runs:
        say(
            "no run of these had a piece of a GPU by csub"
            if harm
            else 'no run of these was drawn: a [[rollout]] rule with policy = "auto" and a percent draws jobs'
        )
    figures = harm_rates(runs) if harm else arm_figures(runs)
    unknown = sum(one.harm is None and one.run.state != COMPLETED for one in runs)
    visible = "" if source.visible.everybody else source.visible.nameless
    return Proof(config.cluster, *span, len(runs), unknown, config.sharing.max_slowdown, figures, visible)

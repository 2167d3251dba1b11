# SPDX-License-Identifier: Apache-2.0
"""colloc report --shadow, --harm, --rollout and --several: effects of sharing, and jobs of several GPUs."""

from collections.abc import Callable
from datetime import datetime

from slurm_colloc.audit.rules import all_entries, question
from slurm_colloc.cli.colloc.output import say, site, site_or_none
from slurm_colloc.cli.colloc.visible_store import added_up, seen_store
from slurm_colloc.core.clock import now
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.config_audit import Audit
from slurm_colloc.core.model import COMPLETED
from slurm_colloc.core.sharing_model import Fairness, HarmRate
from slurm_colloc.facts.counts import count_runs
from slurm_colloc.facts.several import several_by
from slurm_colloc.facts.shadow import COVERED_PCT, shadow_use
from slurm_colloc.feedback.fairness import fairness, pieces_began_s
from slurm_colloc.feedback.harm import JudgedRun, harm_rates, judged_runs
from slurm_colloc.feedback.rollout import arm_figures
from slurm_colloc.report import proof, several, shadow
from slurm_colloc.report.columns import Listing
from slurm_colloc.report.text import local
from slurm_colloc.store.equivalents import CONVENTIONS
from slurm_colloc.store.store import Store

_Ends = tuple[datetime, datetime]


def _proof(store: str, span: _Ends, convention: str, *, harm: bool) -> Listing:
    """Return what is known of runs that started in ``span``: harm by kind, or else the two arms of each rule."""
    config = site()
    source = seen_store(store, config, convention)
    runs = [run for run in _judged(source, config, span) if (run.on_piece if harm else run.arm)]
    if not runs:
        say(
            "no run of these had a piece of a GPU by csub"
            if harm
            else 'no run of these was drawn: a [[rollout]] rule with policy = "auto" and a percent draws jobs'
        )
    figures = harm_rates(runs) if harm else arm_figures(runs)
    unknown = sum(run.harm is None and run.run.state != COMPLETED for run in runs)
    visible = source.visible.nameless
    began, rows = (None, ()) if harm else _fairness(source, config, span)
    bound = config.sharing.max_slowdown
    return proof.listing_of(
        proof.Proof(config.cluster, *span, len(runs), unknown, bound, figures, visible, began, rows)
    )


def _fairness(source: Store, config: SiteConfig, span: _Ends) -> tuple[datetime | None, tuple[Fairness, ...]]:
    """Return when pieces began, and what jobs waited and held in ``span`` before and after; nothing where not in it."""
    since_s, until_s = (end.timestamp() for end in span)
    with source.connect(until_s, until_s) as database:
        began_s = pieces_began_s(database, config.cluster)
        if began_s is None:
            return None, ()
        inside = since_s < began_s < until_s
        rows = fairness(database, config.cluster, since_s, began_s, min(until_s, now())) if inside else ()
        return local(began_s), rows


def harmed(source: Store, config: SiteConfig, span: _Ends) -> HarmRate | None:
    """Return how many runs on pieces that started in ``span`` were harmed; None where there are none."""
    rates = harm_rates(run for run in _judged(source, config, span) if run.on_piece)
    # The last of them is of all kinds.
    *_, total = (rate for rate in rates if not rate.arm)
    return total if total.known else None


def _several(store: str, span: _Ends, convention: str, by: str) -> Listing:
    """Return the table of jobs of several GPUs in ``span``, by one of facts/several.BY."""
    config = site_or_none()
    source = seen_store(store, config, convention)
    ruleset = all_entries(config.audit if config else Audit())
    waiting = next(entry for entry in ruleset if entry.rule.code == "COL012")
    with added_up(source, span) as (database, window):
        clusters = count_runs(database)[2]
        rows = several_by(database, config, by, question(waiting, window.until_s))
    cluster = ", ".join(clusters) or (config.cluster if config else "")
    return several.listing_of(cluster, span, by, rows, source.visible.whose)


def _judged(source: Store, config: SiteConfig, span: _Ends) -> list[JudgedRun]:
    since_s, until_s = (end.timestamp() for end in span)
    # Runs from before show what a job takes on a whole GPU; no sample is looked at.
    with source.connect(until_s, until_s) as database:
        return [run for run in judged_runs(database, config) if since_s <= run.start_s < until_s]


def _shadow(store: str, span: _Ends, convention: str, by: str) -> Listing:
    """Return what shadow mode would have come to in ``span``; ``by`` is of other reports."""
    config = site()
    source = seen_store(store, config, convention)
    with added_up(source, span) as (database, window):
        runs, without_gpu, clusters, _ = count_runs(database)
        use = shadow_use(database, config, window, convention)
    if not use.decided:
        say(
            'none of these runs was decided on in shadow mode: is policy = "shadow" in site.toml, do jobs go '
            "through csub, and has 'colloc ingest' taken their decisions in? For jobs of before: 'colloc site plan'"
        )
    shadow_report = shadow.ShadowReport(
        cluster=", ".join(clusters) or config.cluster,
        since=span[0],
        until=span[1],
        equivalents=CONVENTIONS[convention],
        covered_pct=COVERED_PCT,
        runs=runs - without_gpu,
        **use._asdict(),
        visible=source.visible.whose,
    )
    return shadow.listing_of(shadow_report)


# Reports of their own, by their options; each takes the store, the window, by what slices are parts of GPUs, and --by.
KINDS: dict[str, Callable[[str, _Ends, str, str], Listing]] = {
    "shadow": _shadow,
    "harm": lambda store, span, convention, _: _proof(store, span, convention, harm=True),
    "several": _several,
    "rollout": lambda store, span, convention, _: _proof(store, span, convention, harm=False),
}

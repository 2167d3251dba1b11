# SPDX-License-Identifier: Apache-2.0
"""colloc me: my last 30 days."""

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import fsum

from slurm_colloc.cli.colloc.job_next import advice_for
from slurm_colloc.cli.colloc.options import Form, LookBack, StoreFolder
from slurm_colloc.cli.colloc.output import say, site_or_none, window
from slurm_colloc.cli.colloc.terminal import show
from slurm_colloc.cli.colloc.user_runs import judged_runs
from slurm_colloc.core.clock import now
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.units import counted, significant
from slurm_colloc.estimate.records import own_decisions
from slurm_colloc.facts.fits import fit_of
from slurm_colloc.facts.judgement import PIECE, Judgement, RunFound, enough
from slurm_colloc.report.me import FORMATS, Hint, MyReport, hints_of
from slurm_colloc.slurm.job_visibility import own_name
from slurm_colloc.store.decisions import asked_id
from slurm_colloc.store.window import Window

_OF_SHAPES = 3


def me(
    since: LookBack = "30d",
    form: Form = "text",
    store: StoreFolder = "",
) -> None:
    """Say what my jobs used of their GPUs, and what would be enough."""
    start, end = window(since, "now")
    config = site_or_none()
    user = own_name() or str(os.geteuid())
    present_s = now()
    span = Window(start.timestamp(), present_s, present_s)
    judged = judged_runs(store, user, span, config)
    if not config:
        say("note: no site.toml, so what is kept of your jobs is not looked at; 'colloc site init --user' writes one")
    usages = [judgement.found.usage for judgement in judged.said]
    hints = [*hints_of(judged.said), *(_fit_hints(judged.said, config) if config else [])]
    report = MyReport(
        user,
        config.cluster if config else "",
        start,
        end,
        judged.source,
        usages,
        judged.without_gpu,
        fit_of(user, judged.said),
        hints,
    )
    show(report, FORMATS, form)


def _fit_hints(judgements: Sequence[Judgement], config: SiteConfig) -> Iterator[Hint]:
    """Yield, for the names of jobs that held most too much, the line to submit the last of them by."""
    by_name: dict[str, list[Judgement]] = defaultdict(list)
    # csub knows what it submitted, and goes by what was measured of it from then on.
    by_csub = {decision.job_id for decision in own_decisions(config)[0]}
    freed_by: dict[str, float] = defaultdict(float)
    for judgement in judgements:
        run = judgement.found.usage
        freed = fsum(remedy.gpu_hours for remedy in judgement.remedies if remedy.code == PIECE)
        if freed and asked_id(run.job_id, run.job_id_raw) not in by_csub:
            by_name[run.job_name].append(judgement)
            freed_by[run.job_name] += freed
    for name in sorted(by_name, key=lambda name: -freed_by[name])[:_OF_SHAPES]:
        group = by_name[name]
        last = group[-1].found.usage
        # The memory that csub counts on for this run is enough for the others.
        most = max((judgement.found for judgement in group), key=_peak_mib)
        units, fit = {judgement.unit for judgement in group}, fit_of(name, group)
        piece = fit.unit if fit else ""
        advice = advice_for(most, last, config)
        how = f"with --gres={piece}" if piece else "on a piece of a GPU"
        if config.policy == "auto":
            how = "by csub"
        yield Hint(
            f"submit '{name}' {how}{f': {enough(piece, len(units) > 1)}' if piece else ''}",
            f"{counted(len(group), 'run')} of '{name}' had a whole GPU and at most {_peak_mib(most)} MiB of it; "
            f"while they worked a piece would have freed at most {significant(freed_by[name])} GPU-h"
            f"{advice.expected and f'; {advice.expected}'}",
            advice.command or f"colloc job {last.job_id}",
            freed_by[name],
        )


def _peak_mib(run: RunFound) -> int:
    return (run.evidence.gpu_mem_peak_mib if run.evidence else None) or 0

# SPDX-License-Identifier: Apache-2.0
"""colloc me: my last 30 days."""

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import fsum

from slurm_colloc.cli.colloc.job_next import line_for
from slurm_colloc.cli.colloc.options import Form, LookBack, StoreFolder
from slurm_colloc.cli.colloc.output import say, site_or_none, window
from slurm_colloc.cli.colloc.terminal import show
from slurm_colloc.cli.colloc.user_runs import judged_runs
from slurm_colloc.core.clock import now
from slurm_colloc.core.config import SiteConfig
from slurm_colloc.core.units import counted, significant
from slurm_colloc.estimate.records import own_decisions
from slurm_colloc.facts.fits import fit_of
from slurm_colloc.facts.judgement import PIECE, Judgement, Remedy, RunFound, enough
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
    by_name: dict[str, list[tuple[RunFound, Remedy]]] = defaultdict(list)
    # csub knows what it submitted, and goes by what was measured of it from then on.
    by_csub = {decision.job_id for decision in own_decisions(config)[0]}
    for run, remedy in ((judgement.found, remedy) for judgement in judgements for remedy in judgement.remedies):
        if remedy.code == PIECE and asked_id(run.usage.job_id, run.usage.job_id_raw) not in by_csub:
            by_name[run.usage.job_name].append((run, remedy))
    freed_by = {name: fsum(remedy.gpu_hours for _, remedy in group) for name, group in by_name.items()}
    for name in sorted(by_name, key=lambda name: -freed_by[name])[:_OF_SHAPES]:
        group, freed = by_name[name], freed_by[name]
        last, _ = group[-1]
        peaks = (run.evidence.gpu_mem_peak_mib for run, _ in group if run.evidence)
        peak = max((mib for mib in peaks if mib is not None), default=0)
        # A piece that holds the run that needs most holds the others.
        pieces = sorted({((run.fitted and run.fitted.gpus) or 0.0, remedy.gres) for run, remedy in group})
        unit, by_csub_now = pieces[-1][1], config.policy == "auto"
        yield Hint(
            f"submit '{name}' {'by csub' if by_csub_now else f'with --gres={unit}'}: {enough(unit, len(pieces) > 1)}",
            f"{counted(len(group), 'run')} of '{name}' had a whole GPU and at most {peak} MiB of it; while they worked "
            f"a piece would have freed at most {significant(freed)} GPU-h"
            f"{'; csub adds its margins, and may give another piece' * by_csub_now}",
            line_for(last, config) or f"colloc job {last.usage.job_id}",
            freed,
        )

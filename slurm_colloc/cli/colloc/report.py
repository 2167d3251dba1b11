# SPDX-License-Identifier: Apache-2.0
"""colloc report: real against allocated GPU use."""

from collections import Counter
from typing import Annotated

import typer

from slurm_colloc.accounting.store import REJECTED_LINES, open_store
from slurm_colloc.accounting.strays import stray_use
from slurm_colloc.accounting.sweep import job_usage, runs_in_window
from slurm_colloc.accounting.usage import summarize, total
from slurm_colloc.cli.colloc.output import site_or_none, state_folder, window, write
from slurm_colloc.clock import now
from slurm_colloc.errors import InputError
from slurm_colloc.report.usage import FORMATS, UsageReport


def report(
    by: Annotated[str, typer.Option("--by", help="user, account or partition")] = "user",
    since: Annotated[str, typer.Option("--since", help="ISO 8601, or a span such as 7d")] = "30d",
    until: Annotated[str, typer.Option("--until", help="ISO 8601, a span, or now")] = "now",
    form: Annotated[str, typer.Option("--format", help="table, json, csv or html")] = "table",
    output: Annotated[str, typer.Option("--output", "-o", help="file instead of standard output")] = "",
    store: Annotated[str, typer.Option("--store", help="folder of the store; else the site's")] = "",
) -> None:
    """Say how much GPU each user, account or partition was given, and how much of it was really used."""
    if form not in FORMATS:
        raise InputError(f"--format '{form}' is not one of {', '.join(FORMATS)}")
    start, end = window(since, until)
    source = open_store(store or state_folder("store"))
    config = site_or_none()
    at = (start.timestamp(), end.timestamp(), now())
    usages = job_usage(source, *at)
    runs, without_gpu = runs_in_window(source, *at)
    rejected: Counter[str] = Counter()
    for log in source.logs().values():
        rejected.update(log["rejected"])
    rejected += Counter({REJECTED_LINES: source.samples.rejected(start.timestamp(), end.timestamp())})
    clusters = sorted({usage.cluster for usage in usages}) or [config.cluster if config else "?"]
    shown = UsageReport(
        cluster=", ".join(clusters),
        since=start,
        until=end,
        by=by,
        groups=tuple(summarize(usages, by)),
        total=total(usages, "total"),
        runs=runs,
        runs_without_gpu=without_gpu,
        strays=tuple(stray_use(source, start.timestamp(), end.timestamp())),
        rejected=dict(rejected),
        templates=config.paths.templates if config else "",
    )
    write(FORMATS[form](shown), output)

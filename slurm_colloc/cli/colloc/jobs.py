# SPDX-License-Identifier: Apache-2.0
"""colloc jobs: a user's jobs, a line for each."""

import os
from typing import Annotated

import typer

from slurm_colloc.cli.colloc.options import Output, Since, StoreFolder, Until
from slurm_colloc.cli.colloc.output import one_of, site_or_none, window
from slurm_colloc.cli.colloc.terminal import show
from slurm_colloc.cli.colloc.user_runs import judged_runs
from slurm_colloc.core.clock import now
from slurm_colloc.report.columns import FORMATS
from slurm_colloc.report.jobs import listing_of
from slurm_colloc.slurm.job_visibility import own_name
from slurm_colloc.store.window import Window


def jobs(
    user: Annotated[str, typer.Option("--user", "-u", help="whose; else yours")] = "",
    since: Since = "7d",
    until: Until = "now",
    form: Annotated[str, typer.Option("--format", help="table, csv or json")] = "table",
    output: Output = "",
    store: StoreFolder = "",
) -> None:
    """List a user's jobs with a GPU, and what to do.

    Each with its state, elapsed of limit, GPU used of allocated, and memory peak.
    """
    one_of("--format", form, FORMATS)
    ends = window(since, until)
    named = user or own_name() or str(os.geteuid())
    span = Window(ends[0].timestamp(), ends[1].timestamp(), now())
    judged = judged_runs(store, named, span, site_or_none())
    show(listing_of(named, ends, judged.source, judged.said, judged.without_gpu), FORMATS, form, output)

# SPDX-License-Identifier: Apache-2.0
"""colloc jobs: a user's jobs, a line for each."""

import os
from typing import Annotated

from typer import Option

from slurm_colloc.cli.colloc.options import Output, Since, StoreFolder, Until, format_option
from slurm_colloc.cli.colloc.output import site_or_none, window
from slurm_colloc.cli.colloc.terminal import show
from slurm_colloc.cli.colloc.user_runs import judged_runs
from slurm_colloc.report.columns import FORMATS
from slurm_colloc.report.jobs import listing_of
from slurm_colloc.slurm.job_visibility import own_name
from slurm_colloc.store.window import window_of


def jobs(
    user: Annotated[str, Option("--user", "-u", help="whose; else yours")] = "",
    since: Since = "7d",
    until: Until = "now",
    form: Annotated[str, format_option(*FORMATS)] = "table",
    output: Output = "",
    store: StoreFolder = "",
) -> None:
    """List a user's jobs with a GPU, and what to do.

    Each with its state, elapsed of limit, GPU used of allocated, and memory peak.
    """
    ends = window(since, until)
    named = user or own_name() or str(os.geteuid())
    judged = judged_runs(store, named, window_of(*ends), site_or_none())
    show(listing_of(named, ends, judged.source, judged.said, judged.without_gpu), FORMATS, form, output)

# SPDX-License-Identifier: Apache-2.0
"""colloc why: csub's part in one job, in a few lines for a ticket."""

from typing import Annotated

import typer

from slurm_colloc.cli.colloc.job import story_of
from slurm_colloc.cli.colloc.terminal import show
from slurm_colloc.report.job import as_ticket


def why(
    job_id: Annotated[str, typer.Argument(help="as Slurm prints it")],
    since: Annotated[str, typer.Option("--since", help="look back so far")] = "365d",
    store: Annotated[str, typer.Option("--store", help="folder of the store; else the site's")] = "",
) -> None:
    """Say for a ticket what csub gave a job, and why."""
    show(story_of(job_id, since, store), {"text": as_ticket}, "text")

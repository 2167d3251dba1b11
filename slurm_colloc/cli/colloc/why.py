# SPDX-License-Identifier: Apache-2.0
"""colloc why: csub's part in one job, in a few lines for a ticket."""

from slurm_colloc.cli.colloc.job import story_of
from slurm_colloc.cli.colloc.options import JobId, LookBack, StoreFolder
from slurm_colloc.cli.colloc.terminal import show
from slurm_colloc.report.job import as_ticket


def why(
    job_id: JobId,
    since: LookBack = "365d",
    store: StoreFolder = "",
) -> None:
    """Say for a ticket what csub gave a job, and why."""
    show(story_of(job_id, since, store), {"text": as_ticket}, "text")

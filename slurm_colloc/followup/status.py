# SPDX-License-Identifier: Apache-2.0
"""What became of a job that is followed, in words for its user: what its companion did."""

import os

from slurm_colloc.config import SiteConfig
from slurm_colloc.errors import CollocError
from slurm_colloc.followup.record import (
    CSUB,
    measured_name,
    read_record,
    read_state,
    record_folder,
)
from slurm_colloc.slurm.client import CliClient


def retry_status(config: SiteConfig, job_id: str) -> str:
    """Return what became of one's own job after it ran out of GPU memory; empty where nobody follows it."""
    try:
        folder = record_folder(config.cluster, job_id.partition("_")[0])
        state = read_state(folder)
        if state.outcome:
            return state.outcome
        # Claimed by csub itself: nobody follows the job.
        if state.claimed_by not in ("", CSUB):
            return "it is being submitted again, or its companion died over that: see squeue"
        return ""
    except CollocError:
        return ""


def measured_status(config: SiteConfig, job_id: str) -> str:
    """Return the state of a job that was measured first, by any of its jobs' ids; empty of any other job."""
    try:
        folder = record_folder(config.cluster, measured_name(job_id.partition("_")[0]))
        if not os.path.isdir(folder):
            return ""
        state = read_state(folder)
        if state.outcome:
            return state.outcome
        if state.claimed_by == CSUB:
            return "csub could not have it sized: the rest runs as asked"
        record = read_record(folder)
        first = record.job_id
        if CliClient().own_queue("-n", record.companion_name):
            return f"job {first} is measured first; the rest waits for it"
        if state.claimed_by:
            return f"the companion of job {first} died while it sized the rest: see squeue"
        return f"the companion of job {first} ended without a result: the rest runs as asked"
    except CollocError as error:
        return f"its result is not known: {error}"

# SPDX-License-Identifier: Apache-2.0
"""Text for the user: what the companion did about a job."""

from slurm_colloc.config import SiteConfig
from slurm_colloc.errors import CollocError
from slurm_colloc.followup.record import CSUB, read_state, record_folder


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

# SPDX-License-Identifier: Apache-2.0
"""What became of a job that is followed, in words for its user: what its companion did, or what its user can do."""

import os
import pwd
import stat

from slurm_colloc.config import SiteConfig
from slurm_colloc.errors import CollocError
from slurm_colloc.followup.record import (
    CSUB,
    RETRY,
    is_recorded,
    measured_name,
    read_record,
    read_state,
    record_folder,
)
from slurm_colloc.gpu.failure import TAIL_BYTES, Outcome, outcome_of
from slurm_colloc.placement.out_of_memory import held_mib, more_mib
from slurm_colloc.slurm.client import CliClient
from slurm_colloc.slurm.job_files import last_words


def retry_status(config: SiteConfig, job_id: str) -> str:
    """Return what became of one's own job after it ran out of GPU memory; empty where it did not, or nobody knows."""
    try:
        folder = record_folder(config.cluster, job_id.partition("_")[0])
        state = read_state(folder)
        if state.outcome:
            return state.outcome
        # Claimed by csub itself: nobody follows the job.
        if state.claimed_by not in ("", CSUB):
            return "it is being submitted again, or its companion died over that: see squeue"
        return _advice(config, job_id, followed=is_recorded(folder) and not state.claimed_by)
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
        if CliClient(config.timeouts.ask_slurm_s).own_queue("-n", record.companion_name):
            return f"job {first} is to be measured; the rest waits for that"
        if state.claimed_by:
            return f"the companion of job {first} died as it sized the rest: see squeue for what there is"
        return f"the companion of job {first} ended without a word: the rest runs as asked"
    except CollocError as error:
        return f"what became of it is not known: {error}"


def _advice(config: SiteConfig, job_id: str, *, followed: bool) -> str:
    """Return what to ask for, or who sees to it; Slurm names a job's files only as long as it remembers the job."""
    for ended in CliClient(config.timeouts.ask_slurm_s).remembered(job_id):
        if ended.state != "FAILED" or ended.user != pwd.getpwuid(os.geteuid()).pw_name:
            continue
        said = b"\n".join(last_words(path, 0, TAIL_BYTES) for path in ended.prints_to if _is_own_file(path))
        if outcome_of(ended.status or 1, said)[0] is not Outcome.GPU_OOM:
            continue
        held = max((held_mib(gres, 0, config.pool) or 0 for gres in ended.given), default=0)
        least = more_mib(held, sizes_are_free=False)
        more = f"--gpu-footprint=mem={least}M,sm=PERCENT" if held else "--gpu-footprint with a larger mem"
        words = f"job {ended.job_id} ran out of GPU memory by its own words; "
        if followed:
            name = f"csub-{RETRY}-{job_id.partition('_')[0]}"
            return f"{words}job {name} sees to it; if squeue has no such job, submit it with {more}"
        return f"{words}submit it with {more}, or with --requeue: csub then runs it again with more by itself"
    return ""


def _is_own_file(path: str) -> bool:
    try:
        found = os.stat(path)
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()

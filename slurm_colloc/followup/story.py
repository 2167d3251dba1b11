# SPDX-License-Identifier: Apache-2.0
"""What is to be said of a job that ran out of GPU memory: what its companion did, or what its user can do."""

import os
import pwd
import stat

from slurm_colloc.config import SiteConfig
from slurm_colloc.errors import CollocError
from slurm_colloc.followup.record import (
    is_claimed,
    is_recorded,
    is_settled,
    read_outcome,
    read_record,
    record_folder,
)
from slurm_colloc.runtime.faults import TAIL_BYTES, outcome_of
from slurm_colloc.runtime.files import last_words
from slurm_colloc.runtime.queue import Outcome
from slurm_colloc.slurm.client import CliClient


def recovery_of(config: SiteConfig, job_id: str) -> str:
    """Return what became of one's own job after it ran out of GPU memory; empty where it did not, or nobody knows."""
    try:
        folder = record_folder(config.cluster, job_id.partition("_")[0])
        outcome = read_outcome(folder)
        if outcome:
            return outcome.said
        # Claimed by csub itself: nobody follows the job.
        if is_claimed(folder) and not is_settled(folder):
            return "it is being submitted again, or its companion died over that: see squeue"
        return _advice(config, job_id, followed=is_recorded(folder) and not is_claimed(folder))
    except CollocError:
        return ""


def first_of(config: SiteConfig, job_id: str) -> str:
    """Return the story of a job that was measured first, by any of its jobs' ids; empty of any other job."""
    try:
        folder = record_folder(config.cluster, f"first-{job_id.partition('_')[0]}")
        if not os.path.isdir(folder):
            return ""
        outcome = read_outcome(folder)
        if outcome:
            return outcome.said
        if is_settled(folder):
            return "csub could not have it sized: the rest runs as asked"
        first = read_record(folder).job_id
        if CliClient(config.timeouts.ask_slurm_s).is_there(f"csub-first-{first}"):
            return f"job {first} is to be measured; the rest waits for that"
        if is_claimed(folder):
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
        if outcome_of(ended.status or 1, said)[0] is Outcome.GPU_OOM:
            pieces = {part.type: part.mem_mib for pool in config.pool for part in pool.slice}
            held = next((pieces[gres.type] for gres in ended.given if gres.type in pieces), None)
            more = f"--gpu-footprint=mem={held + 1}M,sm=PERCENT" if held else "--gpu-footprint with a larger mem"
            words = f"job {ended.job_id} ran out of GPU memory by its own words; "
            if followed:
                name = f"csub-retry-{job_id.partition('_')[0]}"
                return f"{words}job {name} sees to it; if squeue has no such job, submit it with {more}"
            return f"{words}submit it with {more}, or with --requeue: csub then runs it again with more by itself"
    return ""


def _is_own_file(path: str) -> bool:
    try:
        found = os.stat(path)
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid()
